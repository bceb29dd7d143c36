//! [`Registration`]: what a port does with one socket; and the masks in it.

use std::marker::PhantomData;

use bitflags::bitflags;

use super::socket::{self, AsSocket, BorrowedSocket, RawSocket};
use crate::{Events, RegistrationError};

bitflags! {
    /// The conditions to be notified of: `SOCK_NOTIFY_REGISTER_EVENT_*`.
    ///
    /// [`Events::ERR`] and [`Events::REMOVE`] come whatever the filter is. An entry fails if its filter has an unknown
    /// bit, or a condition that this system does not report.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "eventFilter")]
    pub struct EventFilter: u16 {
        /// A receive would not block: data, end of stream, or a connection to accept.
        #[doc(alias = "READ")]
        #[doc(alias = "READABLE")]
        #[doc(alias = "SOCK_NOTIFY_REGISTER_EVENT_IN")]
        const IN = 0x01;
        /// A send would not block, or a non-blocking connect succeeded.
        #[doc(alias = "WRITE")]
        #[doc(alias = "WRITABLE")]
        #[doc(alias = "SOCK_NOTIFY_REGISTER_EVENT_OUT")]
        const OUT = 0x02;
        /// A stream was disconnected by its peer, or aborted. Datagram sockets of the Internet never have it.
        #[doc(alias = "SOCK_NOTIFY_REGISTER_EVENT_HANGUP")]
        const HANGUP = 0x04;
        /// Extension: urgent data can be received (`POLLPRI`). On Linux, and on Windows over AFD.
        #[doc(alias = "EPOLLPRI")]
        #[doc(alias = "POLLPRI")]
        const PRIORITY = 0x4000;
        /// Extension: both directions are shut down, or the connection was reset. [`HANGUP`](Self::HANGUP) alone may
        /// mean that only the peer has shut down its side. On Linux.
        #[doc(alias = "EPOLLHUP")]
        #[doc(alias = "POLLHUP")]
        const FULL_HANGUP = 0x8000;
        // Any bit can be carried, so that a wrong one reaches the check and gets a clear error.
        const _ = !0;
    }
}

impl EventFilter {
    /// No condition: only errors and the removal are notified.
    #[doc(alias = "SOCK_NOTIFY_REGISTER_EVENT_NONE")]
    pub const NONE: Self = Self::empty();
    /// Every condition of the Windows interface.
    #[doc(alias = "SOCK_NOTIFY_REGISTER_EVENTS_ALL")]
    pub const ALL: Self = Self::IN.union(Self::OUT).union(Self::HANGUP);

    /// What a notification can show with this filter, apart from REMOVE.
    pub(crate) fn wanted(self) -> Events {
        Events::from_bits_truncate(u32::from(self.bits())) | Events::ERR
    }
}

bitflags! {
    /// What to do with the socket: `SOCK_NOTIFY_OP_*`.
    ///
    /// An entry asks for one of these at most. Two at once, or an unknown bit, make it fail and
    /// change nothing.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Operation: u8 {
        /// Register the socket, or give its registration a new filter and trigger and enable it.
        #[doc(alias = "SOCK_NOTIFY_OP_ENABLE")]
        const ENABLE = 0x01;
        /// Stop notifications and keep the registration with its completion key.
        #[doc(alias = "SOCK_NOTIFY_OP_DISABLE")]
        const DISABLE = 0x02;
        /// End the registration. A last notification, with the REMOVE bit, follows.
        #[doc(alias = "SOCK_NOTIFY_OP_REMOVE")]
        const REMOVE = 0x04;
        const _ = !0;
    }
}

impl Operation {
    /// Do nothing, successfully.
    #[doc(alias = "SOCK_NOTIFY_OP_NONE")]
    pub const NONE: Self = Self::empty();
}

