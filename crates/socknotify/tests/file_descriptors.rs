//! Files where no descriptor is left: a program of its own, because the limit is the process's.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::Resource;
use socknotify::owned::{Event, FileDriver, FileOperation, Port};
use socknotify::{Backend, Error};

use support::{Limit, PATIENCE};

/// One test at a time runs. The next one begins when the thread of this one has ended, and with it what it kept of ports: of a
/// thread's values, the first is dropped last.
fn alone() {
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static GUARD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
    }
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    GUARD.set(Some(guard));
}

/// Lets this be the last descriptor that the process can have.
fn no_more_descriptors(last: &impl AsRawFd) -> io::Result<Limit> {
    Limit::to(Resource::Nofile, last.as_raw_fd() as u64 + 1)
}

/// Fills the numbers before it, and so has the highest.
fn last_descriptor() -> io::Result<File> {
    let mut last = tempfile::tempfile()?;
    let mut before = Vec::new();
    for _ in 0..100 {
        before.push(std::mem::replace(&mut last, tempfile::tempfile()?));
    }
    // They stay open.
    before.into_iter().for_each(std::mem::forget);
    Ok(last)
}

#[for_every_backend]
fn o3_a_ring_is_made_when_there_is_a_descriptor_for_it(backend: Backend) -> io::Result<()> {
    alone();
    let port = Port::<TcpStream>::builder().backend(backend).build()?;
    let best = Port::<TcpStream>::builder()
        .backend(backend)
        .build()?
        .file_driver();
    let (files, last) = (
        [tempfile::tempfile()?, tempfile::tempfile()?],
        last_descriptor()?,
    );
    let [first, second] = files;
    let mut worker = port.worker(8);
    let mut read = |file: &_| -> io::Result<()> {
        port.begin(FileOperation::read_at(file, vec![0; 4], 0))?;
        assert_eq!(worker.process(Some(PATIENCE))?, 1);
        assert!(matches!(worker.take(), Some(Event::Completed(done)) if done.result.is_ok()));
        Ok(())
    };
    let limit = no_more_descriptors(&last)?;
    let file = port.adopt_file(first)?;
    assert_eq!(port.file_driver(), FileDriver::Threads);
    read(&file)?;
    drop(limit);
    port.adopt_file(second)?;
    assert_eq!(port.file_driver(), best);
    read(&file)?;
    Ok(())
}

#[for_every_backend]
fn o3_a_ring_that_is_asked_for_is_made_with_the_port(backend: Backend) -> io::Result<()> {
    alone();
    let builder = || {
        let builder = Port::<TcpStream>::builder().backend(backend);
        builder.file_driver(FileDriver::IoUring)
    };
    if FileDriver::IoUring.probe().is_err() {
        assert_eq!(builder().build().err(), Some(Error::BackendUnavailable));
        return Ok(());
    }
    // Room for a port, and for none with a ring. A thread of the test before may give a descriptor back meanwhile.
    let mut tries = 0..5;
    let last = loop {
        assert!(tries.next().is_some(), "it is made later");
        let last = last_descriptor()?;
        let room = |number| Limit::to(Resource::Nofile, last.as_raw_fd() as u64 + 1 + number);
        let mut spare = 0;
        loop {
            let limit = room(spare)?;
            let port = Port::<TcpStream>::builder().backend(backend).build();
            drop(limit);
            if port.is_ok() {
                break;
            }
            spare += 1;
        }
        let limit = room(spare)?;
        let refused = builder().build().err();
        drop(limit);
        if refused.is_some() {
            assert_eq!(refused, Some(Error::TooManyOpenFiles));
            break last;
        }
    };
    let port = builder().build()?;
    let limit = no_more_descriptors(&last)?;
    // Nothing more is needed.
    assert_eq!(port.file_driver(), FileDriver::IoUring);
    drop(limit);
    Ok(())
}
