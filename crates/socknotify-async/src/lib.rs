//! Async tasks on a completion port, in which blocking is allowed.
#![forbid(unsafe_code)]

mod context;
mod queue;
mod runtime;
mod shared;
mod source;
mod sync;
mod task;
mod timers;

pub use context::Entered;
pub use runtime::{Builder, Handle, Runtime, spawn, unblock};
pub use task::{JoinError, JoinHandle};
pub use timers::{Elapsed, Interval, Sleep, Timeout, interval, sleep, sleep_until, timeout};
