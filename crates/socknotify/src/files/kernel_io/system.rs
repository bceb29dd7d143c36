//! Systems without operations on files: helper threads perform them.

use std::io;
use std::sync::Arc;

use super::{FileDriver, KernelIo, Operations};
use crate::backend::SystemPort;

pub(in crate::files) const DRIVER: Option<FileDriver> = None;

pub(in crate::files) fn probe() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(in crate::files) fn open(_: &Arc<Operations>, _: &SystemPort) -> io::Result<Arc<dyn KernelIo>> {
    Err(io::ErrorKind::Unsupported.into())
}
