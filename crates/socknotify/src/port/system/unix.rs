//! Unix: the engine over the kernel's set or queue.

use std::sync::Arc;

#[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
use crate::backend::Epoll as Kernel;
#[cfg(any(kqueue_stand_in, not(target_os = "linux")))]
use crate::backend::Kqueue as Kernel;
use crate::engine::Engine;

/// What a port is beneath.
pub(crate) type SystemPort = Arc<Engine<Kernel>>;
