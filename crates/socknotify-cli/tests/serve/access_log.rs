//! The access log, where it takes nothing, less than there is, or fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::clients::{HttpClient, stats};
use crate::program::{PROGRAM, Server, eventually};
use crate::support::started;

/// Less than the least time that a server has for its end after what it was told.
const GRACE: &[&str] = &["--grace", "0.5"];

/// A server with an access log, and where both say something.
struct Logged {
    server: Server,
    client: HttpClient,
    directory: TempDir,
    /// How many requests were answered.
    requests: u64,
}

fn start(directory: TempDir, log: &Path, arguments: &[&str]) -> io::Result<Logged> {
    let mut command = Command::new(PROGRAM);
    command.stderr(File::create(directory.path().join("errors"))?);
    let log = ["--access-log", log.to_str().expect("a name")];
    let server = Server::spawn(command, "http", &[&log, arguments].concat())?;
    Ok(Logged {
        client: HttpClient::connect(server.address)?,
        server,
        directory,
        requests: 0,
    })
}

/// One whose log is a pipe, with that pipe and its other end.
fn start_with_pipe() -> io::Result<(Logged, PathBuf, File)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0)?;
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut options = OpenOptions::new();
    let pipe = options.read(true).custom_flags(flags).open(&path)?;
    let logged = start(directory, &path, GRACE)?;
    // From here on a read waits.
    rustix::fs::fcntl_setfl(&pipe, OFlags::empty())?;
    Ok((logged, path, pipe))
}

impl Logged {
    /// Asks for paths that end with their number, from 0 on.
    fn ask(&mut self, times: u64, length: usize) -> io::Result<()> {
        for _ in 0..times {
            let path = format!("/{}/{}", "x".repeat(length), self.requests);
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(self.client.request(&request)?.status, 200);
            self.requests += 1;
        }
        Ok(())
    }

    fn errors(&self) -> io::Result<String> {
        fs::read_to_string(self.directory.path().join("errors"))
    }

    /// Ends it. How many lines were lost in all.
    fn stop(self) -> io::Result<u64> {
        drop(self.client);
        let summary = self.server.stop()?;
        let lost = summary
            .lines()
            .find_map(|line| line.strip_prefix("not logged"));
        Ok(lost.map_or(0, |lost| lost.trim().parse().expect("a number")))
    }
}

/// The number of the request that a line is about.
fn number(line: &str) -> Option<u64> {
    let (path, _) = line.split_once(" HTTP/1.1\" ")?;
    path.rsplit('/').next()?.parse().ok()
}

#[test]
fn a_reader_that_stands_still_keeps_neither_threads_nor_the_end() -> io::Result<()> {
    let (mut logged, _, pipe) = start_with_pipe()?;
    // More than the pipe and the server have room for.
    logged.ask(10_000, 4000)?;
    eventually("lines are lost", || {
        let stats = stats(logged.server.address)?;
        Ok(stats["not_logged"].as_u64() > Some(0))
    })?;
    // Memory is bounded: it has what it keeps, and what a server has.
    assert!(logged.server.memory()?.1 < 96 << 10);
    let lost = logged.stop()?;
    assert!(lost > 0);
    drop(pipe);
    Ok(())
}

#[test]
fn a_log_is_opened_again_though_its_reader_stands_still() -> io::Result<()> {
    let (mut logged, path, pipe) = start_with_pipe()?;
    // More than the pipe has room for: a write waits.
    logged.ask(100, 4000)?;
    fs::rename(&path, path.with_extension("old"))?;
    logged.server.signal(Signal::HUP)?;
    eventually("there is a new one", || Ok(path.exists()))?;
    // What was in hand goes where it began to, and what follows to the new one.
    let before = thread::spawn(move || BufReader::new(pipe).lines().count() as u64);
    logged.ask(1, 1)?;
    eventually("it has the last line", || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        Ok(text.lines().filter_map(number).next_back() == Some(100))
    })?;
    let text = fs::read_to_string(&path)?;
    assert_eq!(logged.stop()?, 0);
    // None is missing, and each is whole.
    let before = before.join().expect("no panic");
    assert!(
        text.lines().map(number).eq((before..101).map(Some)),
        "{before}: {text}"
    );
    Ok(())
}

#[test]
fn a_reader_that_goes_is_said_once_and_another_one_is_written_to() -> io::Result<()> {
    let (mut logged, path, first) = start_with_pipe()?;
    logged.ask(1, 1)?;
    let mut first = BufReader::new(first);
    first.read_line(&mut String::new())?;
    drop(first);
    // A process that another test starts may have it for a moment.
    eventually("it is said", || {
        logged.ask(1, 1)?;
        Ok(logged.errors()?.contains("Broken pipe"))
    })?;
    logged.ask(3, 1)?;
    let second = File::open(&path)?;
    logged.ask(1, 1)?;
    let last = logged.requests - 1;
    let mut lines = BufReader::new(second).lines();
    while number(&lines.next().expect("a line")?) != Some(last) {}
    assert_eq!(logged.errors()?.lines().count(), 1, "{}", logged.errors()?);
    assert!(logged.stop()? >= 1);
    Ok(())
}

#[test]
fn a_full_disk_is_said_once_and_the_server_goes_on() -> io::Result<()> {
    let mut logged = start(tempfile::tempdir()?, Path::new("/dev/full"), GRACE)?;
    logged.ask(100, 1)?;
    eventually("it is said", || {
        Ok(logged.errors()?.contains("No space left on device"))
    })?;
    assert_eq!(logged.errors()?.lines().count(), 1, "{}", logged.errors()?);
    assert_eq!(logged.stop()?, 100);
    Ok(())
}

#[test]
fn no_line_is_lost_at_an_ordinary_end() -> io::Result<()> {
    // As many lines as may wait, however late the thread is that writes them.
    const REQUESTS: u64 = 8000;
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    let mut logged = start(directory, &log, &[])?;
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    for requests in requests.chunks(1000) {
        logged.client.send(&requests.concat())?;
        for _ in requests {
            logged.client.answer()?;
        }
    }
    drop(logged.client);
    let summary = logged.server.stop()?;
    assert!(!summary.contains("not logged"), "{summary}");
    let text = fs::read_to_string(log)?;
    assert_eq!(text.lines().count() as u64, REQUESTS);
    for (line, expected) in text.lines().zip(0..) {
        assert_eq!(number(line), Some(expected), "{line}");
    }
    Ok(())
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error_at_the_start() -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket)?;
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0)?;
    for log in [
        &directory.path().join("nowhere/log"),
        &socket,
        // Nobody reads it.
        &pipe,
        directory.path(),
    ] {
        let mut program = Command::new(PROGRAM);
        let arguments = ["serve", "--mode", "http", "--listen", "127.0.0.1:0"];
        program.args(arguments).arg("--access-log").arg(log);
        let output = started(|| program.output())?;
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(&*log.to_string_lossy()), "{message}");
    }
    Ok(())
}

#[test]
fn the_signal_to_open_the_log_again_ends_no_server_without_one() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(crate::clients::GET)?;
    server.signal(Signal::HUP)?;
    client.request(crate::clients::GET)?;
    // It has the signal by now.
    server.signal(Signal::HUP)?;
    client.request(crate::clients::GET)?;
    drop(client);
    let summary = server.stop()?;
    assert!(summary.contains("requests                  3"), "{summary}");
    Ok(())
}
