//! For systems that perform no operations on files themselves.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use super::request::{Association, Request};
use super::{Begun, Completed, FileDriver, Layer, Owner};
use crate::Entry;
use crate::system::SystemPort;

/// There is none.
pub(super) const DRIVER: Option<FileDriver> = None;

/// There is none.
pub(super) enum KernelIo {}

impl KernelIo {
    pub(super) fn probe() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn associate(&self, _file: &File, _key: usize) -> Association {
        match *self {}
    }

    pub(super) fn new(_port: &SystemPort) -> io::Result<Arc<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn attach(&self, _: Layer, _: impl FnOnce() -> Weak<dyn Owner>) {
        match *self {}
    }

    /// # Safety
    ///
    /// Nothing is begun.
    #[allow(unsafe_code, reason = "elsewhere the system has the memory")]
    pub(super) unsafe fn begin(&self, _: Layer, _key: usize, _: &Request) -> Begun {
        match *self {}
    }

    pub(super) fn cancel(&self, _: Layer, _key: usize) {
        match *self {}
    }

    pub(super) fn on_withdrawn(&self) {
        match *self {}
    }

    pub(super) fn flush(&self) {
        match *self {}
    }

    pub(super) fn on_completed(&self, _entry: &Entry) -> Option<(usize, Completed)> {
        match *self {}
    }

    pub(super) fn completed(&self, _key: usize) -> Option<Completed> {
        match *self {}
    }

    pub(super) fn close(&self) {
        match *self {}
    }
}
