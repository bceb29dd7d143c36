//! The state of a thread in `/proc`.

#![allow(unsafe_code, reason = "thread ids are bare numbers")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::thread::gettid;

use crate::os::Process;
use crate::os::thread_state::{Activity, Description, Look};

/// A thread of this process.
#[derive(Debug)]
pub(crate) struct Thread {
    id: libc::pid_t,
    /// Opened at the first look that can. The kernel ties it to the thread, not to the number: when another thread
    /// gets that, reading fails all the same.
    stat: OnceLock<File>,
}

impl Thread {
    pub(crate) fn this(_: Process) -> Self {
        Thread {
            id: gettid().as_raw_pid(),
            stat: OnceLock::new(),
        }
    }
}

impl Look for Thread {
    /// What `/proc` says of it, if that shows this process.
    fn describe(&self) -> Description {
        let shows = shows_this_process();
        let read = |file| {
            let path = format!("/proc/self/task/{}/{file}", self.id);
            shows.then(|| fs::read_to_string(path).ok()).flatten()
        };
        let call = read("syscall").and_then(|line| line.split(' ').next()?.trim().parse().ok());
        Description {
            id: self.id.try_into().ok(),
            name: read("comm").map(|name| name.trim_end_matches('\n').to_owned()),
            system_call: call.and_then(name_of),
        }
    }

    /// `tgkill` — If its number is another thread's by now, that is not seen before a look has opened its state.
    fn has_ended(&self) -> bool {
        if let Some(stat) = self.stat.get() {
            return read(stat) == Activity::Ended;
        }
        // SAFETY: without a signal it only says whether the thread is there.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), self.id, 0) };
        sent < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }

    /// Unknown if `/proc` does not show the state, now or at all.
    fn activity(&self) -> Activity {
        if let Some(stat) = self.stat.get() {
            return read(stat);
        }
        match File::open(format!("/proc/self/task/{}/stat", self.id)) {
            Ok(stat) if shows_this_process() => read(self.stat.get_or_init(|| stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && shows_this_process() => {
                Activity::Ended
            }
            _ => Activity::Unknown,
        }
    }
}

/// The system calls in which threads wait, with the kernel's names.
const CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_futex, "futex"),
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_preadv2, "preadv2"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    #[cfg(any(target_arch = "x86_64", target_arch = "x86", target_arch = "arm"))]
    (libc::SYS_poll, "poll"),
    #[cfg(any(target_arch = "x86_64", target_arch = "x86", target_arch = "arm"))]
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    // With times of 64 bits, where those above have 32; the numbers are the same on all such processors.
    #[cfg(target_pointer_width = "32")]
    (407, "clock_nanosleep"),
    #[cfg(target_pointer_width = "32")]
    (413, "pselect6"),
    #[cfg(target_pointer_width = "32")]
    (414, "ppoll"),
    #[cfg(target_pointer_width = "32")]
    (422, "futex"),
];

fn name_of(call: libc::c_long) -> Option<&'static str> {
    let mut calls = CALLS.iter();
    calls.find(|it| it.0 == call).map(|it| it.1)
}

/// Whether `/proc` is there, and of the same PID namespace, so that its thread ids are those that the process knows.
fn shows_this_process() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&std::process::id().to_string()))
        && fs::exists(format!("/proc/self/task/{}", gettid().as_raw_pid())).unwrap_or(false)
}

fn read(stat: &File) -> Activity {
    // The state comes after the id and a name of at most 64 bytes.
    let mut line = [0; 128];
    match stat.read_at(&mut line, 0) {
        Ok(length) => from_stat(&line[..length]),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Activity::Ended,
        Err(_) => Activity::Unknown,
    }
}

/// The state in a line such as `12 (name) S 1 …`. The name can contain anything; what follows it is numbers.
fn from_stat(line: &[u8]) -> Activity {
    let name_end = line.iter().rposition(|&byte| byte == b')');
    match name_end.and_then(|end| line.get(end + 2)) {
        // Stopped threads, too: they go on where they were. `W` is one that was just woken, in kernels before 3.14.
        Some(b'R' | b'T' | b't' | b'W') => Activity::Running,
        Some(b'S' | b'D' | b'I' | b'P' | b'K') => Activity::Asleep,
        Some(b'Z' | b'X' | b'x') => Activity::Ended,
        _ => Activity::Unknown,
    }
}

#[cfg(test)]
#[path = "linux/tests.rs"]
mod tests;
