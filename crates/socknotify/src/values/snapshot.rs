//! [`WakePolicy`]: when a port wakes threads; [`Snapshot`]: what it says of them.

use std::fmt;
use std::thread::ThreadId;
use std::time::Duration;

/// When a port wakes a further thread for a socket that becomes ready, while others run.
///
/// A posted packet never waits while a permit is free and a thread waits, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakePolicy {
    /// At once, as Windows does: a ready socket never waits while a permit is free and a thread waits.
    ///
    /// For servers that take much longer to answer a request than to wake a thread.
    Eager,
    /// When the running threads do not dequeue within this time.
    ///
    /// As long as running threads dequeue at least once in this time, a ready socket waits for the next of them to do
    /// so. One waiting thread watches the running ones: it wakes after each such time, and takes what is ready if no
    /// thread has dequeued meanwhile. So a socket waits up to twice this time, plus the timer's delay (on Linux 50 µs,
    /// unless the thread has another timer slack). With a time above 2 ms, what waits beside handlers that block may wait for as long
    /// until it finds a thread.
    ///
    /// This avoids waking a thread for one or two requests. If a request takes a few microseconds, such as an HTTP
    /// server's cached answer, to wake a thread costs more than the request.
    ///
    /// On Windows timers are as coarse as 16 ms, and so is this. A port on the kernel's own
    /// `ProcessSocketNotifications` is always eager.
    Bounded(Duration),
}

impl WakePolicy {
    /// [`Bounded`](Self::Bounded) by 200 µs, for servers that answer in some microseconds.
    pub const BOUNDED: Self = WakePolicy::Bounded(Duration::from_micros(200));
}

impl fmt::Display for WakePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WakePolicy::Eager => f.write_str("eager"),
            WakePolicy::Bounded(time) => write!(f, "bounded by {time:?}"),
        }
    }
}

/// A thread that has had what it dequeued for long: see [`CompletionPort::slow`](crate::CompletionPort::slow).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowThread {
    /// The thread, as [`std::thread::Thread::id`] says.
    pub thread: ThreadId,
    /// The system's number of the thread, which `ps -L` and debuggers show. On Linux only.
    #[doc(alias = "gettid")]
    pub id: Option<u32>,
    /// The system's name of the thread: on Linux the first 15 bytes of the one that it was given, and `None` elsewhere.
    pub name: Option<String>,
    /// For how long the port has seen it with what it dequeued, or with the event that it has taken from its worker.
    pub time: Duration,
    /// The system call that it is in at this moment, for instance `"futex"` for a lock or `"read"`. `None` if it is in none,
    /// or in one that seldom blocks. On Linux only.
    pub system_call: Option<&'static str>,
}

impl SlowThread {
    /// One whose packets the port knows nothing of.
    pub(crate) fn of(thread: ThreadId, seen: Description) -> Self {
        SlowThread {
            thread,
            id: seen.id,
            name: seen.name,
            time: Duration::ZERO,
            system_call: seen.system_call,
        }
    }
}

/// What people know a thread by, and the system call that it is in, as far as the system says.
#[derive(Debug, Default)]
pub(crate) struct Description {
    pub(crate) id: Option<u32>,
    pub(crate) name: Option<String>,
    pub(crate) system_call: Option<&'static str>,
}

/// The state of a port at one moment.
///
/// Its values are of one moment, and may be out of date when you read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The number of registrations. One whose socket was closed without REMOVE counts until the port notices, when the
    /// number is armed or registered again. `None` on Windows' own port, which does not say.
    pub registrations: Option<usize>,
    /// Packets in the queue. Ready sockets that the kernel has not reported yet are not counted.
    pub queued: usize,
    /// Threads that hold a permit and have dequeued. `None` on Windows' own port, which does not say.
    pub running: Option<usize>,
    /// Threads that wait for a packet.
    pub waiting: usize,
    /// How many threads may run now: the concurrency value, and more while those that run block or compute for long
    /// ([Permits](crate::CompletionPort#permits)). `None` if there is no limit, and on Windows' own port, whose kernel does not
    /// say.
    pub limit: Option<usize>,
    /// How often the limit has risen because threads slept with what they had dequeued.
    pub rises_asleep: u64,
    /// How often the limit has risen because no thread dequeued for long.
    pub rises_starved: u64,
    /// How many reports of the system were dropped because their registrations had ended: their sockets were closed while
    /// duplicates kept them open.
    pub stale: u64,
}

impl Snapshot {
    /// Of a port that has nothing and says nothing.
    pub(crate) const NOTHING: Snapshot = Snapshot {
        registrations: None,
        queued: 0,
        running: None,
        waiting: 0,
        limit: None,
        rises_asleep: 0,
        rises_starved: 0,
        stale: 0,
    };
}
