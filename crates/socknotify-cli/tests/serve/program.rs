//! The server as a process of its own.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_socknotify");

/// How long anything may take on a machine that is very busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `socknotify serve`. It is killed if a test does not get to its end.
pub(crate) struct Server {
    process: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(mode: &str, arguments: &[&str]) -> io::Result<Self> {
        Self::spawn(Command::new(PROGRAM), mode, arguments)
    }

    /// Starts it after a command of the shell, such as `ulimit`.
    pub(crate) fn start_after(shell: &str, mode: &str, arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new("sh");
        let script = format!(r#"{shell} && exec "$0" "$@""#);
        command.args(["-c", &script, PROGRAM]);
        Self::spawn(command, mode, arguments)
    }

    fn spawn(mut command: Command, mode: &str, arguments: &[&str]) -> io::Result<Self> {
        let mut process = command
            .args(["serve", "--listen", "127.0.0.1:0", "--mode", mode])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = BufReader::new(process.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let address = line
            .strip_prefix("listening on ")
            .and_then(|address| address.trim_end().parse().ok())
            .unwrap_or_else(|| panic!("no address: {line}"));
        Ok(Server {
            process,
            stdout,
            address,
        })
    }

    pub(crate) fn interrupt(&self) -> io::Result<()> {
        self.signal(Signal::INT)
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let id = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        kill_process(id.expect("a process has a number"), signal)?;
        Ok(())
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

    /// How many descriptors it has.
    pub(crate) fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.process.id()))?.count())
    }

    /// How much memory it has, in KiB: now, and at most so far.
    pub(crate) fn memory(&self) -> io::Result<(u64, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let value = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().split(' ').next()?.parse().ok())
                .unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        Ok((value("VmRSS:"), value("VmHWM:")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
