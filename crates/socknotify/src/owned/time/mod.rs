//! Deadlines of connections, and timers of the port.

pub(super) mod deadlines;
pub(super) mod timers;
