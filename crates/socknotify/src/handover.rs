//! [`Handover`]: what a thread has dequeued goes to others when the thread leaves its place.

/// What a thread has dequeued and not handled yet, where other threads reach it.
pub(crate) trait Handover: Send + Sync {
    /// Give it back to the port, in order, ahead of what is queued.
    ///
    /// Any thread calls this, with no lock held, any number of times, also while the owner takes from it.
    fn flow_on(&self);

    /// How many packets the owner has taken from it, and the key of the last one, unless the owner has dequeued since. The
    /// engine's locks may be held.
    fn taken(&self) -> (usize, Option<usize>);
}
