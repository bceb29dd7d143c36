//! [`Opening`]: the system's own way to perform operations, opened when it is first needed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::direct::Direct;
use super::system;
use crate::lock::lock;
use crate::system::SystemPort;

/// A port has one, whichever of its layers begins operations.
pub(crate) struct Opening {
    port: SystemPort,
    direct: OnceLock<Arc<Direct>>,
    /// The system refuses for good.
    is_refused: AtomicBool,
    /// Held while it is opened.
    opens: Mutex<()>,
}

impl Opening {
    pub(crate) fn new(port: SystemPort) -> Arc<Self> {
        Arc::new(Opening {
            port,
            direct: OnceLock::new(),
            is_refused: AtomicBool::new(false),
            opens: Mutex::default(),
        })
    }

    #[inline]
    pub(super) fn opened(&self) -> Option<&Arc<Direct>> {
        self.direct.get()
    }

    /// Open it, if it is not open. If the system has no descriptor or memory for it now, the next call tries again.
    pub(super) fn open(&self) -> io::Result<&Arc<Direct>> {
        if let Some(direct) = self.opened() {
            return Ok(direct);
        }
        if self.is_refused.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _opens = lock(&self.opens);
        if let Some(direct) = self.opened() {
            return Ok(direct);
        }
        match Direct::new(&self.port) {
            Ok(direct) => Ok(self.direct.get_or_init(|| direct)),
            Err(error) => {
                let is_refused = system::shortage(&error).is_none();
                self.is_refused.store(is_refused, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}
