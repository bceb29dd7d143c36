//! [`Backend`]: what the engine needs of a readiness interface; and the values that pass between the two.

use std::time::Duration;

use super::table::interest::{ArmError, Interest};
use super::table::{Outcome, Report, Table};
use super::threads::ThisThread;
use crate::os::Fd;
use crate::support::sync::LocalKey;
use crate::{Entry, Error, EventFilter, RegistrationError};

/// An interest that a call arms, and what became of it.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every backend keeps sockets armed")]
pub(crate) struct Arm {
    pub(crate) interest: Interest,
    /// It is armed already. What holds by now the system may have reported earlier: only find out whether it is ready. If
    /// the port does not own it, its number may refer to something else by now: only arming it shows that.
    pub(crate) is_armed: bool,
    /// Which entry of the batch asked for it; [`NO_ENTRY`](Self::NO_ENTRY) for a level-triggered registration that is
    /// armed again, [`POLLED`](Self::POLLED) for one of [`Polls`](super::serve::Polls).
    pub(super) entry: u32,
    /// What became of it, if it was not [armed](Outcome::Armed).
    pub(crate) outcome: Outcome,
}

impl Arm {
    pub(super) const NO_ENTRY: u32 = u32::MAX;
    pub(super) const POLLED: u32 = u32::MAX - 1;
}

/// Where a wait puts what it has to report.
pub(crate) trait Reports {
    fn add(&mut self, report: Report);
}

/// For a wait that reports nothing.
impl Reports for () {
    fn add(&mut self, _: Report) {}
}

/// How long a wait may take, and how many reports it may return.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every backend finds something when it arms")]
pub(crate) struct Wait {
    /// The maximum number of reports. 0: only arm; what is found ready is reported by the next wait, of any thread.
    pub(crate) room: usize,
    /// `None`: for ever. Zero also if anything of the batch is ready, or could not be armed.
    pub(crate) timeout: Option<Duration>,
    /// What the batch finds ready may be reported without asking the system for more.
    pub(crate) may_skip: bool,
    /// The last wait had no room for all that the system had: so it is asked first.
    pub(crate) has_more: bool,
}

impl Wait {
    /// No longer than this time, and no longer than until what was refused, perhaps for want of memory, is to be tried again.
    pub(crate) fn until_retry(timeout: Option<Duration>) -> Option<Duration> {
        const RETRY: Duration = Duration::from_millis(2);
        Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY)))
    }

    /// Only arm.
    pub(super) const ARM: Wait = Wait {
        room: 0,
        timeout: Some(Duration::ZERO),
        may_skip: false,
        has_more: false,
    };
}

/// What a wait came back with besides reports.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    /// The system was asked for as many reports as there was room.
    pub(crate) asked: bool,
    /// It had as many, so that there may be more.
    pub(crate) is_full: bool,
    /// [`Backend::wake`] ended it.
    pub(crate) woken: bool,
    /// The alarm has gone off, perhaps early, or at a time that was set before.
    pub(crate) alarmed: bool,
}

/// A bit of what is returned for descriptors that are no sockets. The identity of a socket does not have it.
pub(crate) const DESCRIPTOR: u64 = 1 << 39;

/// A system's interface to find out which descriptors are ready.
///
/// Several threads may call it at once. One report wakes one waiting thread. It holds nothing that keeps a closed
/// socket alive. It knows nothing of completion keys, triggers and threads.
pub(crate) trait Backend: Sized + Send + Sync + 'static {
    /// Memory of a call, kept from one to the next.
    type Memory: Default;

    /// What the calling thread keeps of ports over this backend: a static, which cannot be generic.
    fn thread() -> &'static LocalKey<ThisThread<Self>>;

    /// Whether a socket stays armed, as an edge, while a thread has it ([`Mode::Kept`](super::Mode::Kept)) or handles its
    /// level-triggered report; and arming is a system call for each descriptor, whoever makes it. Then the engine arms what it
    /// goes through, and the batch of a wait has only what is armed already, and what could not be armed.
    const KEEPS: bool;

    /// Whether a report of an earlier generation silences what is wanted by now: the call that arms it came late, and the thread
    /// that has made it may be waiting since.
    const IS_SILENT_BEHIND: bool = false;

    /// Whether several ports can watch one socket.
    const SHARES: bool;

    /// The conditions that the system can report.
    const CONDITIONS: EventFilter = EventFilter::ALL;

    /// How many threads may wait in it at once.
    fn waiters(&self) -> usize {
        usize::MAX
    }

    /// Return a value that distinguishes the socket from all others that ever had this number.
    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError>;

    /// As [`identify`](Self::identify), for any descriptor that can be watched. If it is no socket, this has the bit
    /// [`DESCRIPTOR`], and identifies nothing.
    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        self.identify(fd)
    }

    /// Watch a descriptor that is not watched yet (`is_new`), or watch it in another way, and report what holds.
    ///
    /// [`ArmError::Stale`] if it is not new, and the number refers to another file than the watched one, or to none.
    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError>;

    /// Stop watching a descriptor. An error as in [`arm`](Self::arm).
    fn disarm(&self, fd: Fd) -> Result<(), ArmError>;

    /// Arm a batch by [`Table::arm_latest`], and then wait for reports, a wake-up or the timeout. It may also return
    /// without a reason.
    ///
    /// `packets`: for completions of others, to be queued unchanged.
    fn wait(
        &self,
        table: &Table,
        memory: &mut Self::Memory,
        batch: &mut [Arm],
        wait: &Wait,
        packets: &mut Vec<Entry>,
        reports: &mut impl Reports,
    ) -> Waited;

    /// Wake a thread that waits, or else the next one to wait.
    fn wake(&self);

    /// Make what alarms need: then setting one cannot fail for want of resources.
    fn prepare_alarm(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Report an alarm after this time. The latest call replaces earlier ones. The engine's lock is held.
    fn set_alarm(&self, after: Duration) -> Result<(), Error>;

    /// Wake all threads that wait, and each that will, and stop watching, so that another port can register the sockets.
    fn close(&self);
}
