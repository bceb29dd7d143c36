//! What completes on a port and is no readiness: work that blocks, and operations on files.

mod helpers;

pub(crate) use self::helpers::{DEFAULT_THREADS, Helpers};
