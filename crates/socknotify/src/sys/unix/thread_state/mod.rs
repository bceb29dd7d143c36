//! What a thread does: each system shows it in its own way.

mod linux;

pub(crate) use self::linux::Thread;
