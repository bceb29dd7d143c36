use libc::{c_int, lwpid_t};

use crate::os::thread_state::Activity;

pub(super) type Entry = libc::kinfo_lwp;

pub(super) fn look(entry: &Entry) -> Activity {
    match c_int::from(entry.l_stat) {
        // A stopped thread goes on where it was.
        libc::LSRUN | libc::LSONPROC | libc::LSIDL | libc::LSSTOP | libc::LSSUSPENDED => {
            Activity::Running
        }
        libc::LSSLEEP => Activity::Asleep,
        libc::LSZOMB => Activity::Ended,
        _ => Activity::Unknown,
    }
}

pub(super) fn id(entry: &Entry) -> lwpid_t {
    entry.l_lid
}

pub(super) fn this_id() -> lwpid_t {
    // SAFETY: it only returns a number, which the C library knows.
    unsafe { libc::_lwp_self() }
}

pub(super) fn list_name(room: usize) -> [c_int; 5] {
    let process = std::process::id() as c_int;
    let size = size_of::<Entry>() as c_int;
    [libc::CTL_KERN, libc::KERN_LWP, process, size, room as c_int]
}
