//! Windows: the kernel's own completion port.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

mod afd;
mod alarm;
mod calls;
mod codes;
mod native;
mod port;
mod system;

pub(crate) use afd::Afd;
pub(crate) use native::Native;
pub(crate) use system::SystemPort;
