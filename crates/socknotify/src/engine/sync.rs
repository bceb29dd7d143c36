//! The locks of the engine, so that the model checker can stand in for them.

#[cfg(loom)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub(super) use loom::thread_local;
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::thread_local;
