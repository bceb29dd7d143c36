//! Operations that complete on the port: section O of the contract, on every backend that this machine has.

#[macro_use]
extern crate socknotify_test_macros;

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod beside;
mod closed;
mod drain;
mod files;
#[cfg(target_os = "linux")]
mod fuse;
mod model;
mod run;
mod stress;

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{
    Builder, Event, FileCompletion, FileDriver, FileOperation, Port, PortFile, Worker,
};

use support::PATIENCE;

type TestPort = Port<TcpStream, u64>;
type TestWorker = Worker<TcpStream, u64>;

fn builder(backend: Backend) -> Builder<TcpStream, u64> {
    TestPort::builder().backend(backend)
}

fn owning_port(backend: Backend) -> io::Result<TestPort> {
    Ok(builder(backend).build()?)
}

/// The next event, which has to come.
#[track_caller]
fn next(worker: &mut TestWorker) -> Event<TcpStream, u64> {
    loop {
        let count = worker.process(Some(PATIENCE)).expect("the port is open");
        assert_ne!(count, 0, "nothing comes");
        if let Some(event) = worker.take() {
            return event;
        }
    }
}

#[track_caller]
fn message(worker: &mut TestWorker) -> u64 {
    match next(worker) {
        Event::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// Nothing is there.
#[track_caller]
fn nothing(worker: &mut TestWorker) {
    let outcome = worker.process(Some(Duration::ZERO));
    assert_eq!(outcome, Ok(0), "{:?}", worker.take());
}

/// A port for each way in which operations on files are done here.
fn every_port(backend: Backend) -> io::Result<Vec<TestPort>> {
    FileDriver::ALL
        .into_iter()
        .filter(|driver| driver.probe().is_ok())
        .map(|driver| {
            let port = builder(backend).file_driver(driver).build()?;
            assert_eq!(port.file_driver(), driver);
            Ok(port)
        })
        .collect()
}

/// A file with nothing in it, for reading and writing, that goes when it is closed.
fn empty_file(port: &TestPort) -> io::Result<PortFile> {
    file_of(port, b"")
}

/// The same, with this in it.
fn file_of(port: &TestPort, content: &[u8]) -> io::Result<PortFile> {
    #[cfg(unix)]
    let mut file = tempfile::tempfile()?;
    #[cfg(unix)]
    io::Write::write_all(&mut file, content)?;
    #[cfg(windows)]
    let file = {
        use std::os::windows::fs::OpenOptionsExt;
        use windows_sys::Win32::Storage::FileSystem::{
            FILE_FLAG_DELETE_ON_CLOSE, FILE_FLAG_OVERLAPPED,
        };
        let path = tempfile::NamedTempFile::new()?.into_temp_path().keep()?;
        std::fs::write(&path, content)?;
        let flags = match port.file_driver() {
            FileDriver::Overlapped => FILE_FLAG_DELETE_ON_CLOSE | FILE_FLAG_OVERLAPPED,
            _ => FILE_FLAG_DELETE_ON_CLOSE,
        };
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true);
        options.custom_flags(flags).open(&path)?
    };
    Ok(port.adopt_file(file)?)
}

/// All that is in a file.
fn content(file: &File) -> io::Result<Vec<u8>> {
    #[cfg(unix)]
    use std::os::unix::fs::FileExt;
    #[cfg(windows)]
    use std::os::windows::fs::FileExt;
    let mut content = vec![0; file.metadata()?.len() as usize];
    let mut begin = 0;
    while begin < content.len() {
        #[cfg(unix)]
        let count = file.read_at(&mut content[begin..], begin as u64)?;
        #[cfg(windows)]
        let count = file.seek_read(&mut content[begin..], begin as u64)?;
        assert_ne!(count, 0, "the file ends before its length");
        begin += count;
    }
    Ok(content)
}

#[track_caller]
fn completed(worker: &mut TestWorker) -> FileCompletion {
    match next(worker) {
        Event::Completed(completion) => completion,
        other => panic!("{other:?}"),
    }
}

/// Does one operation, and nothing else.
#[track_caller]
fn perform(
    port: &TestPort,
    worker: &mut TestWorker,
    operation: FileOperation,
) -> io::Result<FileCompletion> {
    let id = port.begin(operation)?;
    let completion = completed(worker);
    assert_eq!(completion.id, id);
    Ok(completion)
}

/// The same port, whose operations are done by helper threads.
fn threads(builder: Builder<TcpStream, u64>) -> Builder<TcpStream, u64> {
    builder.file_driver(FileDriver::Threads)
}

/// What is open and no file.
fn not_files() -> io::Result<Vec<File>> {
    #[cfg(unix)]
    {
        let (reader, writer) = rustix::pipe::pipe()?;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        let terminal = rustix::pty::openpt(rustix::pty::OpenptFlags::NOCTTY);
        let others = [reader, writer, socket.into()];
        let others = others.into_iter().chain(terminal.ok());
        Ok(others.map(File::from).collect())
    }
    #[cfg(windows)]
    Ok(vec![File::open("NUL")?])
}
