//! [`Entry`]: a packet that is dequeued; and its [`Events`].

use std::hash::{Hash, Hasher};

use bitflags::bitflags;

bitflags! {
    /// What a socket notification says: `SOCK_NOTIFY_EVENT_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Events: u32 {
        /// A receive would not block: data, end of stream, or a connection to accept.
        #[doc(alias = "READ")]
        #[doc(alias = "READABLE")]
        #[doc(alias = "SOCK_NOTIFY_EVENT_IN")]
        const IN = 0x01;
        /// A send would not block, or a non-blocking connect succeeded.
        #[doc(alias = "WRITE")]
        #[doc(alias = "WRITABLE")]
        #[doc(alias = "SOCK_NOTIFY_EVENT_OUT")]
        const OUT = 0x02;
        /// The stream was disconnected by its peer, or aborted.
        #[doc(alias = "SOCK_NOTIFY_EVENT_HANGUP")]
        const HANGUP = 0x04;
        /// Extension: urgent data can be received; only if [asked for](crate::EventFilter::PRIORITY).
        #[doc(alias = "EPOLLPRI")]
        const PRIORITY = 0x4000;
        /// Extension: both directions are shut down; only if [asked for](crate::EventFilter::FULL_HANGUP).
        #[doc(alias = "EPOLLHUP")]
        const FULL_HANGUP = 0x8000;
        /// The socket is in an error state; the next receive, or `SO_ERROR`, returns the error.
        #[doc(alias = "SOCK_NOTIFY_EVENT_ERR")]
        const ERR = 0x40;
        /// The registration has ended, and this is its last notification.
        ///
        /// You may free now what the completion key refers to.
        #[doc(alias = "SOCK_NOTIFY_EVENT_REMOVE")]
        const REMOVE = 0x80;
    }
}

impl Events {
    /// Every event of the Windows interface.
    #[doc(alias = "SOCK_NOTIFY_EVENTS_ALL")]
    pub const ALL: Self = Self::IN
        .union(Self::OUT)
        .union(Self::HANGUP)
        .union(Self::ERR)
        .union(Self::REMOVE);
}

/// A packet that was dequeued, or is to be posted: `OVERLAPPED_ENTRY`.
///
/// A socket notification carries the registration's completion key, the event mask in
/// [`transferred`](Self::transferred) and an [`overlapped`](Self::overlapped) value of 0. A packet
/// of the caller's own is dequeued as it was [posted](crate::CompletionPort::post). To tell the two apart, use distinct
/// completion keys, or [`origin`](Self::origin) where the port supports it.
///
/// Two entries are equal if they carry the same values, whatever their origin.
///
/// # Examples
///
/// ```
/// use socknotify::{CompletionPort, Entry};
///
/// # fn main() -> std::io::Result<()> {
/// const SHUT_DOWN: usize = usize::MAX;
///
/// let port = CompletionPort::new()?;
/// port.post(Entry::new(SHUT_DOWN, 0, 0))?;
/// let entry = port.dequeue_one(None)?;
/// assert_eq!(entry.completion_key, SHUT_DOWN);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[doc(alias = "OVERLAPPED_ENTRY")]
pub struct Entry {
    /// The key of the registration, or of the posted packet.
    #[doc(alias = "lpCompletionKey")]
    pub completion_key: usize,
    /// The event mask of a socket notification, or the value that a packet was posted with.
    #[doc(alias = "dwNumberOfBytesTransferred")]
    pub transferred: u32,
    /// 0 in a socket notification, or the value that a packet was posted with.
    #[doc(alias = "lpOverlapped")]
    pub overlapped: usize,
    /// How an operation on a file has ended, if that is what has completed.
    #[cfg(unix)]
    pub(crate) status: Status,
    /// The status in the kernel's packet of an operation, which is the caller's if the port is.
    #[cfg(windows)]
    pub(crate) status: i32,
    origin: Option<Origin>,
}

/// How an operation on a file has ended: an error number of the system, or one of two more. A packet carries it beside
/// the caller's block, which may be gone: a thread that has dequeued the packet may still be about to return when another
/// one closes the port.
#[cfg(unix)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

