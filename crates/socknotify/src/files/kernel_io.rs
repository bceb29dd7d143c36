//! Systems without operations on files: each is refused, and a helper thread performs it.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::helpers::Ticket;
use super::request::{Association, Request};
use super::{Begun, Completed, FileDriver, Operations};
use crate::Entry;
use crate::backend::SystemPort;

/// There is none.
pub(super) const DRIVER: Option<FileDriver> = None;

/// How long closing waits before it looks what has completed: threads say so.
pub(super) const TICK: Duration = Duration::from_secs(3600);

/// There is none.
pub(super) enum KernelIo {}

impl KernelIo {
    pub(super) fn probe() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn new(_: &Arc<Operations>, _: &SystemPort) -> io::Result<Arc<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn associate(&self, _file: &File, _key: usize) -> Association {
        match *self {}
    }

    /// # Safety
    ///
    /// Nothing is begun.
    #[allow(unsafe_code, reason = "elsewhere the system has the memory")]
    pub(super) unsafe fn begin(&self, _key: usize, _: &Request) -> Begun {
        match *self {}
    }

    pub(super) fn withdraw(&self, _: Ticket) {
        match *self {}
    }

    pub(super) fn cancel(&self, _key: usize) {
        match *self {}
    }

    pub(super) fn flush(&self) {
        match *self {}
    }

    pub(super) fn on_completed(&self, _entry: &Entry) -> Option<(usize, Completed)> {
        match *self {}
    }

    pub(super) fn close(&self) {
        match *self {}
    }

    pub(super) fn join(&self) {
        match *self {}
    }
}
