//! The end of the server.

use std::io;
use std::net::TcpStream;

use crate::clients::{GET, HttpClient};
use crate::program::Server;
#[cfg(unix)]
use crate::program::eventually;

/// As long as anything may take: for servers that have to finish something.
const LONG: &str = "60";

/// A client between requests, and one within a request; the server knows both.
fn two_clients(server: &Server) -> io::Result<(HttpClient, HttpClient)> {
    let mut idle = HttpClient::connect(server.address)?;
    idle.request(GET)?;
    let mut busy = HttpClient::connect(server.address)?;
    // The answer to the first one tells that what has come with it was seen.
    busy.request(&format!("{GET}GET / HTTP/1.1\r\n"))?;
    Ok((idle, busy))
}

#[test]
fn what_has_begun_is_finished_and_idle_clients_are_let_go() -> io::Result<()> {
    let server = Server::start("http", &["--grace", LONG])?;
    let (mut idle, mut busy) = two_clients(&server)?;
    server.interrupt()?;
    assert!(idle.is_at_end()?);
    let answer = busy.request("Host: a\r\n\r\n")?;
    assert_eq!(answer.body, "Hello, world!\n");
    assert!(answer.has("Connection: close"), "{answer:?}");
    assert!(busy.is_at_end()?);
    let address = server.address;
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert!(summary.contains("requests                  3"), "{summary}");
    assert!(TcpStream::connect(address).is_err());
    Ok(())
}

/// It takes a process that is stopped for a while.
#[cfg(unix)]
#[test]
fn requests_that_have_come_before_the_end_are_answered() -> io::Result<()> {
    let server = Server::start("http", &["--threads", "1", "--grace", LONG])?;
    let mut clients = Vec::new();
    for _ in 0..400 {
        let mut client = HttpClient::connect(server.address)?;
        client.request(GET)?;
        clients.push(client);
    }
    // It finds the requests and the signal at the same time.
    server.signal(rustix::process::Signal::STOP)?;
    for client in &mut clients {
        client.send(GET)?;
    }
    server.interrupt()?;
    // By then it is time for it to look for a signal. If it is not, the test shows less.
    std::thread::sleep(std::time::Duration::from_millis(100));
    server.signal(rustix::process::Signal::CONT)?;
    for client in &mut clients {
        assert_eq!(client.answer()?.status, 200);
        assert!(client.is_at_end()?);
    }
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert!(summary.contains("requests                800"), "{summary}");
    Ok(())
}

#[test]
fn what_is_not_finished_in_time_is_cut_off() -> io::Result<()> {
    let server = Server::start("http", &["--grace", "2"])?;
    let (_idle, mut busy) = two_clients(&server)?;
    let summary = server.stop()?;
    assert!(busy.is_at_end()?, "{summary}");
    Ok(())
}

/// The process is gone by the grace and a second, whatever clients do: these are sent something, and do not close.
#[cfg(unix)]
#[test]
fn clients_that_stay_do_not_keep_the_end() -> io::Result<()> {
    use std::time::{Duration, Instant};

    crate::program::one_of_three(|| {
        let server = Server::start("http", &["--grace", "0.2"])?;
        let (_idle, _busy) = two_clients(&server)?;
        let begin = Instant::now();
        let summary = server.stop()?;
        let time = begin.elapsed();
        match time < Duration::from_millis(1200) {
            true => Ok(()),
            false => Err(io::Error::other(format!("it took {time:?}: {summary}"))),
        }
    })
}

/// Until then the server drains, and the listener is closed.
#[cfg(unix)]
fn until_draining(server: &Server) -> io::Result<()> {
    eventually("it accepts nothing more", || {
        Ok(TcpStream::connect(server.address).is_err())
    })
}

/// It takes a process that is stopped for a while.
#[cfg(unix)]
#[test]
fn what_has_come_before_the_end_is_echoed() -> io::Result<()> {
    use std::io::{Read, Write};

    // Much more than is received at once, and little enough to be there before it is read.
    const LENGTH: usize = 500_000;
    let server = Server::start("echo", &["--threads", "1", "--grace", LONG])?;
    let mut client = crate::clients::connect(server.address)?;
    client.write_all(b"x")?;
    client.read_exact(&mut [0])?;
    // It does not read, and so finds out what the server has kept.
    client.write_all(&[b'x'; LENGTH])?;
    // What the client's system still has has not come.
    eventually("all of it has come", || {
        Ok(!matches!(
            socknotify::owned::unacknowledged(&client),
            Some(1..)
        ))
    })?;
    server.interrupt()?;
    until_draining(&server)?;
    let mut echoed = Vec::new();
    client.read_to_end(&mut echoed)?;
    assert_eq!(echoed.len(), LENGTH);
    drop(client);
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    Ok(())
}