#[cfg(unix)]
impl Status {
    pub(crate) const SUCCESS: Self = Status(0);
    pub(crate) const END_OF_FILE: Self = Status(u16::MAX);
}

/// Where a packet comes from: see [`Entry::origin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// It was [posted](crate::CompletionPort::post).
    Posted,
    /// It is the notification of a registration.
    Notification,
    /// Something else has completed on the port.
    Completion,
}

impl Entry {
    /// A packet to post.
    pub const fn new(completion_key: usize, transferred: u32, overlapped: usize) -> Self {
        Entry {
            completion_key,
            transferred,
            overlapped,
            #[cfg(unix)]
            status: Status::SUCCESS,
            #[cfg(windows)]
            status: 0,
            origin: Some(Origin::Posted),
        }
    }

    /// A notification.
    pub(crate) const fn notification(completion_key: usize, events: Events) -> Self {
        Self::new(completion_key, events.bits(), 0).with_origin(Some(Origin::Notification))
    }

    /// This packet, from there. `None`: from the kernel's port, which does not say.
    pub(crate) const fn with_origin(self, origin: Option<Origin>) -> Self {
        Entry { origin, ..self }
    }

    /// This packet, from something else that has completed.
    pub(crate) const fn completion(self) -> Self {
        self.with_origin(Some(Origin::Completion))
    }

    /// This packet with an overlapped value.
    #[inline]
    pub(crate) const fn with_overlapped(self, overlapped: usize) -> Self {
        Entry { overlapped, ..self }
    }

    /// This packet, as it is posted.
    pub(crate) const fn posted(self) -> Self {
        Self::new(self.completion_key, self.transferred, self.overlapped)
    }

    /// Extension: where a dequeued packet comes from, so that you need not reserve completion keys. `None` on Windows'
    /// own port, which does not say.
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::{CompletionPort, Entry, Origin};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # #[cfg(target_os = "linux")] {
    /// let port = CompletionPort::new()?;
    /// port.post(Entry::new(7, 0, 0))?;
    /// assert_eq!(port.dequeue_one(None)?.origin(), Some(Origin::Posted));
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    pub const fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// What it carries.
    const fn values(&self) -> (usize, u32, usize) {
        (self.completion_key, self.transferred, self.overlapped)
    }

    /// The event mask of a socket notification: `SocketNotificationRetrieveEvents`.
    ///
    /// For a posted packet, bits that are not events are left out.
    #[doc(alias = "SocketNotificationRetrieveEvents")]
    pub const fn events(&self) -> Events {
        Events::from_bits_truncate(self.transferred)
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self::new(0, 0, 0)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl Eq for Entry {}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.values().hash(hasher);
    }
}

/// The number of an owned connection's arming: 14 bits, so that one that comes as late as 16,384 armings is taken for the
/// present one; and whether who dequeues its notification has to look at once. Packets carry it as an overlapped value,
/// which is odd; addresses are even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arming(u16);

impl Arming {
    pub(crate) const BITS: u32 = 15;
    const MASK: u16 = (1 << Self::BITS) - 1;
    const LOOK: u16 = 1 << (Self::BITS - 1);

    #[inline]
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Arming(bits & Self::MASK)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    #[inline]
    pub(crate) const fn next(self) -> Self {
        Arming(self.0 & Self::LOOK | self.0.wrapping_add(1) & !Self::LOOK & Self::MASK)
    }

    /// The same number; who dequeues its notification has to look at once, and so with all that follow.
    pub(crate) const fn to_look_at(self) -> Self {
        Arming(self.0 | Self::LOOK)
    }

    /// Whether who dequeues its notification has to look at once.
    #[inline]
    pub(crate) const fn is_to_look_at(self) -> bool {
        self.0 & Self::LOOK != 0
    }

    #[inline]
    pub(crate) const fn overlapped(self) -> usize {
        (self.0 as usize) << 1 | 1
    }

    /// The one that a packet carries.
    #[inline]
    pub(crate) const fn of(entry: &Entry) -> Option<Self> {
        match entry.overlapped & 1 {
            0 => None,
            _ => Some(Self::from_bits((entry.overlapped >> 1) as u16)),
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_no_larger_than_the_published_one() {
        assert!(size_of::<Entry>() <= 3 * size_of::<usize>() + size_of::<u64>());
    }
}
