//! The access log, where it takes nothing, less than there is, or fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

    /// What was said of gaps so far.
    fn says_once(&self, reason: &str) -> io::Result<()> {
        eventually(reason, || Ok(self.errors()?.contains(reason)))?;
        assert_eq!(self.errors()?.lines().count(), 1, "{}", self.errors()?);
        Ok(())
    }

    /// Until so many lines are lost.
    fn loses(&self, lines: impl Fn(u64) -> bool) -> io::Result<()> {
        eventually("lines are lost", || {
            let stats = stats(self.server.address)?;
            Ok(lines(stats["unlogged"].as_u64().expect("a number")))
        })
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
    logged.ask(3000, 4000)?;
    logged.loses(|lost| lost > 0)?;
    logged.says_once("it takes less than there is")?;
    // Memory is bounded: it has what it keeps, and what a server has.
    assert!(logged.server.memory()?.1 < 64 << 10);
    let requests = logged.requests;
    let lost = logged.stop()?;
    let lines = BufReader::new(pipe).lines().count() as u64;
    // Besides the tests' own there are those that ask for statistics.
    assert!(lines + lost > requests, "{lines} + {lost}");
    assert!(lines > 0);
    Ok(())
}

#[test]
fn a_log_says_where_lines_are_missing_when_it_takes_some_again() -> io::Result<()> {
    let (mut logged, _, pipe) = start_with_pipe()?;
    logged.ask(3000, 4000)?;
    logged.says_once("it takes less than there is")?;
    let (mut next, mut missing) = (0, 0);
    for line in BufReader::new(pipe).lines() {
        let line = line?;
        if let Some(number) = number(&line) {
            assert_eq!(number, next);
            next += 1;
        } else {
            let gap = line.strip_prefix("# missing here: ");
            let gap = gap.and_then(|gap| gap.split_once(" line")?.0.parse::<u64>().ok());
            let gap = gap.unwrap_or_else(|| panic!("no gap: {line}"));
            // For most of these it has room again.
            logged.ask(10, 1)?;
            missing += gap;
            next += gap;
        }
        if next == logged.requests {
            break;
        }
    }
    assert!(missing > 0);
    assert_eq!(logged.stop()?, missing);
    Ok(())
}

#[test]
fn a_log_is_opened_again_though_its_reader_stands_still() -> io::Result<()> {
    let (mut logged, path, pipe) = start_with_pipe()?;
    // More than the pipe has room for.
    logged.ask(100, 4000)?;
    fs::rename(&path, path.with_extension("old"))?;
    logged.server.signal(Signal::HUP)?;
    eventually("it has the last line", || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        Ok(text.lines().filter_map(number).next_back() == Some(99))
    })?;
    let text = fs::read_to_string(&path)?;
    assert_eq!(logged.stop()?, 0);
    // None is missing, and each is whole.
    let before = BufReader::new(pipe).lines().count();
    assert!(text.lines().map(number).eq((before as u64..100).map(Some)));
    Ok(())
}

#[test]
fn a_reader_that_goes_is_said_once_and_another_one_hears_of_it() -> io::Result<()> {
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
    logged.loses(|lost| lost >= 4)?;
    logged.says_once("Broken pipe")?;
    let mut lines = BufReader::new(File::open(&path)?).lines();
    logged.ask(1, 1)?;
    let note = lines.next().expect("a line")?;
    let missing = note.strip_prefix("# missing here: ");
    let missing = missing.and_then(|it| it.strip_suffix(" lines")?.parse::<u64>().ok());
    assert!(missing.is_some_and(|missing| missing >= 4), "{note}");
    // What asked for statistics after that is not among them, nor what the writer had not in hand yet.
    let mut before = None;
    while before != Some(logged.requests - 1) {
        let line = lines.next().expect("a line")?;
        let number = number(&line);
        assert!(number.is_some() || line.contains("/stats"), "{line}");
        assert!(number.is_none() || number > before, "{line}");
        before = number.or(before);
    }
    assert_eq!(Some(logged.stop()?), missing);
    Ok(())
}

#[test]
fn a_full_disk_is_said_once_and_the_server_goes_on() -> io::Result<()> {
    let mut logged = start(tempfile::tempdir()?, Path::new("/dev/full"), GRACE)?;
    logged.ask(100, 1)?;
    logged.says_once("No space left on device")?;
    assert_eq!(logged.stop()?, 100);
    Ok(())
}

/// A disk of 16 KiB.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` where this process may not mount.
    fn mount() -> io::Result<Option<Self>> {
        let directory = tempfile::tempdir()?;
        let mount = |directory: &Path| {
            let tool = ["-t", "tmpfs", "-o", "size=16k", "tmpfs"];
            started(|| Command::new("mount").args(tool).arg(directory).output())
        };
        if !mount(directory.path())?.status.success() {
            eprintln!("skipped: cannot mount");
            return Ok(None);
        }
        Ok(Some(SmallDisk(directory)))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It is left behind otherwise.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_with_room_again_has_whole_lines() -> io::Result<()> {
    let Some(disk) = SmallDisk::mount()? else {
        return Ok(());
    };
    let (log, other) = (disk.0.path().join("log"), disk.0.path().join("other"));
    fs::write(&other, [0; 8192])?;
    let mut logged = start(tempfile::tempdir()?, &log, GRACE)?;
    logged.ask(200, 100)?;
    logged.says_once("No space left on device")?;
    fs::remove_file(&other)?;
    logged.ask(1, 100)?;
    let requests = logged.requests;
    let lost = logged.stop()?;
    let text = fs::read_to_string(&log)?;
    let whole = |line: &&str| line.ends_with("\" 200 14");
    let lines = text.lines().filter(whole).count() as u64;
    assert_eq!(lines + lost, requests, "{text}");
    // One line is torn: the disk was full within it. There may be more gaps than one.
    let mut others = text.lines().filter(|line| !whole(line));
    assert!(
        others
            .next()
            .is_some_and(|torn| torn.starts_with("127.0.0.1 ")),
        "{text}"
    );
    let missing = others.map(|note| {
        let count = note.strip_prefix("# missing here: ")?;
        count.strip_suffix(" lines")?.parse::<u64>().ok()
    });
    assert_eq!(missing.sum::<Option<u64>>(), Some(lost), "{text}");
    assert_eq!(text.lines().last().and_then(number), Some(requests - 1));
    Ok(())
}

#[test]
fn no_line_is_lost_at_an_ordinary_end() -> io::Result<()> {
    const REQUESTS: u64 = 20_000;
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
    for log in [
        &directory.path().join("nowhere/log"),
        &socket,
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
