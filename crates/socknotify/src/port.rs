//! [`CompletionPort`]: the faithful layer, one method for each call of the published interface.

use std::fmt;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::sys::AsSocket;
use crate::system::{Choice, SystemPort};
use crate::{Backend, Entry, Error, RegisterError, Registration};

/// An I/O completion port that reports the state of sockets.
///
/// Threads register sockets and dequeue packets, as many threads as you like on one port. Sharing is
/// by reference or in an [`Arc`](std::sync::Arc); no call needs a lock around it.
///
/// # Places
///
/// The port has a number of places, its [concurrency value](Builder::concurrency): that many threads
/// at most run with packets in hand. A thread takes a place when it dequeues packets, and holds it until it
/// dequeues again (from this port or another), ends, or is inside [`blocking`](Self::blocking).
/// While all places are taken, packets wait, and so do further threads. Waiting threads are released
/// last in, first out, so that few threads stay busy and the others stay asleep.
///
/// # Closing
///
/// Dropping the port closes it. [`close`](Self::close) does so while threads wait in it.
///
/// # Examples
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::{CompletionPort, Entry, EventFilter, Events, Registration, Trigger};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut theirs = TcpStream::connect(listener.local_addr()?)?;
/// let (mut ours, _) = listener.accept()?;
/// let port = CompletionPort::new()?;
/// port.register(Registration::enable(&ours, 7, EventFilter::IN, Trigger::LEVEL))?;
///
/// theirs.write_all(b"hello")?;
///
/// let mut entries = [Entry::default(); 8];
/// for entry in port.dequeue(&mut entries, None)? {
///     assert_eq!(entry.completion_key, 7);
///     assert_eq!(entry.events(), Events::IN);
///     let mut buffer = [0; 16];
///     assert_eq!(ours.read(&mut buffer)?, 5);
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "IOCP")]
#[doc(alias = "CreateIoCompletionPort")]
pub struct CompletionPort {
    system: SystemPort,
    choice: Choice,
}

