//! Dropping what the caller has given, which runs the caller's code.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drop the caller's values with no lock held. If one panics, the panic hook reports it, and nothing else is lost.
pub(crate) fn drop_all<V>(values: impl IntoIterator<Item = V>) {
    for value in values {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            // To drop this may panic as well.
            std::mem::forget(payload);
        }
    }
}
