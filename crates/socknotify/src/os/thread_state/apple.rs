//! `thread_info`: the run state of a Mach thread.

#![allow(unsafe_code, reason = "threads are bare names of Mach ports")]
#![allow(deprecated, reason = "the replacement is a crate for these few calls")]

use libc::{mach_port_t, thread_basic_info};

use crate::os::Process;
use crate::os::thread_state::{Activity, Look};

unsafe extern "C" {
    fn mach_port_deallocate(task: mach_port_t, name: mach_port_t) -> libc::kern_return_t;
}

/// `<mach/message.h>`: the port is gone.
const MACH_SEND_INVALID_DEST: libc::kern_return_t = 0x1000_0003;

/// A thread of this process. It holds a right to the thread's port, so that no other port gets the name.
#[derive(Debug)]
pub(crate) struct Thread {
    process: Process,
    port: mach_port_t,
}

impl Thread {
    pub(crate) fn this(process: Process) -> Self {
        Thread {
            process,
            // SAFETY: it only returns a right.
            port: unsafe { libc::mach_thread_self() },
        }
    }
}

impl Look for Thread {
    fn activity(&self) -> Activity {
        // SAFETY: any bits are a value of the structure.
        let mut info: thread_basic_info = unsafe { std::mem::zeroed() };
        let mut count = libc::THREAD_BASIC_INFO_COUNT;
        let flavor = libc::THREAD_BASIC_INFO as libc::thread_flavor_t;
        // SAFETY: `info` has room for `count` integers, which are all that it consists of.
        let done =
            unsafe { libc::thread_info(self.port, flavor, (&raw mut info).cast(), &mut count) };
        match done {
            libc::KERN_SUCCESS => from_run_state(info.run_state),
            // The port of a thread that has ended is a dead name, or there is no thread behind it.
            MACH_SEND_INVALID_DEST | libc::KERN_TERMINATED | libc::KERN_INVALID_ARGUMENT => {
                Activity::Ended
            }
            _ => Activity::Unknown,
        }
    }
}

fn from_run_state(state: libc::integer_t) -> Activity {
    match state {
        // A stopped thread goes on where it was.
        libc::TH_STATE_RUNNING | libc::TH_STATE_STOPPED => Activity::Running,
        libc::TH_STATE_WAITING | libc::TH_STATE_UNINTERRUPTIBLE => Activity::Asleep,
        // It is being terminated.
        libc::TH_STATE_HALTED => Activity::Ended,
        _ => Activity::Unknown,
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // A forked child has names of its own.
        if self.process.is_this() {
            // SAFETY: the right is this value's, and not used any more.
            unsafe { mach_port_deallocate(libc::mach_task_self(), self.port) };
        }
    }
}