bitflags! {
    /// When notifications come, and how often: `SOCK_NOTIFY_TRIGGER_*`.
    ///
    /// Exactly one of [`LEVEL`](Self::LEVEL) and [`EDGE`](Self::EDGE) is needed, and at most one of
    /// [`ONESHOT`](Self::ONESHOT) and [`PERSISTENT`](Self::PERSISTENT); neither of the latter two
    /// means PERSISTENT.
    ///
    /// Use `ONESHOT | LEVEL` for servers with several threads: the thread that dequeues the notification has the socket
    /// to itself until it enables it again.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "triggerFlags")]
    pub struct Trigger: u8 {
        /// Dequeuing the next notification disables the registration, with all its conditions.
        #[doc(alias = "SOCK_NOTIFY_TRIGGER_ONESHOT")]
        const ONESHOT = 0x01;
        /// The registration stays enabled when a notification is dequeued.
        #[doc(alias = "SOCK_NOTIFY_TRIGGER_PERSISTENT")]
        const PERSISTENT = 0x02;
        /// Notify whenever a wanted condition holds.
        #[doc(alias = "SOCK_NOTIFY_TRIGGER_LEVEL")]
        const LEVEL = 0x04;
        /// Notify when a wanted condition begins to hold.
        #[doc(alias = "SOCK_NOTIFY_TRIGGER_EDGE")]
        const EDGE = 0x08;
        /// Extension, with [`EDGE`](Self::EDGE): also notify of conditions that hold at ENABLE already, as `EPOLLET`
        /// does. Not on Windows' own port.
        #[doc(alias = "EPOLLET")]
        const INITIAL = 0x10;
        const _ = !0;
    }
}

impl Trigger {
    /// Every trigger bit of the Windows interface. Not a valid combination.
    #[doc(alias = "SOCK_NOTIFY_TRIGGER_ALL")]
    pub const ALL: Self = Self::ONESHOT
        .union(Self::PERSISTENT)
        .union(Self::LEVEL)
        .union(Self::EDGE);

    /// Whether the bits are a combination that a registration may have.
    pub(crate) const fn is_valid(self) -> bool {
        Self::ALL.union(Self::INITIAL).contains(self)
            && (!self.contains(Self::INITIAL) || self.contains(Self::EDGE))
            && self.contains(Self::LEVEL) != self.contains(Self::EDGE)
            && !self.contains(Self::ONESHOT.union(Self::PERSISTENT))
    }
}

/// One socket and what to do with it: `SOCK_NOTIFY_REGISTRATION`.
///
/// A batch of these is the first half of [`CompletionPort::process`](crate::CompletionPort::process).
/// The socket is borrowed for as long as the value lives; the port itself keeps no reference to it.
/// After the call each entry holds its own [`result`](Self::result).
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
///
/// let mut batch = [
///     Registration::enable(&listener, 1, EventFilter::IN, Trigger::LEVEL),
///     Registration::enable(&datagrams, 2, EventFilter::IN, Trigger::EDGE),
///     Registration::enable(&datagrams, 3, EventFilter::IN, Trigger::EDGE),
/// ];
/// port.process(&mut batch, &mut [], Some(std::time::Duration::ZERO))?;
/// assert!(batch[0].result().is_ok());
/// assert!(batch[1].result().is_ok());
/// // A registration keeps the completion key that it was made with.
/// assert!(batch[2].result().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "SOCK_NOTIFY_REGISTRATION")]
pub struct Registration<'socket> {
    /// The value that each notification carries. For ENABLE only; the other operations ignore it.
    #[doc(alias = "completionKey")]
    pub completion_key: usize,
    /// The conditions to be notified of. For ENABLE only.
    #[doc(alias = "eventFilter")]
    pub event_filter: EventFilter,
    /// What to do.
    pub operation: Operation,
    /// When notifications come. For ENABLE only.
    #[doc(alias = "triggerFlags")]
    pub trigger: Trigger,
    socket: RawSocket,
    pub(crate) result: Result<(), RegistrationError>,
    pub(crate) extra: Extra,
    /// Nobody closes the descriptor before the call returns.
    pub(crate) is_borrowed: bool,
    borrowed: PhantomData<BorrowedSocket<'socket>>,
}

/// What an entry asks for that the Windows interface does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    Nothing,
    /// Arm a socket that the port owns, and that was adopted and is enabled under this key.
    Owned,
    /// ENABLE only what this port does not have.
    New,
    /// ENABLE or DISABLE only what this port has.
    Known,
    /// ENABLE any descriptor that can be watched.
    Descriptor,
    /// REMOVE at once, without a notification.
    Silent,
}

impl Extra {
    /// Whether it asks for something that the Windows interface could not do.
    #[inline]
    pub(crate) fn is_extension(self) -> bool {
        !matches!(self, Extra::Nothing | Extra::Owned)
    }
}