/// Windows has no such signal.
#[cfg(unix)]
#[test]
fn what_a_service_manager_sends_ends_it_in_order() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    server.signal(rustix::process::Signal::TERM)?;
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    Ok(())
}

/// How often the threads of a process have gone to sleep.
#[cfg(target_os = "linux")]
pub(crate) fn wake_ups(id: u32) -> io::Result<u64> {
    let mut wakes = 0;
    for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        wakes += line
            .and_then(|line| line.trim().parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(wakes)
}

#[cfg(target_os = "linux")]
#[test]
fn an_idle_server_does_not_wake() -> io::Result<()> {
    use std::time::Duration;

    let server = Server::start("http", &["--threads", "2"])?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(GET)?;
    let id = server.process.id();
    // Threads may still be on their way to their waits.
    let mut before = wake_ups(id)?;
    eventually("half a second without a wake-up", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = wake_ups(id)?;
        Ok(std::mem::replace(&mut before, now) == now)
    })?;
    drop(client);
    server.stop()?;
    Ok(())
}

#[test]
fn a_second_interrupt_ends_it_at_once() -> io::Result<()> {
    let server = Server::start("http", &["--grace", LONG])?;
    let (mut idle, _busy) = two_clients(&server)?;
    server.interrupt()?;
    assert!(idle.is_at_end()?);
    server.interrupt()?;
    let (status, summary) = server.ended()?;
    assert_eq!((status.code(), &*summary), (Some(130), ""));
    Ok(())
}

/// A pipe that the access log goes to, and its other end.
#[cfg(target_os = "linux")]
fn log_to_pipe(directory: &tempfile::TempDir) -> io::Result<(std::path::PathBuf, std::fs::File)> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let path = directory.path().join("log");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    // For both, so that it need not wait for the server.
    let options = std::fs::File::options().read(true).write(true).open(&path);
    Ok((path, options?))
}

/// Nobody reads the access log: clients are answered, lines that find no room are counted, and a signal ends the server.
#[cfg(target_os = "linux")]
#[test]
fn an_access_log_that_nobody_reads_keeps_nobody_waiting() -> io::Result<()> {
    const REQUESTS: usize = 10_000;
    let directory = tempfile::tempdir()?;
    let (path, reader) = log_to_pipe(&directory)?;
    let log = path.to_str().expect("a name");
    let server = Server::start("http", &["--grace", "2", "--access-log", log])?;
    let mut client = HttpClient::connect(server.address)?;
    // More than a pipe and the log's memory have room for.
    let long = GET.replace("GET / ", &format!("GET /?{} ", "a".repeat(300)));
    for _ in 0..REQUESTS {
        assert_eq!(client.request(&long)?.status, 200);
    }
    // The thread that writes it is stuck, and is to open it again.
    server.signal(rustix::process::Signal::HUP)?;
    client.request(GET)?;
    drop(client);
    server.interrupt()?;
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert!(summary.contains("not logged"), "{summary}");
    assert!(summary.contains("requests              10001"), "{summary}");
    drop(reader);
    Ok(())
}

/// The one that read the access log has gone when it is to be opened again.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_is_obeyed_though_nobody_has_the_access_log_open() -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let (path, reader) = log_to_pipe(&directory)?;
    let log = path.to_str().expect("a name");
    let server = Server::start("http", &["--access-log", log])?;
    drop(reader);
    server.signal(rustix::process::Signal::HUP)?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(GET)?;
    drop(client);
    let summary = server.stop()?;
    assert!(summary.contains("not logged                1"), "{summary}");
    Ok(())
}

/// A terminal that is closed, or a service manager that has it read its configuration again.
#[cfg(unix)]
#[test]
fn a_hang_up_ends_no_server() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(GET)?;
    server.signal(rustix::process::Signal::HUP)?;
    for _ in 0..100 {
        client.request(GET)?;
    }
    drop(client);
    server.stop()?;
    Ok(())
}

/// The signal may come before it serves.
#[test]
fn a_server_may_be_told_to_end_as_soon_as_it_listens() -> io::Result<()> {
    for mode in ["echo", "udp-echo", "http"] {
        for _ in 0..10 {
            let summary = Server::start(mode, &[])?.stop()?;
            assert_eq!(summary, "requests                  0\n");
        }
    }
    Ok(())
}
