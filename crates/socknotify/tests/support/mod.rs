//! What the tests are written with: backends, sockets, expectations and threads.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test program uses its own part of this"
)]

#[macro_use]
mod backends;
#[cfg(unix)]
mod child;
mod expectations;
mod patience;
mod port;
mod sockets;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;
mod threads;

use std::time::Duration;

pub(crate) use self::backends::{backends, port, port_with, run, waking_port};
#[cfg(unix)]
pub(crate) use self::child::Child;
pub(crate) use self::expectations::{
    as_told_by, collect, counted, drain_port, expect, expect_idle, expect_little_time,
    expect_no_early_end, expect_nothing, expect_packets, expect_quiet, expect_removed,
    notification, quiet_for, quiet_threads, remove_and_drain, wait_in_vain, woken_by_one_packet,
};
pub(crate) use self::patience::PATIENCE;
pub(crate) use self::port::PortExt;
pub(crate) use self::sockets::{
    Kind, Listener, Pair, drain, fill, forget_address, non_blocking, pairs, read_byte, refusing,
    reset, tcp_streams, uninterrupted, uploading, wait_readiness,
};
#[cfg(unix)]
pub(crate) use self::system::Limit;
pub(crate) use self::system::{
    AsSocket, BorrowedSocket, EDGES_COME_ONE_BY_ONE, ERRORS_END, LATENESS, PollFlags, RawSocket,
    TICK, ThreadId, asleep, begin_connect, descriptors, end_shows_behind_data, is_ready,
    no_sockets, raise_limit, raw, take_number, this_thread, thread_time, to_lonely_number,
    voluntary_switches,
};
pub(crate) use self::threads::{CloseAtEnd, Gate, SetAtEnd, wait_for_waiting, wait_until};

/// A time that passes soon, and is long beside the system's own delays.
pub(crate) const SHORT: Duration = Duration::from_millis(if cfg!(emulated) { 200 } else { 20 });

/// How long to look for something that must not come, where nothing tells that it would be there.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(30);

/// How often to try what a race may spoil. Under Wine each call asks a server, and takes that much longer; so does
/// everything on a processor that is emulated, which only who builds the tests knows (`--cfg emulated`).
pub(crate) const fn rounds(many: usize) -> usize {
    if cfg!(any(windows, emulated)) {
        many / 8
    } else {
        many
    }
}

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
