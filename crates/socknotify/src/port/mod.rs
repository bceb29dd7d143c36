//! [`CompletionPort`]: one method for each call of the Windows interface.

#[cfg(windows)]
mod associate;
#[cfg(unix)]
mod files;
#[cfg(windows)]
pub(crate) mod host;
mod runtime;
pub(crate) mod slow;

use std::fmt;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Choice, SystemPort};
use crate::files::Operations;
use crate::os::{AsSocket, default_concurrency};
use crate::{Backend, Entry, Error, RegisterError, Registration, SlowThread, Snapshot, WakePolicy};

/// An I/O completion port that reports the state of sockets.
///
/// Any number of threads register sockets and dequeue packets. Share the port by reference or in an
/// [`Arc`](std::sync::Arc); no call needs a lock around it.
///
/// # Permits
///
/// A thread needs a *permit* of the port to dequeue. It holds the permit until it dequeues again (from this port or another),
/// ends, calls [`release`](Self::release), or is inside [`blocking`](Self::blocking). The port has as many as its
/// [concurrency value](Builder::concurrency) says. While all are taken, packets and further threads wait. Waiting threads are
/// woken last in, first out: few threads stay busy, and the others sleep.
///
/// Handlers may block and compute without saying so: while threads wait for a permit, and those that hold one sleep, or none
/// has dequeued for some milliseconds, the port has more of them ([`Snapshot::limit`](crate::Snapshot::limit)), and fewer again
/// when that is over. Not with a [strict](Builder::strict) limit.
///
/// What a call has returned belongs to its thread: no other thread takes it.
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
    /// Operations on files.
    operations: Arc<Operations>,
}

impl CompletionPort {
    /// `CreateIoCompletionPort` — Makes a port with the best backend of this system and one permit for
    /// each processor.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyOpenFiles`] and [`Error::OutOfMemory`] if the system has no descriptor or no memory left.
    #[doc(alias = "CreateIoCompletionPort")]
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// `CreateIoCompletionPort` — Makes a port with `concurrency` permits; 0 means the number of processors.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_concurrency(concurrency: usize) -> Result<Self, Error> {
        Self::builder().concurrency(concurrency).build()
    }

    /// Options for a new port.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// `ProcessSocketNotifications` — Applies a batch of registrations, then dequeues packets.
    ///
    /// The entries of the batch are applied in order. Each gets its own [result](Registration::result), and a failed
    /// one does not stop the others. Notifications of sockets that are ready now can be dequeued by this same call.
    ///
    /// Then the call waits for a packet, up to `timeout` (`None`: for ever; [`Duration::ZERO`]: not at all), and writes
    /// as many packets to `entries` as there are and fit. If `entries` is empty, the call only registers, and
    /// `timeout` must be zero. Without registrations it is a [`dequeue`](Self::dequeue).
    ///
    /// The sockets are borrowed until the call returns, also while it waits: no thread can close them meanwhile.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`]: no packet came in time. The registrations have been applied.
    /// - [`Error::Closed`]: the port is closed, or was closed while the call waited.
    /// - [`Error::InvalidParameter`]: no room, and a timeout that is not zero.
    /// - [`Error::OtherProcess`]: this is a forked child of the port's process.
    ///
    /// With other errors than `TimedOut`, or `Closed` during the wait, nothing was applied.
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
        let count = self.system.process(registrations, entries, timeout, None)?;
        Ok(&mut entries[..count])
    }

    /// Registers one socket and dequeues nothing: [`process`](Self::process) with a batch of one and
    /// no room.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Entry`] if the entry failed; [`RegisterError::Call`] with [`Error::Closed`] or
    /// [`Error::OtherProcess`].
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
    /// [`RegisterError::Entry`] with the error of the first entry that failed; each entry has its own
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
    /// It is dequeued unchanged, in order, and wakes a waiting thread if a permit is free. The queue has no limit.
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

    /// Extension: queues a packet with this key after `delay`.
    ///
    /// A port has one such alarm: setting it again replaces the time before. A list of timers in order of time needs no
    /// more: set the alarm whenever a timer becomes the first, and when it goes off, for the next. The packet comes no
    /// earlier than asked for, and carries 0 in its other fields. One that was queued before still comes when the alarm is set
    /// again. It needs no thread that waits with a timeout.
    ///
    /// Give the same key every time: Windows' own port keeps the first one.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] and [`Error::OtherProcess`]; [`Error::Os`] if the system has no timer left.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = socknotify::CompletionPort::new()?;
    /// let begin = Instant::now();
    /// port.set_alarm(Duration::from_secs(3600), 7)?;
    /// port.set_alarm(Duration::from_millis(5), 7)?;
    /// assert_eq!(port.dequeue_one(None)?.completion_key, 7);
    /// assert!(begin.elapsed() >= Duration::from_millis(5));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "timerfd_settime")]
    #[doc(alias = "SetTimer")]
    pub fn set_alarm(&self, delay: Duration, completion_key: usize) -> Result<(), Error> {
        let packet = Entry::new(completion_key, 0, 0);
        self.system.post_after(delay, packet)
    }

    /// The next call asks the system for what is ready, also if packets are queued.
    #[doc(hidden)]
    pub fn ask_next(&self) {
        self.system.ask_next();
    }

    /// Lends this thread's permit to another thread while `work` runs.
    ///
    /// For work that blocks. That a thread blocks is found out without it, but only after a fraction of a millisecond or more
    /// (see [Permits](Self#permits)); this gives the permit away at once. When `work` returns or panics, the thread has a permit
    /// again at once. So one thread more than the limit may run for a short time, as on Windows. On a thread without a permit of
    /// this port, and inside another such scope, this only runs `work`.
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
        let _lent = self.system.lend_permit();
        work()
    }

    /// Extension: gives this thread's permit back, if it holds one here.
    ///
    /// For a thread that is done with its packets and does not dequeue again soon. Without this call it keeps its permit
    /// until it dequeues from any port or ends; and level-triggered sockets that it was notified of are not notified to others.
    /// On Windows' own port this does nothing, because the kernel sees when a thread blocks.
    pub fn release(&self) {
        self.system.give_permit_back();
    }

    /// `CloseHandle` — Closes the port and releases the threads that wait in it, with
    /// [`Error::Closed`].
    ///
    /// All registrations end without a notification, and packets in the queue are dropped. The sockets stay open, and
    /// can be registered with another port when this returns. Every later call fails with [`Error::Closed`]. Closing
    /// twice does nothing.
    ///
    /// On Unix it waits for [operations](Self::read_at) that the system has begun, for as long as these take; the others
    /// are cancelled.
    #[doc(alias = "CloseHandle")]
    pub fn close(&self) {
        self.system.close();
        self.operations.close();
    }

    pub(crate) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// The backend that this port runs on.
    pub fn backend(&self) -> Backend {
        self.choice.backend
    }

    /// Why this port has that backend, as a short phrase for people.
    pub fn backend_reason(&self) -> &'static str {
        self.choice.reason
    }

    /// A port on what was made already.
    #[cfg(windows)]
    pub(crate) fn of(system: SystemPort) -> Self {
        CompletionPort {
            operations: Operations::new(system.clone()),
            system,
            choice: Choice {
                backend: Backend::Afd,
                reason: "asked for",
            },
        }
    }

    /// The port beneath, for the layer that owns connections, and for what only some systems have.
    pub(crate) fn system(&self) -> &SystemPort {
        &self.system
    }

    /// The concurrency value: how many threads run while they neither block nor compute for long.
    pub fn concurrency(&self) -> usize {
        self.system.concurrency()
    }

    /// When the port wakes a further thread.
    pub fn wake_policy(&self) -> WakePolicy {
        self.system.wake_policy()
    }

    /// What the port looks like at this moment, for diagnosis and for tests.
    #[doc(alias = "stats")]
    #[doc(alias = "metrics")]
    pub fn snapshot(&self) -> Snapshot {
        self.system.snapshot()
    }

    /// The threads that have had what they dequeued for this time at least, and what each does at this moment: whether it computes
    /// or waits, and in which system call.
    ///
    /// For a log or a page of diagnosis. It costs some file reads for each of them, on Linux. Call it again and again: a thread
    /// that nobody has looked at has its packets since the first call that sees them. One is not here while it is
    /// in [`blocking`](Self::blocking).
    ///
    /// Empty on Windows' own port, and in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # fn main() -> std::io::Result<()> {
    /// let port = socknotify::CompletionPort::new()?;
    /// for thread in port.slow(Duration::from_millis(100)) {
    ///     println!("{:?} for {:?} in {:?}", thread.name, thread.time, thread.system_call);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn slow(&self, time: Duration) -> Vec<SlowThread> {
        let threads = self.system.slow(&mut |_, it| it >= time);
        threads.into_iter().map(|(thread, _)| thread).collect()
    }
}

