//! The port, for systems whose kernel has none.
//!
//! No system call is made here. What is needed of the system is named in [`Poller`], and each way to
//! get it is a file in `poller/`.
//!
//! ```text
//! process ── apply ──► table ─────────────► poller: watch, unwatch
//!    │                                         │
//!    └───── dequeue ◄── queue ◄── reports ◄────┘ wait
//!              │
//!          scheduler: who may run, who waits where, whom to wake
//! ```
//!
//! One lock guards table, queue and scheduler. It is not held while a thread waits, nor during the
//! system call that arms a one-shot registration again.

mod adopted;
mod apply;
mod dequeue;
mod ownership;
mod pages;
mod place;
mod queue;
mod reports;
mod scheduler;
mod sync;
mod table;

#[cfg(all(test, interleavings))]
mod interleavings;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use self::place::Places;
use self::queue::Queue;
use self::reports::Zombies;
use self::scheduler::{Scheduler, Wake};
use self::sync::{AtomicUsize, Mutex, MutexGuard};
use self::table::{Table, Token};
use crate::{Entry, Error, EventFilter, Events, Registration, RegistrationError, Snapshot};

/// Turns are counted in 28 bits, so that a poller can keep a number and more beside one.
pub(crate) const TURN_MASK: u32 = (1 << 28) - 1;

/// What kind of socket it is, as far as the conditions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It connects or listens: a stream, or sequenced packets.
    #[default]
    Stream,
    /// A stream within this system, which may connect without the system giving word of it.
    #[allow(dead_code, reason = "not every system has them")]
    LocalStream,
    /// It does neither.
    Datagram,
}

/// A socket, told from every other that has had its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) kind: Kind,
    /// No other socket of this process ever has the same.
    pub(crate) id: u64,
}

/// How a poller watches a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Report a condition that holds, or the next one to hold, once. Then keep silent until told to
    /// watch again.
    Once,
    /// Report as long as a condition holds; once at least until the report was
    /// [delivered](Poller::delivered).
    Level,
    /// Report when a condition begins to hold. One that holds already is reported at once; so is,
    /// possibly, one that held all the time.
    Edge,
    /// The same, for a socket that the port owns, and that is not closed while it is watched. It is
    /// watched for good; to arm it again, the engine [looks](Poller::probe).
    Kept,
    /// The same as `Once`, for a socket that the port owns, and by a request of its own: what is asked in
    /// one turn takes nothing back of what was asked in another. Any number of requests is [submitted
    /// together](Poller::submit). Each stands until it is answered or [withdrawn](Poller::withdraw), and
    /// may hold the socket meanwhile.
    Request,
}

/// What a poller is to watch for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// The number of the socket.
    pub(crate) socket: u32,
    /// Which of the times that the poller was told to watch under this number, for this registration
    /// and all before it; within [`TURN_MASK`].
    pub(crate) turn: u32,
    pub(crate) kind: Kind,
    /// The conditions. Errors are watched for in any case.
    pub(crate) filter: EventFilter,
    pub(crate) mode: Mode,
}

/// What is yet to be done in the poller for an entry that was applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed {
    socket: u32,
    turn: u32,
    kind: Kind,
    mode: Mode,
    step: Step,
    /// What a look has found.
    seen: Events,
}

impl Owed {
    /// What the poller is to be told, or asked.
    fn watch(&self, filter: EventFilter) -> Watch {
        Watch {
            socket: self.socket,
            turn: self.turn,
            kind: self.kind,
            filter,
            mode: self.mode,
        }
    }
}

/// How much a batch owes the poller, at the most.
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    any: bool,
    /// Entries that take a look.
    looks: bool,
    /// Entries that take a look or a word to the poller.
    choices: usize,
    /// The [`Engine::changes`] that there had been.
    changes: usize,
}

impl Debt {
    fn add(&mut self, step: Step, is_owned: bool) {
        self.any = true;
        // To be told of a socket that is ready would wake another thread.
        self.looks |= is_owned && step.looks();
        self.choices += usize::from(step == Step::TellOrLook);
    }

    /// Whether there is anything to look at before waiting.
    fn takes_a_look(self) -> bool {
        self.looks || self.is_worth_looking()
    }

    /// Whether enough sockets are armed again together for a look at all of them.
    fn is_worth_looking(self) -> bool {
        self.choices >= WORTH_LOOKING
    }
}

