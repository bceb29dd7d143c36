//! When a wait ends, and what comes later.

pub(super) mod deadlines;
pub(super) mod timers;
