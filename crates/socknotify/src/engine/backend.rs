//! What the engine needs of a system: [`Backend`], and the values that pass between the two.

#![cfg_attr(
    not(all(target_os = "linux", not(kqueue_stand_in))),
    allow(dead_code, reason = "no backend has to do with all of it")
)]

use std::time::Duration;

use super::interest::{ArmError, Interest, is_between};
use super::wanted::Wanted;
use crate::{Entry, Error, EventFilter, Events, RegistrationError};

/// An interest that is handed over again, and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rearm {
    pub(crate) interest: Interest,
    /// The system has this interest already. What holds by now it may have reported earlier.
    pub(crate) is_armed: bool,
    /// It was reported once, and the system keeps silent about it until it is armed.
    pub(crate) is_silent: bool,
    /// The port owns the socket, so its number stands for no other.
    pub(crate) is_owned: bool,
    /// When the registration was enabled.
    pub(super) generation: u32,
    /// Which entry of the batch asked for it.
    pub(super) entry: u32,
    pub(crate) outcome: Outcome,
}

/// What became of a [`Rearm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is armed; or another thread has changed the interest, and armed that.
    Armed,
    /// These conditions hold, and it may not be armed.
    Ready(Events),
    /// The interest was withdrawn by another thread.
    Withdrawn,
    /// It is not armed.
    Failed(ArmError),
}

/// The state of a socket at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    NotReady,
    Ready(Events),
    /// Finding out is expensive, or the system call failed, or the number stands for another socket.
    Unknown,
}

/// What the system reports of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) socket: u32,
    pub(crate) generation: u32,
    /// At least one of the conditions of the interest, or of those that need not be asked for. Of a socket
    /// that is [kept](Mode::Kept) armed, more than IN and OUT if anything holds that keeps a receive from
    /// taking all there is.
    pub(crate) events: Events,
    pub(crate) validity: Validity,
}

/// Whether the number of a report still stands for the socket that was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// Nothing speaks against it.
    Valid,
    /// The number stands for a socket in another state than the reported one, or the check failed.
    Doubtful,
    /// The number is closed, or stands for another socket. The reported one may live on under a duplicate.
    Closed,
}

/// How many reports a wait may return, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The maximum number of reports.
    pub(crate) room: usize,
    /// `None`: for ever.
    pub(crate) timeout: Option<Duration>,
    /// Generations that this call has armed: their sockets are borrowed, and so are known to be open.
    pub(crate) borrowed: (u32, u32),
    /// The engine's lock is held: nobody arms anything for the first time, or disarms it, meanwhile.
    pub(crate) is_exclusive: bool,
}

impl Wait {
    /// At most one batch of what is ready now, with the engine's lock held.
    pub(crate) const NOW: Wait = Wait {
        room: BATCH,
        timeout: Some(Duration::ZERO),
        borrowed: (0, 0),
        is_exclusive: true,
    };

    /// Whether the socket of this generation is borrowed by the call that waits.
    pub(crate) fn borrows(&self, generation: u32) -> bool {
        is_between(generation, self.borrowed)
    }
}

/// The maximum number of reports that a thread takes at once.
pub(crate) const BATCH: usize = 256;

/// The results of one wait.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) reports: Vec<Report>,
    /// Packets of others, to be queued unchanged.
    pub(crate) packets: Vec<Entry>,
    /// It was ended by [`Backend::wake`].
    pub(crate) woken: bool,
    /// The alarm has gone off.
    pub(crate) alarmed: bool,
    /// The backend asks for an [exclusive](Wait::is_exclusive) wait.
    pub(crate) wants_exclusive: bool,
}

impl Reports {
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        self.packets.clear();
        self.woken = false;
        self.alarmed = false;
        self.wants_exclusive = false;
    }

    /// Whether there is anything that the engine has to know.
    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
            && self.packets.is_empty()
            && !(self.woken || self.alarmed || self.wants_exclusive)
    }
}

/// What a backend makes of [`Mode::Kept`](super::Mode::Kept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each backend is one of these")]
pub(crate) enum Kept {
    /// Not supported: sockets that the port owns are armed each time.
    Never,
    /// It is armed until it is reported.
    UntilReported,
    /// It stays armed, and whatever begins to hold is reported.
    ForGood,
}

