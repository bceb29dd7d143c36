//! [`Handover`]: what a thread has dequeued and not taken yet, for another thread to take.

/// What a thread has dequeued into memory that other threads can reach.
pub(crate) trait Handover: Send + Sync {
    /// Arm what the thread has handed back, and queue what it has not taken, in order and ahead of what is queued.
    ///
    /// Called by another thread, with no lock held, when the thread has left its place, or keeps others waiting.
    fn flow_on(&self);
}
