//! Windows: the kernel's own completion port.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

mod accept;
pub(crate) mod alarm;
mod associate;
pub(crate) mod calls;
pub(crate) mod codes;
mod host;
pub(crate) mod port;
mod system;

pub(crate) use accept::PendingAccepts;
pub(crate) use system::{SystemPort, WeakPort};
