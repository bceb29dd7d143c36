//! [`Stopwatch`]: wall time and CPU time of the same work.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::compare::Sample;

/// Runs from its creation on.
pub(crate) struct Stopwatch {
    clock: ClockId,
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    /// CPU time is that of the calling thread, which also reads the result.
    pub(crate) fn of_thread() -> Self {
        Self::start(ClockId::ThreadCPUTime)
    }

    /// CPU time is that of all threads of this process, ended ones included.
    pub(crate) fn of_process() -> Self {
        Self::start(ClockId::ProcessCPUTime)
    }

    fn start(clock: ClockId) -> Self {
        Stopwatch {
            clock,
            wall: Instant::now(),
            cpu: read(clock),
        }
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Duration {
        read(self.clock) - self.cpu
    }

    /// Wall time and CPU time so far in nanoseconds, for each of this many notifications.
    pub(crate) fn per(&self, notifications: usize) -> Sample {
        let each = |time: Duration| time.as_nanos() as f64 / notifications as f64;
        let cpu = self.cpu();
        Sample::from([
            ("wall_ns", each(self.wall.elapsed())),
            ("cpu_ns", each(cpu)),
        ])
    }
}

/// `clock_gettime`
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
