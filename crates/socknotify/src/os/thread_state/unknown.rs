//! Nothing can be seen, nor is anything in the model checker.
//!
//! OpenBSD counts another thread's processor time only up to when the thread got its processor, so a thread that
//! computes seems to stand still; and it kills a process that has pledged not to list processes, and lists its own.
//! On DragonFly it was not tried.

use crate::os::Process;
use crate::os::thread_state::{Activity, Look};

#[derive(Debug)]
pub(crate) struct Thread;

impl Thread {
    pub(crate) fn this(_: Process) -> Self {
        Thread
    }
}

impl Look for Thread {
    fn activity(&self) -> Activity {
        Activity::Unknown
    }
}