impl<'socket> Registration<'socket> {
    /// An entry that does nothing; set its fields for any other operation.
    pub fn new<S: AsSocket + ?Sized>(socket: &'socket S) -> Self {
        Self::of(socket::raw(socket))
    }

    /// ENABLE: register `socket` with `completion_key`, or overwrite the filter and the trigger of
    /// its registration and enable it.
    #[doc(alias = "SOCK_NOTIFY_OP_ENABLE")]
    pub fn enable<S: AsSocket + ?Sized>(
        socket: &'socket S,
        completion_key: usize,
        event_filter: EventFilter,
        trigger: Trigger,
    ) -> Self {
        Registration {
            completion_key,
            event_filter,
            operation: Operation::ENABLE,
            trigger,
            ..Self::new(socket)
        }
    }

    /// Extension: ENABLE for a socket that this port does not have. If it does, the entry fails with
    /// [`RegistrationError::AlreadyRegistered`], and changes nothing.
    ///
    /// On Unix, as with `epoll`, other ports may have the socket, too, and do not notice.
    ///
    /// On Windows' own port the entry fails with [`InvalidOperation`](RegistrationError::InvalidOperation); so does
    /// [`change`](Self::change).
    #[doc(alias = "EPOLL_CTL_ADD")]
    pub fn add<S: AsSocket + ?Sized>(
        socket: &'socket S,
        completion_key: usize,
        event_filter: EventFilter,
        trigger: Trigger,
    ) -> Self {
        Registration {
            extra: Extra::New,
            ..Self::enable(socket, completion_key, event_filter, trigger)
        }
    }

    /// Extension: ENABLE for a socket that this port has. If it has not, the entry fails with
    /// [`RegistrationError::NotFound`].
    #[doc(alias = "EPOLL_CTL_MOD")]
    pub fn change<S: AsSocket + ?Sized>(
        socket: &'socket S,
        completion_key: usize,
        event_filter: EventFilter,
        trigger: Trigger,
    ) -> Self {
        Registration {
            extra: Extra::Known,
            ..Self::enable(socket, completion_key, event_filter, trigger)
        }
    }

    /// Extension: ENABLE for any descriptor that the system can watch: a pipe, a terminal, an `eventfd`,
    /// `timerfd`, `signalfd`, `pidfd` or `inotify` descriptor, another port.
    ///
    /// IN, OUT and ERR mean the same as in `poll`. HANGUP is `POLLHUP`, and comes with IN, since a read does not block
    /// then. DISABLE and REMOVE work as for a socket.
    ///
    /// The port cannot identify such a descriptor while it is disabled. So remove one that you are about to close,
    /// rather than disable it. Several ports may watch one descriptor.
    ///
    /// A regular file or a directory fails with [`RegistrationError::NotWatchable`].
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::{CompletionPort, Entry, EventFilter, Events, Registration, Trigger};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// // One port watches another.
    /// let [outer, inner] = [CompletionPort::new()?, CompletionPort::new()?];
    /// outer.register(Registration::descriptor(&inner, 7, EventFilter::IN, Trigger::LEVEL))?;
    /// inner.post(Entry::new(8, 0, 0))?;
    /// let entry = outer.dequeue_one(None)?;
    /// assert_eq!((entry.completion_key, entry.events()), (7, Events::IN));
    /// assert_eq!(inner.dequeue_one(None)?.completion_key, 8);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(unix)]
    pub fn descriptor<D: std::os::fd::AsFd + ?Sized>(
        descriptor: &'socket D,
        completion_key: usize,
        event_filter: EventFilter,
        trigger: Trigger,
    ) -> Self {
        Registration {
            extra: Extra::Descriptor,
            ..Self::enable(descriptor, completion_key, event_filter, trigger)
        }
    }

    /// Extension: end the registration at once, without a notification.
    ///
    /// After the call no thread dequeues a notification of this registration: a queued one is withdrawn, and no REMOVE
    /// comes. A thread that has dequeued one before may still be working on it. The socket can be registered again at
    /// once, with any key.
    ///
    /// On Windows' own port the entry fails with [`InvalidOperation`](RegistrationError::InvalidOperation).
    #[doc(alias = "EPOLL_CTL_DEL")]
    pub fn deregister<S: AsSocket + ?Sized>(socket: &'socket S) -> Self {
        Registration {
            extra: Extra::Silent,
            ..Self::remove(socket)
        }
    }