impl CompletionPort {
    /// `CreateIoCompletionPort` — Makes a port with the best backend of this system and one place for
    /// each processor.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyOpenFiles`] and [`Error::OutOfMemory`] when the system has no more to give.
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// `CreateIoCompletionPort` — Makes a port with `concurrency` places; 0 stands for the number of
    /// processors.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_concurrency(concurrency: usize) -> Result<Self, Error> {
        Self::builder().concurrency(concurrency).build()
    }

    pub(crate) fn assemble(choice: Choice, system: SystemPort) -> Self {
        CompletionPort { system, choice }
    }

    /// Options for a new port.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `ProcessSocketNotifications` — Applies a batch of registrations, then dequeues packets.
    ///
    /// The entries of the batch are applied in order. Each gets its own
    /// [result](Registration::result), and one that fails does not stop the others. What they make
    /// ready can come out of this same call.
    ///
    /// Then at least one packet is waited for, at most `timeout` long (`None` for ever,
    /// [`Duration::ZERO`] only looks), and as many as are there are written to `entries`. With no
    /// room in `entries` the call only registers, and `timeout` must be zero. With no registrations
    /// it is a plain [`dequeue`](Self::dequeue).
    ///
    /// The sockets stay borrowed until the call returns. A thread that arms or removes a shared socket
    /// here, and then waits, keeps it open meanwhile, whatever other threads do with their share.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`]: no packet came in time. The registrations have been applied.
    /// - [`Error::Closed`]: the port is closed, or was closed while the call waited.
    /// - [`Error::InvalidParameter`]: no room, and a timeout that is not zero.
    /// - [`Error::OtherProcess`]: this is a forked child of the port's process.
    ///
    /// But for `TimedOut`, and `Closed` during the wait, nothing was applied.
    #[doc(alias = "ProcessSocketNotifications")]
    pub fn process<'entries>(
        &self,
        registrations: &mut [Registration<'_>],
        entries: &'entries mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<&'entries mut [Entry], Error> {
        if entries.is_empty() && timeout != Some(Duration::ZERO) {
            return Err(Error::InvalidParameter);
        }
        let count = self.system.process(registrations, entries, timeout)?;
        Ok(&mut entries[..count])
    }

    /// Registers one socket and dequeues nothing: [`process`](Self::process) with a batch of one and
    /// no room.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Entry`] with whatever made the entry fail; [`RegisterError::Call`] with
    /// [`Error::Closed`] or [`Error::OtherProcess`].
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::{CompletionPort, EventFilter, Registration, RegistrationError, Trigger};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = CompletionPort::new()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let removed = port.register(Registration::remove(&socket));
    /// assert_eq!(removed, Err(RegistrationError::NotFound.into()));
    /// port.register(Registration::enable(&socket, 1, EventFilter::IN, Trigger::LEVEL))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, registration: Registration<'_>) -> Result<(), RegisterError> {
        self.register_all(&mut [registration])
    }

    /// Registers any number of sockets and dequeues nothing: [`process`](Self::process) without room.
    ///
    /// Entries apply in order, and one that fails does not stop the others.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Entry`] with what made the first of those fail that did: each says so in its
    /// [result](Registration::result). [`RegisterError::Call`] as [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::{CompletionPort, EventFilter, Registration, Trigger};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = CompletionPort::new()?;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let datagrams = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// port.register_all(&mut [
    ///     Registration::enable(&listener, 1, EventFilter::IN, Trigger::LEVEL),
    ///     Registration::enable(&datagrams, 2, EventFilter::IN, Trigger::EDGE),
    /// ])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_all(&self, batch: &mut [Registration<'_>]) -> Result<(), RegisterError> {
        self.process(batch, &mut [], Some(Duration::ZERO))?;
        let mut results = batch.iter().map(Registration::result);
        results.find(Result::is_err).unwrap_or(Ok(()))?;
        Ok(())
    }

    /// Extension: ends a registration at once, without a notification: see [`Registration::deregister`].
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(target_os = "linux")]
    /// # fn main() -> std::io::Result<()> {
    /// use socknotify::{CompletionPort, EventFilter, Registration, Trigger};
    ///
    /// let port = CompletionPort::new()?;
    /// let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// port.register(Registration::enable(&socket, 1, EventFilter::OUT, Trigger::LEVEL))?;
    /// port.deregister(&socket)?;
    /// let nothing = port.dequeue_one(Some(std::time::Duration::ZERO));
    /// assert_eq!(nothing, Err(socknotify::Error::TimedOut));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(target_os = "linux"))]
    /// # fn main() {}
    /// ```
    pub fn deregister<S: AsSocket + ?Sized>(&self, socket: &S) -> Result<(), RegisterError> {
        self.register(Registration::deregister(socket))
    }

    /// `GetQueuedCompletionStatusEx` — Dequeues at least one packet and at most as many as `entries`
    /// has room for, waiting up to `timeout` for the first.
    ///
    /// # Errors
    ///
    /// As [`process`](Self::process); no room is always [`Error::InvalidParameter`].
    #[doc(alias = "GetQueuedCompletionStatusEx")]
    pub fn dequeue<'entries>(
        &self,
        entries: &'entries mut [Entry],
        timeout: Option<Duration>,
    ) -> Result<&'entries mut [Entry], Error> {
        if entries.is_empty() {
            return Err(Error::InvalidParameter);
        }
        self.process(&mut [], entries, timeout)
    }

    /// `GetQueuedCompletionStatus` — Dequeues one packet, waiting up to `timeout` for it.
    ///
    /// # Errors
    ///
    /// As [`process`](Self::process).
    #[doc(alias = "GetQueuedCompletionStatus")]
    pub fn dequeue_one(&self, timeout: Option<Duration>) -> Result<Entry, Error> {
        let mut entries = [Entry::default()];
        self.dequeue(&mut entries, timeout)?;
        Ok(entries[0])
    }

    /// `PostQueuedCompletionStatus` — Queues a packet of the caller's own.
    ///
    /// It comes out unchanged, in its turn, and wakes a waiting thread if a place is free.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] and [`Error::OtherProcess`].
    #[doc(alias = "PostQueuedCompletionStatus")]
    pub fn post(&self, entry: Entry) -> Result<(), Error> {
        self.post_all(&[entry])
    }

    /// Queues many packets, next to each other and in order.
    ///
    /// # Errors
    ///
    /// As [`post`](Self::post); either all are queued or none.
    pub fn post_all(&self, entries: &[Entry]) -> Result<(), Error> {
        self.system.post(entries, || {})
    }

    /// Lends this thread's place to another thread while `work` runs.
    ///
    /// For work that blocks: a system kernel sees a thread block, a library cannot. When `work`
    /// returns, or panics, the thread has its place again at once; so for a short while one thread
    /// more than the concurrency value can run, as on Windows. On a thread that holds no place of
    /// this port, and inside another such scope, it only runs `work`.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let port = socknotify::CompletionPort::new()?;
    /// # port.post(socknotify::Entry::new(1, 0, 0))?;
    /// let entry = port.dequeue_one(None)?;
    /// let text = port.blocking(|| std::fs::read_to_string("/proc/self/limits"));
    /// # drop(text);
    /// # Ok(())
    /// # }
    /// ```
    pub fn blocking<R>(&self, work: impl FnOnce() -> R) -> R {
        let _lent = self.system.lend_place();
        work()
    }

    /// Extension: gives this thread's place back, if it holds one here.
    ///
    /// For a thread that has dealt with its packets, and does not dequeue again soon. Without it, the place stays
    /// taken until the thread dequeues, here or elsewhere, or ends; and with one place, the port stands still.
    /// Where the places are the kernel's, it gives a place back when its thread blocks, and this does nothing.
    pub fn release(&self) {
        self.system.give_place_back();
    }

    /// `CloseHandle` — Closes the port and releases the threads that wait in it, with
    /// [`Error::Closed`].
    ///
    /// All registrations go with it, without a notification, and packets that were not dequeued are
    /// lost. The sockets stay open and can be registered elsewhere as soon as this returns. Every
    /// later call fails with [`Error::Closed`]. Closing twice does nothing.
    #[doc(alias = "CloseHandle")]
    pub fn close(&self) {
        self.system.close();
    }

    /// The backend that this port runs on.
    pub fn backend(&self) -> Backend {
        self.choice.backend
    }

    /// Why this port runs on that backend, as a short phrase for people.
    pub fn backend_reason(&self) -> &'static str {
        self.choice.reason
    }

    /// The port beneath, for the layer that owns connections, and for what only some systems have.
    pub(crate) fn system(&self) -> &SystemPort {
        &self.system
    }

    /// The number of places: how many threads may run with packets in hand.
    pub fn concurrency(&self) -> usize {
        self.system.concurrency()
    }

    /// When the port wakes a further thread.
    pub fn wake_policy(&self) -> WakePolicy {
        self.system.wake_policy()
    }

    /// What the port looks like at this moment, for diagnosis and for tests.
    pub fn snapshot(&self) -> Snapshot {
        self.system.snapshot()
    }
}

