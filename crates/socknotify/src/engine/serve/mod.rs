//! A call of `process`: apply the caller's entries, dequeue, and collect packets.

pub(super) mod apply;
pub(super) mod collect;
mod dequeue;

use std::sync::Arc;

use super::backend::Arm;
use super::table::Outcome;
use super::table::interest::Interest;
use super::threads::Holder;
use crate::RegistrationError;

/// Sockets that a worker has enabled, that the system has armed, and that may be ready: its next call finds that out.
#[derive(Default)]
pub(crate) struct Polls {
    pub(super) batch: Vec<Arm>,
    /// The keys of those of the last call that the system knows no more.
    pub(crate) refused: Vec<(usize, RegistrationError)>,
}

impl Polls {
    /// Poll it with the next call.
    #[inline(always)]
    pub(crate) fn add(&mut self, interest: Interest) {
        self.batch.push(Arm {
            interest,
            is_armed: true,
            entry: Arm::POLLED,
            outcome: Outcome::Armed,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
}

/// A worker whose call it is.
pub(crate) struct Caller<'call> {
    pub(crate) polls: &'call mut Polls,
    /// The thread that makes the call, once that has dequeued something.
    pub(crate) holder: &'call mut Option<Arc<Holder>>,
}