    /// DISABLE: no new notifications until the socket is enabled again.
    ///
    /// For a socket that is not registered with the port it does nothing, successfully.
    /// A notification that is queued already may still be dequeued.
    #[doc(alias = "SOCK_NOTIFY_OP_DISABLE")]
    pub fn disable<S: AsSocket + ?Sized>(socket: &'socket S) -> Self {
        Registration {
            operation: Operation::DISABLE,
            ..Self::new(socket)
        }
    }

    /// REMOVE: end the registration. One last notification with
    /// [`Events::REMOVE`] follows.
    ///
    /// Keep the socket open until that notification was dequeued. If you close it earlier, the notification still
    /// comes, but until then another thread may hold an earlier one.
    #[doc(alias = "SOCK_NOTIFY_OP_REMOVE")]
    pub fn remove<S: AsSocket + ?Sized>(socket: &'socket S) -> Self {
        Registration {
            operation: Operation::REMOVE,
            ..Self::new(socket)
        }
    }

    /// An entry for a descriptor number that need not be open.
    ///
    /// For interfaces that take plain numbers, such as a C interface. If the number is no open socket, the entry fails
    /// with [`RegistrationError::NotASocket`] or [`NotOpen`](RegistrationError::NotOpen).
    ///
    /// # Safety
    ///
    /// The number must be a socket that the caller owns or borrows, or no open descriptor at all. Otherwise the call
    /// may register a socket of other code, or end its registration, which Rust's rules of I/O safety forbid. Memory is
    /// never affected.
    #[allow(
        unsafe_code,
        reason = "declares the promise of I/O safety; nothing here relies on it"
    )]
    pub unsafe fn from_raw(socket: RawSocket) -> Self {
        Registration {
            is_borrowed: false,
            ..Self::of(socket)
        }
    }

    /// ENABLE for a one-shot, level-triggered registration of a socket that was adopted under this key.
    #[inline]
    pub(crate) fn arm(socket: RawSocket, completion_key: usize, event_filter: EventFilter) -> Self {
        Registration {
            completion_key,
            event_filter,
            operation: Operation::ENABLE,
            trigger: Trigger::ONESHOT.union(Trigger::LEVEL),
            extra: Extra::Owned,
            ..Self::of(socket)
        }
    }

    fn of(socket: RawSocket) -> Self {
        Registration {
            completion_key: 0,
            event_filter: EventFilter::NONE,
            operation: Operation::NONE,
            trigger: Trigger::empty(),
            socket,
            result: Ok(()),
            extra: Extra::Nothing,
            is_borrowed: true,
            borrowed: PhantomData,
        }
    }

    /// The outcome of this entry in the latest call that applied it: `registrationResult`.
    ///
    /// # Errors
    ///
    /// Why this entry failed. The other entries of its batch are not affected.
    #[doc(alias = "registrationResult")]
    pub fn result(&self) -> Result<(), RegistrationError> {
        self.result
    }

    /// The descriptor number of the socket.
    pub fn raw_socket(&self) -> RawSocket {
        self.socket
    }

    /// Whether this enables what the Windows interface can. Its trigger may not be valid.
    #[inline]
    pub(crate) fn is_usual_enable(&self) -> bool {
        self.operation == Operation::ENABLE
            && !self.extra.is_extension()
            && EventFilter::ALL.contains(self.event_filter)
    }

    /// Whether this is of a socket that the port owns.
    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        self.extra == Extra::Owned
    }

    /// Check what can be checked without asking for the socket's state.
    ///
    /// `conditions` are those that the system can report.
    pub(crate) fn check(&self, conditions: EventFilter) -> Result<(), RegistrationError> {
        match self.operation {
            Operation::NONE | Operation::ENABLE | Operation::DISABLE | Operation::REMOVE => {}
            _ => return Err(RegistrationError::InvalidOperation),
        }
        if self.operation == Operation::ENABLE {
            if !conditions.contains(self.event_filter) {
                return Err(RegistrationError::InvalidFilter);
            }
            if !self.trigger.is_valid() {
                return Err(RegistrationError::InvalidTrigger);
            }
        }
        Ok(())
    }
}
