//! E7: operations on files, whose memory is the caller's, come out of the same calls.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Events, Origin, Overlapped};

use crate::support::trigger::ONCE;
use crate::support::{PATIENCE, Pair, PortExt, expect_nothing, notification, port, wait_until};

/// The key of these operations.
const KEY: usize = 77;

/// An operation and its memory.
#[repr(C)]
struct Operation {
    overlapped: Overlapped,
    memory: Vec<u8>,
}

impl Operation {
    fn new(offset: u64, memory: impl Into<Vec<u8>>) -> Box<Self> {
        Box::new(Operation {
            overlapped: Overlapped::new(offset),
            memory: memory.into(),
        })
    }

    /// It is the port's until its packet has come, or the port was closed.
    fn read(mut self: Box<Self>, port: &CompletionPort, file: &File) -> Result<*mut Self, Error> {
        let memory = &raw mut *self.memory;
        let this = Box::into_raw(self);
        // SAFETY: nobody touches it until it is over, and the tests' files stay open as long.
        let begun = unsafe { port.read_at(file, memory, KEY, this.cast()) };
        Self::begun(begun, this)
    }

    fn write(self: Box<Self>, port: &CompletionPort, file: &File) -> Result<*mut Self, Error> {
        let memory = &raw const *self.memory;
        let this = Box::into_raw(self);
        // SAFETY: as above.
        let begun = unsafe { port.write_at(file, memory, KEY, this.cast()) };
        Self::begun(begun, this)
    }

    fn begun(begun: Result<(), Error>, this: *mut Self) -> Result<*mut Self, Error> {
        if begun.is_err() {
            // SAFETY: it was not begun.
            drop(unsafe { Box::from_raw(this) });
        }
        begun.map(|()| this)
    }

    /// The operation that this packet is of.
    fn of(entry: &Entry) -> Box<Self> {
        assert_eq!(entry.completion_key, KEY);
        assert_eq!(entry.origin(), Some(Origin::Completion));
        // SAFETY: it is one of these, and it is over.
        let this = unsafe { Box::from_raw(entry.overlapped as *mut Self) };
        assert!(!this.overlapped.is_pending());
        let count = this.overlapped.result().unwrap_or(0);
        assert_eq!(entry.transferred as usize, count);
        this
    }

    fn next(port: &CompletionPort) -> io::Result<Box<Self>> {
        Ok(Self::of(&port.dequeue_one(Some(PATIENCE))?))
    }
}

fn file_of(content: &[u8]) -> io::Result<File> {
    let file = tempfile::tempfile()?;
    file.write_all_at(content, 0)?;
    Ok(file)
}

fn port_and_file(backend: Backend, content: &[u8]) -> io::Result<(CompletionPort, File)> {
    Ok((port(backend)?, file_of(content)?))
}

