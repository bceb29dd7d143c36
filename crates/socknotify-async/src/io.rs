//! [`Async`]: any socket or descriptor, in tasks.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use socket2::SockRef;
use socknotify::{EventFilter, RegisterError, Registration, RegistrationError, Trigger};

use crate::context;
use crate::shared::Shared;
use crate::source::{Direction, Seen, Source, shut_down};

#[cfg(unix)]
pub(crate) use std::os::fd::AsFd as AsSource;
#[cfg(windows)]
pub(crate) use std::os::windows::io::AsSocket as AsSource;

/// A socket, or on Unix any descriptor that the system can watch, for use in tasks.
///
/// [`read_with`](Self::read_with) and [`write_with`](Self::write_with) run any operation of it, and wait while it would
/// block. What implements [`Read`] and [`Write`] has the traits of `futures-io`, and those of other crates behind
/// features; so has a reference, if a reference reads and writes.
///
/// It is registered with the runtime's port once. As long as it is ready, an operation costs its own system call alone.
/// Dropping it deregisters and closes it.
///
/// Any number of tasks may wait for it at once by the methods that are `async`. By the traits, one task reads and one
/// writes.
///
/// # Examples
///
/// ```
/// use std::net::UdpSocket;
/// use socknotify_async::Async;
///
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let socket = Async::new(UdpSocket::bind("127.0.0.1:0")?)?;
/// let address = socket.get_ref().local_addr()?;
/// socket.write_with(|socket| socket.send_to(b"ping", address)).await?;
/// let mut buffer = [0; 16];
/// let (length, _) = socket.read_with(|socket| socket.recv_from(&mut buffer)).await?;
/// assert_eq!(&buffer[..length], b"ping");
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Async<T: AsSource> {
    /// `None` only while it is dropped.
    io: Option<T>,
    source: Arc<Source>,
    shared: Arc<Shared>,
}

/// What a socket that is only read is registered for.
const READ: EventFilter = EventFilter::IN.union(EventFilter::HANGUP);
/// Whether what holds already is reported, too.
const TELLS: bool = cfg!(unix);
const TRIGGER: Trigger = match TELLS {
    true => Trigger::PERSISTENT
        .union(Trigger::EDGE)
        .union(Trigger::INITIAL),
    false => Trigger::PERSISTENT.union(Trigger::EDGE),
};

impl<T: AsSource> Async<T> {
    /// Puts a socket into non-blocking mode, and registers it with the current runtime.
    ///
    /// Duplicates of the descriptor are in non-blocking mode, too.
    ///
    /// # Errors
    ///
    /// The system's; and a [`RegistrationError`] if it cannot be watched, or is registered with another port.
    ///
    /// # Panics
    ///
    /// If this thread is in no runtime.
    #[track_caller]
    pub fn new(io: T) -> io::Result<Self> {
        let shared = context::expect();
        SockRef::from(&io).set_nonblocking(true)?;
        Self::of_nonblocking(io, shared)
    }

    /// The same for what is in non-blocking mode.
    pub(crate) fn of_nonblocking(io: T, shared: Arc<Shared>) -> io::Result<Self> {
        let this = Self::of_accepted(io, shared)?;
        this.ensure_registered(Direction::Write)?;
        Ok(this)
    }

    /// The same for a connection that was accepted. It is registered when a task waits for it: a short one may never be.
    pub(crate) fn of_accepted(io: T, shared: Arc<Shared>) -> io::Result<Self> {
        if !shared.is_here() {
            return Err(socknotify::Error::OtherProcess.into());
        }
        let this = Async {
            io: Some(io),
            source: shared.sources.add(),
            shared,
        };
        // Who shuts the runtime down tells those that there are by then, and nobody tells this one.
        match this.shared.is_closed() {
            true => Err(shut_down()),
            false => Ok(this),
        }
    }

    #[inline]
    fn ensure_registered(&self, direction: Direction) -> io::Result<()> {
        match self.source.is_registered(direction) {
            true => Ok(()),
            false => self.register(direction),
        }
    }

    /// Where it is to be read, that it has room for what is sent is not asked for: nearly every one has, and that would be reported.
    #[cold]
    fn register(&self, direction: Direction) -> io::Result<()> {
        let io = self.get_ref();
        let filter = match direction {
            Direction::Read => READ,
            Direction::Write => EventFilter::ALL,
        };
        let enable = Registration::enable(io, self.source.key, filter, TRIGGER);
        let register = |enable| self.shared.register(|port| port.register(enable));
        let register_for = |enable| self.source.register(direction, TELLS, || register(enable));
        let registered = register_for(enable);
        #[cfg(unix)]
        let registered = match registered {
            Err(RegisterError::Entry(RegistrationError::NotASocket)) => register_for(
                Registration::descriptor(io, self.source.key, filter, TRIGGER),
            ),
            registered => registered,
        };
        registered.map_err(|error| match error {
            RegisterError::Call(socknotify::Error::Closed) => shut_down(),
            error => error.into(),
        })
    }

