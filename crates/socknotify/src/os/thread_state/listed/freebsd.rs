use libc::{c_int, lwpid_t};

use crate::os::thread_state::Activity;

pub(super) type Entry = libc::kinfo_proc;

/// `SLOCK` is a wait for a lock of the kernel.
pub(super) fn look(entry: &Entry) -> Activity {
    match entry.ki_stat {
        // A stopped thread goes on where it was.
        libc::SRUN | libc::SIDL | libc::SSTOP => Activity::Running,
        libc::SSLEEP | libc::SLOCK => Activity::Asleep,
        libc::SZOMB => Activity::Ended,
        _ => Activity::Unknown,
    }
}

pub(super) fn id(entry: &Entry) -> lwpid_t {
    entry.ki_tid
}

pub(super) fn this_id() -> lwpid_t {
    // SAFETY: it only returns a number, which the C library knows.
    unsafe { libc::pthread_getthreadid_np() }
}

pub(super) fn list_name(_room: usize) -> [c_int; 4] {
    let of_threads = libc::KERN_PROC_PID | libc::KERN_PROC_INC_THREAD;
    let process = std::process::id() as c_int;
    [libc::CTL_KERN, libc::KERN_PROC, of_threads, process]
}