impl Drop for CompletionPort {
    fn drop(&mut self) {
        self.system.close();
    }
}

impl fmt::Debug for CompletionPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionPort")
            .field("backend", &self.backend())
            .field("concurrency", &self.concurrency())
            .finish_non_exhaustive()
    }
}

/// Options for a new [`CompletionPort`].
///
/// # Examples
///
/// ```
/// use socknotify::{Backend, CompletionPort};
///
/// # fn main() -> std::io::Result<()> {
/// // The last one that this system has.
/// let backend = Backend::ALL[Backend::ALL.len() - 1];
///
/// let port = CompletionPort::builder()
///     .concurrency(4)
///     .backend(backend)
///     .build()?;
/// assert_eq!(port.concurrency(), 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    concurrency: usize,
    backend: Option<Backend>,
    wake_policy: WakePolicy,
}

impl Builder {
    /// The number of places: how many threads may run with packets in hand. 0, the default, stands
    /// for the [available parallelism](std::thread::available_parallelism).
    #[doc(alias = "NumberOfConcurrentThreads")]
    pub fn concurrency(mut self, places: usize) -> Self {
        self.concurrency = places;
        self
    }

    /// When a further thread is woken for a socket that becomes ready.
    pub fn wake_policy(mut self, policy: WakePolicy) -> Self {
        self.wake_policy = policy;
        self
    }