/// How many sockets have to be armed again together for a look at all of them to be worth while.
const WORTH_LOOKING: usize = if cfg!(interleavings) { 1 } else { 4 };

/// How a registration is armed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The poller is told to watch.
    Tell,
    /// The same; but if the socket turns out to be ready now, a report of that is as good.
    TellOrLook,
    /// The poller watches already, or is told if it has to. What holds now was reported earlier, if at
    /// all, and takes a look.
    Look,
    /// The poller was told.
    Told,
}

impl Step {
    /// Whether the poller is to be told.
    fn tells(self) -> bool {
        matches!(self, Step::Tell | Step::TellOrLook)
    }

    /// Whether a look is to be taken.
    fn looks(self) -> bool {
        matches!(self, Step::Look | Step::TellOrLook)
    }
}

/// What a poller saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// The number and the turn that it was told to watch under.
    pub(crate) socket: u32,
    pub(crate) turn: u32,
    #[allow(dead_code, reason = "for pollers that look at it again")]
    pub(crate) kind: Kind,
    /// The conditions that hold, wanted or not. May be empty, where what the system reports is none
    /// of the contract's conditions.
    pub(crate) events: Events,
    /// What is known of the number.
    pub(crate) standing: Standing,
    /// How it was watched.
    pub(crate) mode: Mode,
    /// No report may come when this socket connects.
    pub(crate) dormant: bool,
}

/// Whether a number still stands for the socket that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing speaks against it.
    Good,
    /// What it stands for is in another state than what is reported; or a request ended unanswered.
    Doubtful,
    /// It is no open descriptor any more, though the socket lives on under another number or in
    /// another process.
    Gone,
}

/// Why a poller cannot watch a socket, or stop watching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchError {
    /// It does not watch what this number stands for now: the socket that it watched was closed.
    Unknown,
    /// The system refused.
    Refused(RegistrationError),
}

/// What the engine needs of a system: word of sockets that become ready.
///
/// Several threads may wait at once. One report wakes one of them. A poller holds nothing
/// that keeps a closed socket alive, and forgets a socket that is closed.
pub(crate) trait Poller: Send + Sync + 'static {
    /// Memory for reports, kept from one wait to the next.
    type Buffer: ReportBuffer;

    /// Whether it learns of a socket that was closed only when it asks.
    const MISSES_CLOSES: bool = false;

    /// Whether this process may use the poller: it made it, and was not forked since.
    fn belongs_here(&self) -> bool;

    /// Tell what socket a number stands for.
    fn identify(&self, socket: u32) -> Result<Identity, RegistrationError>;

    /// How a socket that the port owns is best watched: `Kept`, `Once` each time, or by `Request`.
    fn adopted(&self) -> Mode;

    /// Learn which sockets were closed until now, where that takes [asking](Self::MISSES_CLOSES). Called
    /// before a batch in which a number may be a new socket's.
    fn catch_up(&self) {}

    /// Begin to watch a socket (`again` false), or change how it is watched.
    fn watch(&self, watch: &Watch, again: bool) -> Result<(), WatchError>;

    /// Withdraw a request. It is submitted like a request.
    fn withdraw(&self, _request: &Watch) {}

    /// Withdraw all requests, and whatever else would be felt by another port that watches the sockets.
    fn withdraw_all(&self) {}

    /// The notification of a socket that is watched for a level was dequeued, and another one is due for as
    /// long as it holds. A poller that has kept silent since its report has to speak again: at the latest
    /// when this thread waits, or [submits](Self::submit).
    fn delivered(&self, _socket: u32) {}

    /// Submit what was requested and withdrawn up to now, and see to it that threads which wait already
    /// learn of what this one has to do with. Waiting does so, too.
    fn submit(&self) {}

    /// Stop watching.
    fn unwatch(&self, socket: u32) -> Result<(), WatchError>;

    /// Wait for reports, or a wake-up, or until the time is over (`None`: never), or for no reason.
    /// At most `room` reports, with their [`standing`](Report::standing) yet to be found out.
    fn wait(&self, buffer: &mut Self::Buffer, room: usize, timeout: Option<Duration>);

    /// Find out the standing of the reported numbers, but for those that are known to be good.
    fn check(&self, buffer: &mut Self::Buffer, is_good: impl Fn(u32) -> bool);

    /// Look which conditions of these sockets hold at this moment, watched or not. The answers are
    /// [`seen`](ReportBuffer::seen) in the same order. Where that is dearer than watching them, it may
    /// see nothing.
    fn probe(&self, buffer: &mut Self::Buffer, watches: impl Iterator<Item = Watch> + Clone);

    /// Note from here on whether a condition of this socket begins to hold, beside whatever else is
    /// watched. One socket at a time.
    fn observe(&self, watch: &Watch);

    /// Whether one has begun to hold since `observe`, or may have; and observe no longer.
    fn has_risen(&self, watch: &Watch) -> bool;

    /// Whether reports and wake-ups go to the newest waiting thread. If not, it is the oldest.
    fn wakes_newest(&self) -> bool {
        true
    }

    /// Wake the newest waiting thread, or else the next one to wait.
    fn wake(&self);

    /// Wake one thread when this time is over, and say so in its buffer. The latest time counts.
    fn set_alarm(&self, delay: Duration) -> Result<(), Error>;

    /// Watch these, and whatever was watched besides no longer. For sockets that cannot be reached by
    /// their number any more. Returns the numbers of those that could not be watched; `None` if the
    /// system had no room for that, and all is as it was.
    ///
    /// What holds already is no edge. So that none is lost, `fetch` is called when edges are seen by
    /// the old watch and by the new one, to take what the old one has.
    fn rebuild(&self, watches: &[Watch], fetch: &mut dyn FnMut()) -> Option<Vec<u32>>;
}

