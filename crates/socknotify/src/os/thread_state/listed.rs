//! `sysctl`: the kernel's list of the threads of this process, with their states.
//!
//! Another thread's processor time would not do: FreeBSD counts it only up to when the thread got its processor, so a
//! thread that computes seems to stand still.

#![allow(unsafe_code, reason = "the kernel fills in a list")]

#[cfg_attr(target_os = "freebsd", path = "listed/freebsd.rs")]
#[cfg_attr(target_os = "netbsd", path = "listed/netbsd.rs")]
mod system;

use std::ptr;

use self::system::{Entry, id, list_name, look, this_id};
use crate::os::Process;
use crate::os::calls::{Errno, outcome};
use crate::os::thread_state::{Activity, Look};

/// A thread of this process.
#[derive(Debug)]
pub(crate) struct Thread {
    id: libc::lwpid_t,
}

impl Thread {
    pub(crate) fn this(_: Process) -> Self {
        Thread { id: this_id() }
    }
}

impl Look for Thread {
    /// Its cost grows with the number of threads of the process: the kernel lists them all.
    fn activity(&self) -> Activity {
        let Ok(threads) = list() else {
            return Activity::Unknown;
        };
        let look_at = |thread| threads.iter().find(|entry| id(entry) == thread).map(look);
        // The calling thread runs. If the list does not say so, it cannot be trusted.
        if look_at(this_id()) != Some(Activity::Running) {
            return Activity::Unknown;
        }
        look_at(self.id).unwrap_or(Activity::Ended)
    }
}

/// `sysctl` — The threads of this process.
fn list() -> Result<Vec<Entry>, Errno> {
    let mut room = 32;
    loop {
        let mut entries = Vec::<Entry>::with_capacity(room);
        let name = list_name(room);
        let mut size = room * size_of::<Entry>();
        // SAFETY: `entries` has room for `size` bytes, and `name` for its length; both outlive the call.
        let done = outcome(unsafe {
            let to = entries.as_mut_ptr().cast();
            libc::sysctl(
                name.as_ptr(),
                name.len() as u32,
                to,
                &mut size,
                ptr::null(),
                0,
            )
        });
        match done {
            Ok(_) => {
                // SAFETY: the kernel has filled so many bytes, and any bits are an entry.
                unsafe { entries.set_len(size / size_of::<Entry>()) };
                return Ok(entries);
            }
            Err(libc::ENOMEM) if room < 1 << 16 => room *= 2,
            Err(error) => return Err(error),
        }
    }
}
