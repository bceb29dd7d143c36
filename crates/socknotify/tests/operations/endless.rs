//! Operations that never end: reads of the kernel's log, of which there is no more.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{Buffer, FileDriver, FileOperation, OperationId, PortFile};

use super::support::PATIENCE;
use super::{TestPort, TestWorker, completed, every_port, file_of};

/// More than a ring has room for.
const MANY: usize = 5000;

/// A file whose reads never end; `None` if this user may not read it.
fn endless(port: &TestPort) -> io::Result<Option<PortFile>> {
    const PATH: &str = "/proc/kmsg";
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    let Ok(mut log) = options.open(PATH) else {
        eprintln!("skipped: {PATH} cannot be read");
        return Ok(None);
    };
    while log.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {}
    Ok(Some(port.adopt_file(File::open(PATH)?)?))
}

fn begin_many(port: &TestPort, file: &PortFile) -> io::Result<Vec<OperationId>> {
    let read = |_| Ok(port.begin(FileOperation::read_at(file, vec![0; 8], 0))?);
    (0..MANY).map(read).collect()
}

/// A read into two buffers.
fn vectored(file: &PortFile) -> FileOperation {
    let buffers: [Buffer; 2] = [vec![0; 4].into(), vec![0; 8].into()];
    FileOperation::read_vectored_at(file, buffers.into(), 0)
}

/// Takes this many completions, of which the kernel may have ended a few after all.
fn take(worker: &mut TestWorker, count: usize) {
    for _ in 0..count {
        let done = completed(worker);
        assert!(done.is_cancelled || done.result.is_ok(), "{done:?}");
    }
}

#[for_every_backend]
fn o5_operations_that_have_not_begun_are_cancelled_at_once(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let Some(log) = endless(&port)? else {
            return Ok(());
        };
        let many = begin_many(&port, &log)?;
        let read = FileOperation::read_at(&log, vec![0; 4], 0);
        let id = port.begin(read.within(Duration::from_millis(5)))?;
        let done = completed(&mut worker);
        let error = done.result.expect_err("it has not begun");
        assert_eq!((done.id, error.kind()), (id, io::ErrorKind::TimedOut));

        for id in many.iter().rev() {
            assert!(port.cancel_operation(*id));
        }
        take(&mut worker, MANY);
        let file = file_of(&port, b"0123456789")?;
        let id = port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        let done = completed(&mut worker);
        assert_eq!((done.id, done.result?), (id, 4));
    }
    Ok(())
}

/// More reads than there are threads, one after the other, as a program begins them.
#[for_every_backend]
fn o3_other_operations_make_progress_while_reads_never_end(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let Some(log) = endless(&port)? else {
            return Ok(());
        };
        let file = file_of(&port, b"0123456789")?;
        for number in 0..100 {
            port.begin(match number % 2 {
                0 => FileOperation::read_at(&log, vec![0; 8], 0),
                _ => vectored(&log),
            })?;
            let id = port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
            let done = completed(&mut worker);
            assert_eq!((done.id, done.result?), (id, 4));
        }
        assert_eq!(port.operations(), 100);
        port.close();
        assert_eq!(port.operations(), 0);
    }
    Ok(())
}

#[for_every_backend]
fn o3_operations_begin_when_there_is_room(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let Some(log) = endless(&port)? else {
            return Ok(());
        };
        if port.file_driver() == FileDriver::Threads {
            // Nothing ends a thread that reads.
            continue;
        }
        let many = begin_many(&port, &log)?;
        let file = file_of(&port, b"0123456789")?;
        let id = port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        // Those that are in the kernel, or with a thread, are among the first.
        for id in &many {
            port.cancel_operation(*id);
        }
        let all = (0..=MANY).map(|_| completed(&mut worker));
        let done = all.filter(|done| done.id == id).last();
        assert_eq!(done.expect("it completes").result?, 4);
    }
    Ok(())
}

#[for_every_backend]
fn o7_closing_ends_operations_that_never_end(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let Some(log) = endless(&port)? else {
            return Ok(());
        };
        port.begin(vectored(&log))?;
        begin_many(&port, &log)?;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            port.close();
            tell.send(port.operations())
        });
        assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
        assert!(log.into_file().is_ok(), "no operation has it");
    }
    Ok(())
}
