//! Where the system does no operation on a file by itself.

use std::io;
use std::sync::Arc;

use super::file::FileOperation;
use super::{FileDriver, Settled};
use crate::Entry;
use crate::system::SystemPort;

/// There is none.
pub(super) const DRIVER: Option<FileDriver> = None;

/// There is none.
pub(super) enum Direct {}

impl Direct {
    pub(super) fn probe() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn new(_port: &SystemPort, _key: usize) -> io::Result<Arc<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Safety
    ///
    /// Nothing is begun.
    #[allow(unsafe_code, reason = "elsewhere the system has the memory")]
    pub(super) unsafe fn begin(&self, _key: usize, _: &mut FileOperation) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn cancel(&self, _key: usize) {
        match *self {}
    }

    pub(super) fn flush(&self) -> Vec<usize> {
        match *self {}
    }

    pub(super) fn settle(&self, _entry: &Entry) -> Settled {
        match *self {}
    }

    pub(super) fn close(&self) {
        match *self {}
    }
}
