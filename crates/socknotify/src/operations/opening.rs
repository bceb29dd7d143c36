//! [`Opening`]: the system's own way to perform operations, opened when it is first needed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::kernel_io::KernelIo;
use super::system;
use crate::lock::lock;
use crate::system::SystemPort;

/// A port has one, whichever of its layers begins operations.
pub(crate) struct Opening {
    port: SystemPort,
    kernel_io: OnceLock<Arc<KernelIo>>,
    /// The system refuses for good.
    is_refused: AtomicBool,
    /// Held while it is opened.
    opens: Mutex<()>,
}

impl Opening {
    pub(crate) fn new(port: SystemPort) -> Arc<Self> {
        Arc::new(Opening {
            port,
            kernel_io: OnceLock::new(),
            is_refused: AtomicBool::new(false),
            opens: Mutex::default(),
        })
    }

    #[inline]
    pub(super) fn opened(&self) -> Option<&Arc<KernelIo>> {
        self.kernel_io.get()
    }

    /// Open it, if it is not open. If the system has no descriptor or memory for it now, the next call tries again.
    pub(super) fn open(&self) -> io::Result<&Arc<KernelIo>> {
        if let Some(kernel_io) = self.opened() {
            return Ok(kernel_io);
        }
        if self.is_refused.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _opens = lock(&self.opens);
        if let Some(kernel_io) = self.opened() {
            return Ok(kernel_io);
        }
        match KernelIo::new(&self.port) {
            Ok(kernel_io) => Ok(self.kernel_io.get_or_init(|| kernel_io)),
            Err(error) => {
                let is_refused = system::shortage(&error).is_none();
                self.is_refused.store(is_refused, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}