    /// A place for every thread: no packet waits for one to be free. For programs that keep the number of
    /// their threads themselves, such as an executor with one for each processor.
    pub fn unlimited(self) -> Self {
        self.concurrency(usize::MAX)
    }

    /// Run on this backend and on no other. By default the best available one is chosen.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Makes the port.
    ///
    /// # Errors
    ///
    /// [`Error::BackendUnavailable`] when the chosen backend does not work here; otherwise as
    /// [`CompletionPort::new`].
    pub fn build(self) -> Result<CompletionPort, Error> {
        let choice = Choice::make(self.backend)?;
        let concurrency = match self.concurrency {
            0 => default_concurrency(),
            places => places,
        };
        let system = choice.backend.open(concurrency, self.wake_policy)?;
        Ok(CompletionPort::assemble(choice, system))
    }
}

/// When a port wakes a further thread for a socket that becomes ready, while others run.
///
/// A posted packet never waits while a place is free and a thread waits, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakePolicy {
    /// At once, as Windows does: a ready socket never waits while a place is free and a thread waits.
    ///
    /// Best where a request takes much longer to answer than a thread to wake.
    Eager,
    /// When the threads that run don't come back soon, or do not keep up.
    ///
    /// While they take packets, at least once in this time, a ready socket waits for the first that comes back; one
    /// that has no room for all there is has another thread woken at once. One
    /// more thread watches them: it wakes each time that the time is over, and takes what is ready if nobody came
    /// back meanwhile. So a socket waits up to twice this time, and as long as the system is late with timers (on
    /// Linux 50 µs, unless the thread has another slack). When nothing is ready and nobody comes, the port does as
    /// [`Eager`](Self::Eager) does.
    ///
    /// That a thread is woken for a request or two is what this saves. Where requests take a few microseconds, as
    /// with an HTTP server's cached answers, it costs more than they do.
    ///
    /// On Windows the system's timers are as coarse as 16 ms, and so is this. A port on the kernel's own
    /// `ProcessSocketNotifications` is always eager.
    Bounded(Duration),
}

impl WakePolicy {
    /// [`Bounded`](Self::Bounded) by 200 µs: measured to be best for servers whose answers take some microseconds.
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

/// The concurrency value that a port has when none is given: the available parallelism, at least 1.
pub fn default_concurrency() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The state of a port at one moment.
///
/// It is consistent in itself, and may be out of date by the time that it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Registrations the port keeps. One whose socket was closed without REMOVE counts until the
    /// port notices: when its number is used again, or something is reported for it. `None` where they
    /// are the kernel's, which does not tell.
    pub registrations: Option<usize>,
    /// Packets in the queue. What the system has seen and the port has not fetched is not counted.
    pub queued: usize,
    /// Threads that hold a place. `None` where the places are the kernel's, which does not tell.
    pub running: Option<usize>,
    /// Threads that wait for a packet.
    pub waiting: usize,
    /// One of those [watches](WakePolicy::Bounded) the ones that run.
    pub is_watched: bool,
}

/// The port can be watched itself, by another loop: it is readable when a dequeue would return
/// something. It may be so for no reason, too.
///
/// Then no thread should wait in it; dequeue with a timeout of zero.
#[cfg(unix)]
impl AsFd for CompletionPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.system().expose().as_fd()
    }
}
