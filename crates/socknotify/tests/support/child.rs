//! Forked children.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A child process. It is killed and waited for at the latest when this goes.
pub(crate) struct Child(Option<Pid>);

impl Child {
    /// Forks, and has the child do `work`, whose result is its exit status.
    pub(crate) fn fork(work: impl FnOnce() -> u8) -> io::Result<Child> {
        Child::fork_for(60, work)
    }

    /// The same. It is killed after so many seconds, more on an emulated processor.
    pub(crate) fn fork_for(seconds: u32, work: impl FnOnce() -> u8) -> io::Result<Child> {
        let seconds = if cfg!(emulated) {
            seconds * 10
        } else {
            seconds
        };
        // SAFETY: the child calls only what is safe in a signal handler, and the port, whose calls in
        // a forked child are what is tested.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: a number goes in, and the default action is to kill.
                unsafe { libc::alarm(seconds) };
                // A panic that leaves the only thread would end the child with success.
                let status = catch_unwind(AssertUnwindSafe(work)).unwrap_or(101);
                // SAFETY: it ends the child, and runs no destructor of what is the parent's.
                unsafe { libc::_exit(status.into()) }
            }
            child => Ok(Child(Pid::from_raw(child))),
        }
    }

    /// Forks a child that does nothing, and keeps what it has inherited.
    pub(crate) fn idle() -> io::Result<Child> {
        Child::fork(|| {
            loop {
                // SAFETY: it waits for a signal, and the one that comes kills it.
                unsafe { libc::pause() };
            }
        })
    }

    /// What the system calls it.
    pub(crate) fn number(&self) -> Pid {
        self.0.expect("it was not waited for")
    }

    /// The exit status, when it has come to its end by itself.
    pub(crate) fn status(mut self) -> Option<i32> {
        let child = self.0.take()?;
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).ok()??;
        status.exit_status()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
    }
}
