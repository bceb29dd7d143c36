//! What the tests are written with: backends, sockets, expectations and threads.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test program uses its own part of this"
)]

#[macro_use]
mod backends;
mod expectations;
mod sockets;
mod threads;

use std::time::Duration;

pub(crate) use self::backends::{backends, port, port_with, run};
pub(crate) use self::expectations::{
    collect, drain_port, expect, expect_nothing, expect_packets, expect_quiet, expect_removed,
    notification,
};
pub(crate) use self::sockets::{
    Kind, Listener, Pair, begin_connect, descriptors, drain, fill, non_blocking, raise_limit,
    refusing, reset, take_number, to_lonely_number, wait_readiness,
};
pub(crate) use self::threads::{
    CloseAtEnd, Gate, asleep, thread_time, voluntary_switches, wait_for_waiting, wait_until,
};

/// How long something may take that has to come. Nothing waits this long unless it is lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long to look for something that must not come, where nothing tells that it would be there.
pub(crate) const GLANCE: Duration = Duration::from_millis(30);

/// Masks in short, for tables of triggers.
pub(crate) mod trigger {
    use socknotify::Trigger;

    /// One notification, as soon as a condition holds.
    pub(crate) const ONCE: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    /// One notification, when a condition begins to hold.
    pub(crate) const EDGE_ONCE: Trigger = Trigger::ONESHOT.union(Trigger::EDGE);
    /// Notifications as long as a condition holds.
    pub(crate) const LEVEL: Trigger = Trigger::PERSISTENT.union(Trigger::LEVEL);
    /// A notification whenever a condition begins to hold.
    pub(crate) const EDGE: Trigger = Trigger::PERSISTENT.union(Trigger::EDGE);

    pub(crate) const EVERY: [Trigger; 4] = [ONCE, EDGE_ONCE, LEVEL, EDGE];
}
