//! What the simulation says of its threads.

use std::simulation;

use crate::os::Process;
use crate::os::thread_state::{Activity, Look};

#[derive(Debug)]
pub(crate) struct Thread(Option<usize>);

impl Thread {
    pub(crate) fn this(_: Process) -> Self {
        Thread(simulation::this_thread())
    }
}

impl Look for Thread {
    fn activity(&self) -> Activity {
        match self.0.map(simulation::activity) {
            Some(simulation::Activity::Running) => Activity::Running,
            Some(simulation::Activity::Asleep) => Activity::Asleep,
            Some(simulation::Activity::Ended) => Activity::Ended,
            None => Activity::Unknown,
        }
    }
}