/// Where a poller leaves its reports.
pub(crate) trait ReportBuffer: Default + Send {
    /// What the latest wait has seen.
    fn reports(&self) -> &[Report];

    /// What the latest look has seen of each socket: the conditions that hold, wanted or not, and
    /// nothing where none is wanted.
    fn seen(&self) -> &[Events];

    /// Packets of others, for the queue as they are.
    fn packets(&self) -> &[Entry] {
        &[]
    }

    /// Whether the latest wait was ended by [`Poller::wake`].
    fn woken(&self) -> bool;

    /// Whether the time of the alarm was over.
    fn alarmed(&self) -> bool;
}

/// A completion port on top of a poller.
pub(crate) struct Engine<P: Poller> {
    /// Different for every port that this process ever has, and never 0.
    id: u32,
    poller: P,
    core: Mutex<Core<P::Buffer>>,
    /// Counts, under the lock, how often it was changed what a registration is enabled for. Those who tell
    /// the poller without the lock see by this that another one's word may have come before theirs.
    changes: AtomicUsize,
}

/// All that the lock guards.
struct Core<B> {
    table: Table,
    queue: Queue,
    scheduler: Scheduler,
    zombies: Zombies,
    /// Counts the times that something was armed, or that a thread began to look what is ready: so it
    /// is known which came first.
    clock: u64,
    /// How often in a row threads went with what they had found by looking, and did not ask the poller.
    unasked: u8,
    /// Edge-triggered registrations that this batch has enabled.
    settling: Vec<Token>,
    /// Threads that take reports without waiting, and do not have the lock.
    fetching: usize,
    /// Registrations whose sockets may become ready without a report.
    dormant: Vec<Token>,
    /// Threads in the poller that come back to look at those.
    looking: usize,
    /// Buffers that no thread waits with.
    buffers: Vec<Box<B>>,
    /// Sockets to look at.
    watches: Vec<Watch>,
    /// The packet to queue when the poller's alarm goes off.
    alarm: Entry,
    /// Somebody watches the poller itself.
    exposed: bool,
    closed: bool,
}

impl<B> Core<B> {
    /// The time from which on what a thread sees is true of everything that was armed before.
    fn begin_look(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether a thread without the lock may have been given a report.
    fn may_be_in_hand(&self) -> bool {
        self.fetching > 0 || self.scheduler.is_anyone_polling()
    }

    /// Whom to wake after a change.
    fn release(&mut self) -> Wake {
        if self.closed {
            return Wake::Nobody;
        }
        if self.exposed && self.queue.len() > 0 && self.scheduler.waiting() == 0 {
            return self.scheduler.wake_poller();
        }
        let is_unseen = !self.dormant.is_empty() && self.looking == 0;
        self.scheduler.release(self.queue.len(), is_unseen)
    }
}

type Guard<'a, P> = MutexGuard<'a, Core<<P as Poller>::Buffer>>;

impl<P: Poller> Engine<P> {
    pub(crate) fn new(poller: P, places: usize) -> Self {
        static PORTS: AtomicU32 = AtomicU32::new(1);
        Engine {
            id: PORTS.fetch_add(1, Ordering::Relaxed),
            poller,
            core: Mutex::new(Core {
                table: Table::new(),
                queue: Queue::default(),
                scheduler: Scheduler::new(places),
                zombies: Zombies::default(),
                clock: 0,
                unasked: 0,
                settling: Vec::new(),
                fetching: 0,
                dormant: Vec::new(),
                looking: 0,
                buffers: Vec::new(),
                watches: Vec::new(),
                alarm: Entry::default(),
                exposed: false,
                closed: false,
            }),
            changes: AtomicUsize::new(0),
        }
    }

