//! The server's process: Unix.

use std::io;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

#[cfg(target_os = "linux")]
use crate::program::PROGRAM;
use crate::program::Server;

/// A backend that works wherever this system does.
pub(crate) const BACKEND: &str = match cfg!(all(target_os = "linux", not(kqueue_stand_in))) {
    true => "epoll",
    false => "kqueue",
};

pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    command.spawn()
}

pub(crate) fn interrupt(process: &Child) -> io::Result<()> {
    signal(process, Signal::INT)
}

fn signal(process: &Child, signal: Signal) -> io::Result<()> {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    kill_process(id.expect("a process has a number"), signal)?;
    Ok(())
}

impl Server {
    /// Starts it after a command of the shell, such as `ulimit`.
    #[cfg(target_os = "linux")]
    pub(crate) fn start_after(shell: &str, mode: &str, arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new("sh");
        let script = format!(r#"{shell} && exec "$0" "$@""#);
        command.args(["-c", &script, PROGRAM]);
        Self::spawn(command, mode, arguments)
    }

    pub(crate) fn signal(&self, which: Signal) -> io::Result<()> {
        signal(&self.process, which)
    }

    /// How many descriptors it has.
    #[cfg(target_os = "linux")]
    pub(crate) fn descriptors(&self) -> io::Result<usize> {
        Ok(self.open_files()?.len())
    }

    /// How many it has without those that the port keeps, one for each thread whose state it has looked at.
    #[cfg(target_os = "linux")]
    pub(crate) fn own_descriptors(&self) -> io::Result<usize> {
        let files = self.open_files()?;
        Ok(files
            .iter()
            .filter(|file| !file.starts_with("/proc"))
            .count())
    }

    #[cfg(target_os = "linux")]
    fn open_files(&self) -> io::Result<Vec<std::path::PathBuf>> {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.process.id()))?;
        let files =
            descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok());
        Ok(files.collect())
    }

    /// How much memory it has, in KiB: now, and at most so far.
    #[cfg(target_os = "linux")]
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