#[for_every_backend]
fn e7_operations_on_files_come_out_of_the_same_calls(backend: Backend) -> io::Result<()> {
    let (port, file) = port_and_file(backend, b"0123456789")?;
    let pair = Pair::unix()?;
    port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
    Operation::new(4, *b"abc").write(&port, &file)?;
    let written = Operation::next(&port)?;
    assert_eq!(written.overlapped.result()?, 3);
    let address = Operation::new(2, [0; 6]).read(&port, &file)?;
    pair.send()?;
    port.post(Entry::new(2, 0, 0))?;
    let mut found = Vec::new();
    while found.len() < 3 {
        let mut entries = [Entry::default(); 8];
        found.extend_from_slice(port.dequeue(&mut entries, Some(PATIENCE))?);
    }
    found.sort_by_key(|entry| entry.completion_key);
    let read = Entry::new(KEY, 6, address.addr());
    assert_eq!(
        found,
        [notification(1, Events::IN), Entry::new(2, 0, 0), read]
    );
    let read = Operation::of(&found[2]);
    assert_eq!(read.memory, *b"23abc7");
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn e7_any_number_of_operations_is_under_way_and_each_has_one_packet(
    backend: Backend,
) -> io::Result<()> {
    const COUNT: usize = 6000;
    let port = port(backend)?;
    let content: Vec<u8> = (0..COUNT)
        .flat_map(|it| (it as u32).to_le_bytes())
        .collect();
    let file = file_of(&content)?;
    for index in 0..COUNT {
        Operation::new(index as u64 * 4, [0; 4]).read(&port, &file)?;
    }
    let mut is_done = vec![false; COUNT];
    for _ in 0..COUNT {
        let done = Operation::next(&port)?;
        let index = done.overlapped.offset() as usize / 4;
        assert_eq!(done.memory, (index as u32).to_le_bytes());
        assert!(!std::mem::replace(&mut is_done[index], true), "{index}");
    }
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn e7_many_threads_begin_and_dequeue_operations(backend: Backend) -> io::Result<()> {
    const EACH: usize = 500;
    let (port, file) = port_and_file(backend, &[5; 4096])?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> io::Result<()> {
                    for _ in 0..EACH {
                        Operation::new(0, [0; 4096]).read(&port, &file)?;
                        // Whose it is does not matter.
                        let done = Operation::next(&port)?;
                        assert_eq!(done.overlapped.result()?, 4096);
                        assert!(done.memory.iter().all(|&byte| byte == 5));
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn e7_a_thread_that_ends_leaves_its_operations_under_way(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 200;
    let (port, file) = port_and_file(backend, &vec![9; 1 << 20])?;
    // What is not in memory is not done before the thread ends.
    file.sync_all()?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..COUNT {
                let read = Operation::new(index as u64 * 4096, vec![0; 4096]);
                read.read(&port, &file).expect("the port is open");
            }
        });
    });
    for _ in 0..COUNT {
        let done = Operation::next(&port)?;
        assert_eq!(done.overlapped.result()?, 4096);
        assert!(done.memory.iter().all(|&byte| byte == 9));
    }
    Ok(())
}

#[for_every_backend]
fn e7_what_the_system_refuses_is_the_operations_result(backend: Backend) -> io::Result<()> {
    let (port, file) = port_and_file(backend, b"0123456789")?;
    Operation::new(8, [0; 4]).read(&port, &file)?;
    assert_eq!(Operation::next(&port)?.overlapped.result()?, 2);
    Operation::new(10, [0; 4]).read(&port, &file)?;
    assert_eq!(Operation::next(&port)?.overlapped.result()?, 0);
    Operation::new(0, []).read(&port, &file)?;
    assert_eq!(Operation::next(&port)?.overlapped.result()?, 0);

    let path = tempfile::NamedTempFile::new()?.into_temp_path();
    let read_only = File::open(&path)?;
    Operation::new(0, [0; 4]).write(&port, &read_only)?;
    let refused = Operation::next(&port)?.overlapped.result();
    let number = refused.expect_err("it is open for reading").raw_os_error();
    assert_eq!(number, Some(libc::EBADF));
    Ok(())
}

#[for_every_backend]
fn e7_what_is_no_file_begins_nothing(port: CompletionPort) -> io::Result<()> {
    let (pipe, _writer) = rustix::pipe::pipe()?;
    let socket = Pair::unix()?;
    let directory = File::open(std::env::temp_dir())?;
    let mut memory = [0; 4];
    let mut overlapped = Overlapped::new(0);
    let (memory, overlapped) = (&raw mut memory, &raw mut overlapped);
    // SAFETY: all stay until the end.
    unsafe {
        let not_a_file = Err(Error::Os(libc::ESPIPE));
        assert_eq!(port.read_at(&pipe, memory, KEY, overlapped), not_a_file);
        assert_eq!(
            port.read_at(&socket.ours, memory, KEY, overlapped),
            not_a_file
        );
        let is_directory = Err(Error::Os(libc::EISDIR));
        assert_eq!(
            port.read_at(&directory, memory, KEY, overlapped),
            is_directory
        );
        assert!(!port.cancel_operation(overlapped));
        (*overlapped) = Overlapped::new(u64::MAX);
        let file = file_of(b"0")?;
        let beyond = port.read_at(&file, memory, KEY, overlapped);
        assert_eq!(beyond, Err(Error::InvalidParameter));
    }
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn e7_an_operation_that_is_cancelled_has_one_packet(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 500;
    let (port, file) = port_and_file(backend, &[7; 1 << 16])?;
    for _ in 0..COUNT {
        let address = Operation::new(0, vec![0; 1 << 16]).read(&port, &file)?;
        port.cancel_operation(address.cast());
        let done = Operation::next(&port)?;
        match done.overlapped.result() {
            Ok(count) => assert!(count == 1 << 16 && done.memory.iter().all(|&it| it == 7)),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
        }
        assert!(!port.cancel_operation(&done.overlapped));
    }
    expect_nothing(&port);
    Ok(())
}

/// How long a cancellation takes does not depend on how many operations there are, or were.
#[for_every_backend]
fn e7_any_number_of_operations_is_cancelled(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 20_000;
    let (port, file) = port_and_file(backend, &[7; 8])?;
    let addresses: Vec<_> = (0..COUNT)
        .map(|_| Operation::new(0, [0; 8]).read(&port, &file))
        .collect::<Result<_, _>>()?;
    let begin = Instant::now();
    for address in addresses.into_iter().rev() {
        port.cancel_operation(address.cast());
    }
    for _ in 0..COUNT {
        let done = Operation::next(&port)?;
        assert!(!port.cancel_operation(&done.overlapped));
    }
    // Some thirty times as long as it takes. To search all of them would take a minute.
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    Ok(())
}

#[for_every_backend]
fn e7_closing_ends_operations_and_gives_their_memory_back(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 1000;
    for round in 0..10 {
        let (port, file) = port_and_file(backend, &[7; 4096])?;
        let operations: Vec<_> = (0..COUNT)
            .map(|_| Operation::new(0, [0; 4096]).read(&port, &file))
            .collect::<Result<_, _>>()?;
        match round % 2 {
            0 => port.close(),
            _ => drop(port),
        }
        for operation in operations {
            // SAFETY: closing has ended it.
            let operation = unsafe { Box::from_raw(operation) };
            match operation.overlapped.result() {
                Ok(count) => assert_eq!(count, 4096),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
            }
        }
    }
    let port = port(backend)?;
    port.close();
    let refused = Operation::new(0, [0; 4]).read(&port, &file_of(b"0")?);
    assert_eq!(refused, Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn e7_closing_while_threads_begin_operations(backend: Backend) -> io::Result<()> {
    for _ in 0..20 {
        let (port, file) = port_and_file(backend, &[7; 512])?;
        let begun = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut begun = Vec::new();
                        while let Ok(it) = Operation::new(0, [0; 512]).read(&port, &file) {
                            begun.push(it.expose_provenance());
                        }
                        begun
                    })
                })
                .collect();
            thread::yield_now();
            port.close();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        for address in begun {
            // SAFETY: closing has ended it.
            let operation = unsafe { Box::from_raw(address as *mut Operation) };
            assert!(!operation.overlapped.is_pending());
        }
    }
    Ok(())
}