    /// The poller, for what else it can do on its system.
    #[allow(dead_code, reason = "not every poller can do more")]
    pub(crate) fn poller(&self) -> &P {
        &self.poller
    }

    fn lock(&self) -> Guard<'_, P> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if the port can be used.
    fn enter(&self) -> Result<Guard<'_, P>, Error> {
        // After a fork the lock may be held by a thread that this process does not have.
        if !self.poller.belongs_here() {
            return Err(Error::OtherProcess);
        }
        let core = self.lock();
        if core.closed {
            return Err(Error::Closed);
        }
        Ok(core)
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::Parked(chair) => chair.notify_one(),
            Wake::Poller => self.poller.wake(),
        }
    }

    /// Let go of the lock, wake whoever is due, and submit what the poller was asked.
    fn leave(&self, mut core: Guard<'_, P>) {
        let wake = core.release();
        drop(core);
        self.wake(wake);
        self.poller.submit();
    }

    pub(crate) fn process(
        self: &Arc<Self>,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        if entries.is_empty() {
            let mut core = self.enter()?;
            let debt = self.apply(&mut core, registrations);
            if debt.any {
                core = self.pay(core, registrations, debt);
            }
            self.leave(core);
            return Ok(0);
        }
        place::leave_other(self.id);
        if !self.poller.belongs_here() {
            return Err(Error::OtherProcess);
        }
        let mut core = self.lock();
        if place::take_back(self.id) {
            core.scheduler.leave_place();
        }
        if core.closed {
            return Err(Error::Closed);
        }
        let debt = self.apply(&mut core, registrations);
        self.dequeue(core, registrations, debt, entries, timeout)
    }

    /// Queue packets; and do something more before the thread wakes that is to take them.
    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut core = self.enter()?;
        self.fetch_before_packet(&mut core);
        core.queue.post(entries);
        let wake = core.release();
        drop(core);
        before_waking();
        self.wake(wake);
        Ok(())
    }

    pub(crate) fn close(&self) {
        let Ok(mut core) = self.enter() else { return };
        core.closed = true;
        // Before another port can have the sockets.
        self.poller.withdraw_all();
        for (socket, _) in core.table.iter_mut() {
            ownership::release(socket, self.id);
        }
        core.table = Table::new();
        core.queue.clear();
        let chairs = core.scheduler.chairs_taken();
        drop(core);
        for chair in chairs {
            chair.notify_one();
        }
        // The thread that this wakes wakes the next.
        self.poller.wake();
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.lock().scheduler.places()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let core = self.lock();
        Snapshot {
            registrations: Some(core.table.len()),
            queued: core.queue.len(),
            running: Some(core.scheduler.running()),
            waiting: core.scheduler.waiting(),
        }
    }

    /// Lend this thread's place, if it holds one, until the returned value is dropped.
    pub(crate) fn lend_place(&self) -> LentPlace<'_, P> {
        let lent = self.poller.belongs_here() && place::take_back(self.id);
        if lent {
            self.on_place_left();
        }
        LentPlace { engine: self, lent }
    }
}

impl<P: Poller> Places for Engine<P> {
    fn on_place_left(&self) {
        if self.poller.belongs_here() {
            let mut core = self.lock();
            core.scheduler.leave_place();
            self.leave(core);
        }
    }
}

/// A place that another thread may have meanwhile.
pub(crate) struct LentPlace<'a, P: Poller> {
    engine: &'a Engine<P>,
    lent: bool,
}

impl<P: Poller> Drop for LentPlace<'_, P> {
    fn drop(&mut self) {
        if self.lent && self.engine.poller.belongs_here() {
            let mut core = self.engine.lock();
            if place::restore(self.engine.id) {
                core.scheduler.take_place();
            }
        }
    }
}
