//! A call of `process`: apply the caller's entries, dequeue, and collect packets.

pub(super) mod apply;
pub(super) mod collect;
mod dequeue;
