//! Dropping values of the caller, whose `Drop` may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drop the caller's values with no lock held. If one panics, the panic hook reports it, and nothing else is lost.
pub(crate) fn drop_all<V>(values: impl IntoIterator<Item = V>) {
    for value in values {
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(value)));
        // To drop what a panic carries may panic as well.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panicked))) {
            std::mem::forget(another);
        }
    }
}
