//! Windows: the kernel's own completion port.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

pub(crate) mod alarm;
pub(crate) mod calls;
pub(crate) mod codes;
pub(crate) mod port;