impl Drop for CompletionPort {
    fn drop(&mut self) {
        self.close();
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
    is_strict: bool,
}

impl Builder {
    /// The concurrency value: how many threads run while they neither block nor compute for long
    /// ([Permits](CompletionPort#permits)). 0, the default, means the [available
    /// parallelism](std::thread::available_parallelism).
    #[doc(alias = "NumberOfConcurrentThreads")]
    pub fn concurrency(mut self, threads: usize) -> Self {
        self.concurrency = threads;
        self
    }

    /// When the port wakes a further thread for a socket that becomes ready: by default [`WakePolicy::BOUNDED`], and on Windows
    /// [`WakePolicy::Eager`].
    pub fn wake_policy(mut self, policy: WakePolicy) -> Self {
        self.wake_policy = policy;
        self
    }

    /// No more threads run than the concurrency value says, also while those that hold permits block or compute, but for
    /// threads that return from a [scope of blocking work](CompletionPort::blocking).
    ///
    /// A thread that blocks keeps its permit then, unless it says so. On Windows' own port the kernel gives the permit to
    /// another thread even so.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let port = socknotify::CompletionPort::builder().concurrency(1).strict().build()?;
    /// assert_eq!(port.snapshot().limit, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// A permit for every thread: no packet waits for one. For programs that limit the number of their threads
    /// themselves, such as an executor with one per processor.
    pub fn unlimited(self) -> Self {
        self.concurrency(usize::MAX)
    }

    /// The backend to use. By default the port takes the best one that works.
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
            threads => threads,
        };
        let system = choice
            .backend
            .open(concurrency, self.wake_policy, !self.is_strict)?;
        Ok(CompletionPort {
            operations: Operations::new(system.clone()),
            system,
            choice,
        })
    }
}

/// Lets another event loop watch the port: its descriptor is readable when a dequeue would return a packet, and now and
/// then without a reason.
///
/// No thread should wait in such a port: dequeue with a timeout of zero. Call this before other threads dequeue: level-triggered
/// sockets that they were notified of count as not ready until they dequeue again.
#[cfg(unix)]
impl AsFd for CompletionPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.system().expose().as_fd()
    }
}
