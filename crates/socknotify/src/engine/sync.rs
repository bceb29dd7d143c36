//! The locks and the like of the engine, so that the model checker can stand in for them.

#[cfg(interleavings)]
pub(super) use loom::sync::atomic::AtomicU64;
#[cfg(interleavings)]
pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(interleavings)]
pub(super) use loom::thread_local;
#[cfg(not(interleavings))]
pub(super) use std::sync::atomic::AtomicU64;
#[cfg(not(interleavings))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(interleavings))]
pub(super) use std::thread_local;