    /// The socket. Operations on it may fail with [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn get_ref(&self) -> &T {
        self.io.as_ref().expect("it is there until this is dropped")
    }

    /// Deregisters the socket, and returns it. It stays in non-blocking mode.
    ///
    /// On Windows' own port it can be registered again only when a thread has dequeued that it was removed.
    ///
    /// # Errors
    ///
    /// A [`RegistrationError`] if it is not the socket that was registered. It is closed then.
    pub fn into_inner(mut self) -> io::Result<T> {
        let outcome = self.deregister();
        let io = self.io.take().expect("it is there until this is dropped");
        outcome.map(|()| io)
    }

    fn deregister(&self) -> io::Result<()> {
        let shared = &self.shared;
        if !shared.is_here() {
            return Ok(());
        }
        self.source.leaves();
        let io = self.get_ref();
        let mut outcome = Ok(());
        if self.source.is_registered(Direction::Read) {
            outcome = shared.register(|port| port.deregister(io));
        }
        if outcome == Err(RegisterError::Entry(RegistrationError::InvalidOperation)) {
            // The kernel's own port has no such call. What it still reports wakes nobody.
            outcome = shared.register(|port| port.register(Registration::remove(io)));
        }
        shared.sources.remove(&self.source);
        match outcome {
            Ok(()) | Err(RegisterError::Call(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the socket may be readable: data, the end of the stream, a connection to accept, or an error.
    ///
    /// Once it was, it returns at once until an operation has found otherwise: one of [`read_with`](Self::read_with),
    /// [`try_read_with`](Self::try_read_with) or the traits. Operations on [`get_ref`](Self::get_ref) tell it nothing. (On
    /// Windows it returns at once also for a socket with which nothing was tried, and once more for one that was accepted.)
    ///
    /// # Errors
    ///
    /// If the runtime has shut down.
    pub async fn readable(&self) -> io::Result<()> {
        self.waits(Direction::Read).await
    }

    /// Waits until a send may not block: there is room, a connect has ended, or an error. As [`readable`](Self::readable).
    ///
    /// # Errors
    ///
    /// If the runtime has shut down.
    pub async fn writable(&self) -> io::Result<()> {
        self.waits(Direction::Write).await
    }

    async fn waits(&self, direction: Direction) -> io::Result<()> {
        // Who has spent its budget would otherwise try in vain, and wait for nothing, again and again.
        context::spends().await;
        self.doubt(direction)?;
        self.ready(direction).await.map(drop)
    }

    fn doubt(&self, direction: Direction) -> io::Result<()> {
        // Elsewhere what holds already may not be reported.
        if TELLS {
            self.ensure_registered(direction)?;
            self.source.doubt(direction);
        }
        Ok(())
    }

    /// [`readable`](Self::readable) for those who write futures by hand: for one task.
    ///
    /// # Errors
    ///
    /// If the runtime has shut down.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_waits(cx, Direction::Read)
    }

    /// [`writable`](Self::writable) for those who write futures by hand: for one task.
    ///
    /// # Errors
    ///
    /// If the runtime has shut down.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_waits(cx, Direction::Write)
    }

    fn poll_waits(&self, cx: &mut Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        let polled = match self.doubt(direction) {
            Ok(()) => self.source.poll(cx, direction).map_ok(drop),
            Err(error) => Poll::Ready(Err(error)),
        };
        // To wait is no operation: a task may wait for more sockets than its poll has of these.
        if polled.is_ready() {
            ready!(self.source.spend(cx, direction));
        }
        polled
    }

    /// Runs an operation that receives, whenever the socket may be readable, until it does not fail with
    /// [`WouldBlock`](ErrorKind::WouldBlock). It must return this error only if the system did, for this socket.
    ///
    /// If the future is dropped, the operation has not been done.
    ///
    /// # Errors
    ///
    /// The operation's own; and one if the runtime has shut down.
    pub async fn read_with<R>(&self, receive: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.with(Direction::Read, receive).await
    }

    /// The same for an operation that sends, or connects.
    ///
    /// # Errors
    ///
    /// The operation's own; and one if the runtime has shut down.
    pub async fn write_with<R>(&self, send: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.with(Direction::Write, send).await
    }

    /// Runs an operation that receives once. If it would block, the socket is not [readable](Self::readable) until more
    /// comes.
    ///
    /// # Errors
    ///
    /// The operation's own, also [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_read_with<R>(&self, receive: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Direction::Read, self.source.seen(Direction::Read), receive)
    }

    /// The same for an operation that sends.
    ///
    /// # Errors
    ///
    /// The operation's own, also [`WouldBlock`](ErrorKind::WouldBlock).
    pub fn try_write_with<R>(&self, send: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Direction::Write, self.source.seen(Direction::Write), send)
    }

    fn attempt<R>(
        &self,
        direction: Direction,
        seen: Seen,
        operation: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let outcome = operation(self.get_ref());
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            // Here who waits registers it, and is told what came meanwhile.
            if !TELLS {
                self.ensure_registered(direction)?;
            }
            self.source.clear(direction, seen);
        }
        outcome
    }

    async fn with<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        context::spends().await;
        loop {
            let seen = self.ready(direction).await?;
            match self.attempt(direction, seen, &mut operation) {
                Err(error) if is_passing(&error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Waits beside any number of other tasks.
    async fn ready(&self, direction: Direction) -> io::Result<Seen> {
        struct Wait<'a>(&'a Source, Direction, u64);
        impl Drop for Wait<'_> {
            fn drop(&mut self) {
                if self.2 > 0 {
                    self.0.forget(self.1, self.2);
                }
            }
        }
        let mut wait = Wait(&self.source, direction, 0);
        poll_fn(|cx| {
            let polled = wait.0.poll_beside(cx, direction, &mut wait.2);
            if polled.is_pending() {
                self.ensure_registered(direction)?;
            }
            polled
        })
        .await
    }

    /// One operation, or waiting for it as the only task that does in this direction.
    #[inline]
    pub(crate) fn poll_with<R>(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        mut operation: impl FnMut(&T, Drained<'_>) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let Poll::Ready(seen) = self.source.poll(cx, direction) else {
                if !self.source.is_registered(direction) {
                    if let Err(error) = self.register_when_polled(cx, direction) {
                        return self.source.spend(cx, direction).map(|()| Err(error));
                    }
                }
                return Poll::Pending;
            };
            // As above.
            ready!(self.source.spend(cx, direction));
            let seen = seen?;
            let drained = Drained(&self.source, direction, seen);
            match self.attempt(direction, seen, |io| operation(io, drained)) {
                Err(error) if is_passing(&error) => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    /// When this poll of the task is over, or at once if it is no task's, or waits inside of its poll.
    #[cfg_attr(windows, allow(unused_variables, reason = "it is registered at once"))]
    fn register_when_polled(&self, cx: &Context<'_>, direction: Direction) -> io::Result<()> {
        #[cfg(unix)]
        if direction == Direction::Read
            && self.shared.is_polling()
            && context::is_polled(cx.waker())
            && self.source.put_off()
        {
            use std::os::fd::AsRawFd;
            let fd = self.get_ref().as_fd().as_raw_fd();
            context::put_off(Arc::clone(&self.source), fd);
            return Ok(());
        }
        self.register(direction)
    }

    /// An operation in the direction of sending is about to be done, for which nobody has to wait.
    pub(crate) fn spend(&self, cx: &Context<'_>) -> Poll<()> {
        self.source.spend(cx, Direction::Write)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// A poll of this thread is over: register what its task waits for.
    #[cfg(unix)]
    pub(crate) fn register_put_off(&self) {
        while let Some((source, fd)) = context::next_put_off() {
            source.register_put_off(|| {
                // It is open: who closes it says so before, and waits for this meanwhile.
                let register = |port: &_| {
                    socknotify::interface::register_number(port, fd, source.key, READ, TRIGGER)
                };
                self.register(register)
            });
        }
    }
}

/// Lets an operation say that it has taken all there was, so that the next one need not find that out.
#[derive(Clone, Copy)]
pub(crate) struct Drained<'a>(&'a Source, Direction, Seen);

impl Drained<'_> {
    /// A stream has given this many bytes of as many as there was room for. Fewer are all that it had.
    ///
    /// If its end was there when it was registered, Windows does not report it: there it has to be looked for.
    #[inline]
    pub(crate) fn note(self, count: usize, room: usize) {
        if cfg!(unix) && (1..room).contains(&count) {
            self.0.drained(self.1, self.2);
        }
    }
}

/// To wait, or to try again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl<T: AsSource> Drop for Async<T> {
    fn drop(&mut self) {
        if self.io.is_some() {
            let _ = self.deregister();
        }
    }
}

