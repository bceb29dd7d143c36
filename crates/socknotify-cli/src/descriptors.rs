//! How many file descriptors this process may have.

use std::fmt;

use crate::system::{self, Limits};

/// The number of open descriptors, 0 if the system does not report it.
pub(crate) fn in_use() -> u64 {
    system::in_use()
}

/// Raises the soft limit to `needed`, if it is lower.
pub(crate) fn provide(needed: u64) -> Result<(), Shortage> {
    let limits = system::limits();
    if limits.soft.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    let shortage = Shortage { needed, limits };
    if limits.hard.is_some_and(|hard| hard < needed) {
        return Err(shortage);
    }
    system::set_limit(needed, limits.hard).map_err(|_| shortage)
}

/// Raises the soft limit as far as the process may.
pub(crate) fn raise() {
    let Limits { soft, hard } = system::limits();
    // Without a limit, or when it may not be raised, it stays as it is: the program runs all the same.
    if let (Some(_), Some(hard)) = (soft, hard) {
        let _ = system::set_limit(hard, Some(hard));
    }
}

/// There are not enough descriptors.
#[derive(Debug)]
pub(crate) struct Shortage {
    needed: u64,
    limits: Limits,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { needed, limits } = self;
        write!(
            f,
            "{needed} file descriptors are needed, but the limit is {} (hard limit {}); \
             raise the hard limit, or ask for fewer clients",
            Limit(limits.soft),
            Limit(limits.hard),
        )
    }
}

impl std::error::Error for Shortage {}

/// A limit in words.
pub(crate) struct Limit(pub(crate) Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(limit) => limit.fmt(f),
            None => "unlimited".fmt(f),
        }
    }
}
