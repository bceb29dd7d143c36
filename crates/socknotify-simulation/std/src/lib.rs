//! The standard library, with threads and time that a seed drives: a library that calls this `std` runs in a [`simulation`].
//!
//! One thread runs at a time. Each lock, each atomic operation, each wait and each start of a thread is a point at which another may
//! continue: which one, the seed says. Time passes as steps are made, and jumps where all threads wait: no wait sleeps. All else is
//! the standard library's own, and so are descriptors and what the kernel knows of them; only what would wait for these asks the
//! [simulation](simulation::wait).
//!
//! What is not in a simulation gets the standard library's behaviour, but for the time, which stands still.

pub mod simulation;
pub mod sync;
pub mod thread;
pub mod time;

pub use ::std::*;
