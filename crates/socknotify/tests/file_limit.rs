//! Writes that the system cuts short: a program of its own with one test, because the limit is the process's, and what
//! others print may go to a file, too.

#![cfg(unix)]

#[macro_use]
extern crate socknotify_test_macros;

#[macro_use]
mod support;

use std::io::{self, Read, Seek};
use std::net::TcpStream;

use rustix::process::Resource;
use socknotify::Backend;
use socknotify::owned::{Event, FileCompletion, FileOperation, Port};

use support::{Limit, PATIENCE};

#[for_every_backend]
fn o4_a_file_that_must_not_grow_is_written_in_part_and_then_not_at_all(
    backend: Backend,
) -> io::Result<()> {
    const LIMIT: u64 = 10_000;
    // The signal that would end the process.
    // SAFETY: no handler is set, so nothing runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let _limit = Limit::to(Resource::Fsize, LIMIT)?;

    let port = Port::<TcpStream>::builder().backend(backend).build()?;
    let mut worker = port.worker(8);
    let file = port.adopt_file(tempfile::tempfile()?)?;
    let mut write = |offset| -> io::Result<FileCompletion> {
        port.begin(FileOperation::write_at(&file, vec![b'x'; 8192], offset))?;
        assert_eq!(worker.process(Some(PATIENCE))?, 1);
        match worker.take() {
            Some(Event::Completed(done)) => Ok(done),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(write(0)?.result?, 8192);
    assert_eq!(write(8192)?.result? as u64, LIMIT - 8192);
    let done = write(LIMIT)?;
    let error = done.result.expect_err("it must not grow");
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(done.buffer.len(), 8192);

    let mut content = Vec::new();
    let mut file: &std::fs::File = &file;
    file.rewind()?;
    file.read_to_end(&mut content)?;
    assert_eq!(content, vec![b'x'; LIMIT as usize]);
    Ok(())
}
