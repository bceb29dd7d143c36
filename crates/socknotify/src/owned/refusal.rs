//! [`Refusal`]: what a port has not taken, and why not.

use std::{fmt, io};

use crate::Error;

/// What a port has not taken, and why not: see [`AdoptError`] and [`BeginError`].
pub struct Refusal<V, E = Error> {
    refused: V,
    reason: E,
}

/// The port did not adopt this connection or file, and why.
pub type AdoptError<T> = Refusal<T, io::Error>;

/// Work or an operation that a port has not begun, and why not: [`Error::Closed`]; [`Error::OtherProcess`] in a forked child;
/// [`Error::OutOfMemory`], or the system's error, if it has no memory or thread for it.
pub type BeginError<W> = Refusal<W>;

impl<V, E> Refusal<V, E> {
    pub(super) fn new(refused: V, reason: impl Into<E>) -> Self {
        Refusal {
            refused,
            reason: reason.into(),
        }
    }

    /// Takes the connection, the file, the work or the operation back.
    pub fn into_inner(self) -> V {
        self.refused
    }
}

impl<V, E: Copy> Refusal<V, E> {
    /// Why it was not taken.
    pub fn reason(&self) -> E {
        self.reason
    }
}

impl<V, E: fmt::Display> fmt::Display for Refusal<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the port has not taken this: {}", self.reason)
    }
}

/// Whatever it is, also a closure: its value is left out.
impl<V, E: fmt::Debug> fmt::Debug for Refusal<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl<V, E: std::error::Error + 'static> std::error::Error for Refusal<V, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl<V, E: Into<io::Error>> From<Refusal<V, E>> for io::Error {
    fn from(refusal: Refusal<V, E>) -> Self {
        refusal.reason.into()
    }
}
