//! Windows: the kernel's own completion port.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

mod afd;
mod alarm;
mod closings;
mod device;
mod edges;
mod port;

pub(crate) use afd::Afd;