impl<T: AsSource + fmt::Debug> fmt::Debug for Async<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Async").field(self.get_ref()).finish()
    }
}

impl<T: AsSource> AsRef<T> for Async<T> {
    fn as_ref(&self) -> &T {
        self.get_ref()
    }
}

impl<T: AsSource> Unpin for Async<T> {}

/// By shared references to what is in it, so also for a reference to this.
macro_rules! impl_read_and_write {
    ($($type:ty),*) => {$(
        impl<T: AsSource> AsyncRead for $type
        where
            for<'a> &'a T: Read,
        {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_with(cx, Direction::Read, |mut io, _| io.read(buffer))
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                self.poll_with(cx, Direction::Read, |mut io, _| io.read_vectored(buffers))
            }
        }

        impl<T: AsSource> AsyncWrite for $type
        where
            for<'a> &'a T: Write,
        {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.poll_with(cx, Direction::Write, |mut io, _| io.write(bytes))
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.poll_with(cx, Direction::Write, |mut io, _| io.write_vectored(buffers))
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                // A socket has nothing to flush, and need not be writable for that.
                match self.get_ref().flush() {
                    Err(error) if is_passing(&error) => {}
                    outcome => return Poll::Ready(outcome),
                }
                self.poll_with(cx, Direction::Write, |mut io, _| io.flush())
            }

            /// Flushes. To close the descriptor, drop the value.
            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_flush(cx)
            }
        }
    )*};
}

impl_read_and_write!(Async<T>, &Async<T>);
