//! What comes out of a port: [`Entry`] and its [`Events`].

use bitflags::bitflags;

bitflags! {
    /// What a socket notification says: `SOCK_NOTIFY_EVENT_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Events: u32 {
        /// A receive would not block: data, end of stream, or a connection to accept.
        #[doc(alias = "SOCK_NOTIFY_EVENT_IN")]
        const IN = 0x01;
        /// A send would not block, or a non-blocking connect succeeded.
        #[doc(alias = "SOCK_NOTIFY_EVENT_OUT")]
        const OUT = 0x02;
        /// The stream was disconnected by its peer, or aborted.
        #[doc(alias = "SOCK_NOTIFY_EVENT_HANGUP")]
        const HANGUP = 0x04;
        /// The socket is in an error state; the next receive, or `SO_ERROR`, says in which.
        #[doc(alias = "SOCK_NOTIFY_EVENT_ERR")]
        const ERR = 0x40;
        /// The registration is over, and this is its last notification.
        ///
        /// What the completion key stands for may be freed now.
        #[doc(alias = "SOCK_NOTIFY_EVENT_REMOVE")]
        const REMOVE = 0x80;
    }
}

impl Events {
    /// Every event there is.
    #[doc(alias = "SOCK_NOTIFY_EVENTS_ALL")]
    pub const ALL: Self = Self::all();
}

/// One packet out of a completion port: `OVERLAPPED_ENTRY`.
///
/// A socket notification carries the registration's completion key, the event mask in
/// [`transferred`](Self::transferred) and an [`overlapped`](Self::overlapped) value of 0. A packet
/// of the caller's own comes out as it was [posted](crate::CompletionPort::post). Which of the two
/// an entry is, its completion key must tell.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
}

impl Entry {
    /// A packet to post.
    pub const fn new(completion_key: usize, transferred: u32, overlapped: usize) -> Self {
        Entry {
            completion_key,
            transferred,
            overlapped,
        }
    }

    /// The event mask of a socket notification: `SocketNotificationRetrieveEvents`.
    ///
    /// Bits of a posted packet's value that are no events are left out.
    #[doc(alias = "SocketNotificationRetrieveEvents")]
    pub const fn events(&self) -> Events {
        Events::from_bits_truncate(self.transferred)
    }
}
