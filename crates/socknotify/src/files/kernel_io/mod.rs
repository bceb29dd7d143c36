//! [`KernelIo`]: operations that the system performs itself.

#![allow(unsafe_code, reason = "the system has the memory of operations")]

use std::fs::File;
use std::io;

use super::in_flight::Stage;
use super::request::{Nature, Request};
use super::{FileDriver, Operations};
use crate::Entry;

#[cfg_attr(
    all(
        target_os = "linux",
        not(kqueue_stand_in),
        any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            target_arch = "riscv64",
            target_arch = "loongarch64",
            target_arch = "powerpc64"
        )
    ),
    path = "ring.rs"
)]
#[cfg_attr(windows, path = "associated.rs")]
mod system;

pub(super) use self::system::{DRIVER, open, probe};

/// What performs operations without a thread that waits for them.
pub(super) trait KernelIo: Send + Sync {
    /// Associate a file, if the system has to know it.
    fn associate(&self, _file: &File, _key: usize, _nature: &mut Nature) {}

    /// Begin an operation, or queue it until the next [`flush`](Self::flush) at the latest. Returns its stage, or `None`
    /// if a helper thread is to have it.
    ///
    /// # Safety
    ///
    /// The request's file and memory stay valid, and nobody touches the memory, until its completion was taken; if it is
    /// queued, from when [`Operations::submits`] allows it.
    unsafe fn begin(&self, operations: &Operations, key: usize, request: &Request)
    -> Option<Stage>;

    /// Begin what was queued.
    fn flush(&self) {}

    /// Cancel an operation that has begun, if that is still possible.
    fn cancel(&self, key: usize);

    /// The operation of a packet of the system's, and its outcome.
    fn on_packet(&self, _entry: &Entry) -> Option<(usize, Completed)> {
        None
    }

    /// The outcome of an operation whose packet was not dequeued.
    fn completed(&self, _key: usize) -> Option<Completed> {
        None
    }

    /// Accept nothing more, and cancel what can be cancelled.
    fn close(&self) {}

    /// Wait for the thread, when it is closed and nothing is in progress.
    fn join(&self) {}
}

/// What the system reports of an operation.
pub(super) enum Completed {
    Done(io::Result<usize>),
    /// It was cancelled or interrupted, for whatever reason.
    Cancelled,
}
