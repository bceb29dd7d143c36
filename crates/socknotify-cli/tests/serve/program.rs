//! The server as a process of its own.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::system;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_socknotify");

/// How long anything may take on a machine that is very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `socknotify serve`. It is killed if a test does not get to its end.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
    /// The address that it listens at, if that has a port.
    pub(crate) address: SocketAddr,
}

/// The address of a server at a Unix socket.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Server {
    pub(crate) fn start(mode: &str, arguments: &[&str]) -> io::Result<Self> {
        Self::spawn(Command::new(PROGRAM), mode, arguments)
    }

    pub(crate) fn spawn(command: Command, mode: &str, arguments: &[&str]) -> io::Result<Self> {
        Self::spawn_at("127.0.0.1:0", command, mode, arguments)
    }

    pub(crate) fn spawn_at(
        endpoint: &str,
        mut command: Command,
        mode: &str,
        arguments: &[&str],
    ) -> io::Result<Self> {
        command
            .args(["serve", "--listen", endpoint, "--mode", mode])
            .args(arguments)
            .stdout(Stdio::piped());
        let mut process = system::spawn(command)?;
        let mut stdout = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let name = line.strip_prefix("listening on ").map(str::trim_end);
        let address = match name {
            Some(name) if name == endpoint => NO_ADDRESS,
            _ => name
                .and_then(|name| name.parse().ok())
                .unwrap_or_else(|| panic!("no address: {line}")),
        };
        Ok(Server {
            process,
            stdout,
            address,
        })
    }

    /// As Ctrl-C does.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        system::interrupt(&self.process)
    }

    /// Waits for its end. How it ended, and what it said at last.
    pub(crate) fn ended(mut self) -> io::Result<(ExitStatus, String)> {
        let mut status = None;
        eventually("the server ends", || {
            status = self.process.try_wait()?;
            Ok(status.is_some())
        })?;
        let mut summary = String::new();
        self.stdout.read_to_string(&mut summary)?;
        Ok((status.expect("it has ended"), summary))
    }

    /// Interrupts it, and sees to it that it ends well.
    pub(crate) fn stop(self) -> io::Result<String> {
        self.interrupt()?;
        let (status, summary) = self.ended()?;
        assert_eq!(status.code(), Some(0), "{summary}");
        Ok(summary)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs again, twice at most, what a busy machine spoils if it holds up a process for long.
pub(crate) fn one_of_three(run: impl Fn() -> io::Result<()>) -> io::Result<()> {
    run().or_else(|_| run()).or_else(|_| run())
}

/// Looks until it is so.
pub(crate) fn eventually(
    what: &str,
    mut is_so: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let start = Instant::now();
    while !is_so()? {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