/// A bit in the identity of descriptors that are no sockets. Sockets do not have it.
pub(crate) const DESCRIPTOR: u64 = 1 << 39;

/// A system's interface to find out which sockets are ready.
///
/// Several threads may call it at once. One report wakes one waiting thread. It holds nothing that
/// keeps a closed socket alive. An interest is published in [`Wanted`] before it is passed to the backend.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Memory of a call, kept from one to the next.
    type Memory: Default + Send;

    /// Whether [`wait`](Self::wait) arms a batch first, in the same system call.
    const ARMS_ON_WAIT: bool = false;

    /// How long a socket that is armed as [`Mode::Kept`](super::Mode::Kept) stays armed.
    const KEPT: Kept;

    /// The conditions that the system can report.
    const CONDITIONS: EventFilter = EventFilter::ALL;

    /// Whether what [`poll_now`](Self::poll_now) finds is reported by the next [`wait`](Self::wait).
    const REPORTS_POLLED: bool = false;

    /// How many threads may wait in it at once.
    fn waiters(&self) -> usize {
        usize::MAX
    }

    /// Return a value that distinguishes the socket from all others that ever had this number.
    fn identify(&self, socket: u32) -> Result<u64, RegistrationError>;

    /// The same for any descriptor that can be watched. If it is no socket, this is a new value each time, with the bit
    /// [`DESCRIPTOR`].
    fn identify_any(&self, socket: u32) -> Result<u64, RegistrationError> {
        self.identify(socket)
    }

    /// Whether the number still stands for the watched descriptor, for descriptors without an identity.
    fn is_still_armed(&self, _socket: u32) -> bool {
        true
    }

    /// Whether packets of others may come though nothing is registered.
    fn has_packets(&self) -> bool {
        false
    }

    /// Watch for edges, and also report what holds already. False if that is not reported.
    fn arm_initial(&self, interest: &Interest, is_new: bool) -> Result<bool, ArmError> {
        self.arm(interest, is_new).map(|()| false)
    }

    /// Edges that are armed will be armed with this interest next, which has another filter. An edge from here on is
    /// not taken for what holds already when they are. True if the caller has to take all reports once more before.
    fn carry_edges(&self, _interest: &Interest) -> bool {
        false
    }

    /// Watch a socket that is not watched yet (`is_new`), or watch it in another way.
    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError>;

    /// Re-arm many sockets, or report that they are ready. Called without the engine's lock: another thread may
    /// change an interest at the same time ([`Wanted::follow`]).
    fn rearm(&self, wanted: &Wanted, memory: &mut Self::Memory, batch: &mut [Rearm]);

    /// Stop watching a socket.
    fn disarm(&self, socket: u32) -> Result<(), ArmError>;

    /// Find out which conditions hold now of sockets that are or were armed. `readiness` gets the same length.
    fn poll_now(
        &self,
        memory: &mut Self::Memory,
        interests: &[Interest],
        readiness: &mut Vec<Readiness>,
    );

    /// Wait for reports, a wake-up, or the timeout. It may also return without a reason.
    ///
    /// `batch`: what to arm first, as [`rearm`](Self::rearm) does, if the backend [arms on wait](Self::ARMS_ON_WAIT).
    fn wait(
        &self,
        wanted: &Wanted,
        memory: &mut Self::Memory,
        batch: &mut [Rearm],
        reports: &mut Reports,
        wait: &Wait,
    );

    /// The notification of a level-triggered socket was dequeued, and the next one is due while the condition holds. If
    /// the backend has been silent since its report, it has to report again, at the latest when this thread waits or
    /// [flushes](Self::flush).
    fn delivered(&self, _socket: u32) {}

    /// Pass to the system now what the next wait would pass to it.
    fn flush(&self, _wanted: &Wanted) {}

    /// Wake the newest waiting thread, or else the next one to wait: now, or after this time. The latter is reported as
    /// an alarm, and the latest call replaces earlier ones.
    fn wake(&self, after: Option<Duration>) -> Result<(), Error>;

    /// Stop watching all sockets, so that another port can register them.
    fn close(&self) {}

    /// Whether reports and wake-ups go to the newest waiting thread; otherwise to the oldest.
    fn wakes_newest(&self) -> bool {
        true
    }
}
