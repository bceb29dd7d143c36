//! The packets that an owning port posts to itself.
//!
//! A packet of a connection or of a shared socket has the [key](crate::slots::Slots::key) of its slot.
//! The key of a stale packet, or of one from elsewhere, finds nothing.

use crate::Entry;

/// Numbers of [reserved keys](crate::slots::Slots::reserved_key).
///
/// There is one such packet for each message in the list of messages.
pub(super) const MESSAGE: u32 = 0;
/// A deadline may have passed.
pub(super) const TIMER: u32 = 1;
/// There is one such packet for each notice in the list of notices.
pub(super) const NOTICE: u32 = 2;
/// An operation on a file has completed: the overlapped value says which.
pub(super) const OPERATION: u32 = 5;
/// The system reports something about an operation on a file.
pub(super) const KERNEL_IO: u32 = 6;

/// The reasons in the packet of a connection, in place of events: one bit each. If a connection has several, the lowest
/// bit comes first.
pub(super) const CANCELLED: u32 = 1 << 30;
pub(super) const TIMED_OUT: u32 = 1 << 31;
pub(super) const DRAINING: u32 = 1 << 29;
pub(super) const ACCEPTED: u32 = 1 << 27;
/// The connection or listener is still to be armed, for the filter in the lower 16 bits.
pub(super) const ARM: u32 = 1 << 26;
/// A listener need not pause any more.
pub(super) const RESUMED: u32 = 1 << 28;

/// The overlapped value of a packet of a connection that was dequeued before. In others it is 0, the key of an operation
/// on a file, or the address of an operation that [has completed](is_completion).
pub(super) const HANDED_ON: usize = 1;

/// Whether a packet belongs to an operation, rather than a registration.
pub(super) fn is_completion(entry: &Entry) -> bool {
    entry.overlapped > HANDED_ON
}
