//! What tells the engine that a socket is ready: one file for each way a system has.

#![allow(unsafe_code, reason = "sockets are known here by number only")]

mod epoll;
mod fork;
mod io_uring;

pub(crate) use epoll::Epoll;
pub(crate) use io_uring::Ring;