#[for_every_backend]
fn e7_closing_keeps_the_result_of_what_was_done(backend: Backend) -> io::Result<()> {
    let (port, file) = port_and_file(backend, b"")?;
    let mut overlapped = Overlapped::new(0);
    // SAFETY: all of it stays until the port is closed.
    unsafe { port.write_at(&file, b"done", KEY, &raw mut overlapped)? };
    wait_until("it is written", || {
        file.metadata().is_ok_and(|file| file.len() == 4)
    });
    port.close();
    assert_eq!(overlapped.result()?, 4);
    Ok(())
}

/// The kernel does the same to operations of a thread that ends.
#[for_every_backend]
fn e7_memory_that_cannot_be_reached_is_the_operations_result(backend: Backend) -> io::Result<()> {
    const LENGTH: usize = 4096;
    let (port, file) = port_and_file(backend, &[7; LENGTH])?;
    let access = libc::PROT_NONE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
    // SAFETY: it replaces nothing.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    let memory = std::ptr::slice_from_raw_parts_mut(memory.cast(), LENGTH);
    let mut overlapped = Overlapped::new(0);
    // SAFETY: it stays until the packet has come. Nobody uses the memory, and the kernel cannot.
    unsafe { port.read_at(&file, memory, KEY, &raw mut overlapped)? };
    let entry = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!((entry.completion_key, entry.transferred), (KEY, 0));
    let error = overlapped.result().expect_err("it was not read");
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    expect_nothing(&port);
    // SAFETY: it was mapped above.
    unsafe { libc::munmap(memory.cast(), LENGTH) };
    Ok(())
}
