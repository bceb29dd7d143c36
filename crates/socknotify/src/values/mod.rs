//! The values that callers, ports and backends exchange.

pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod registration;
pub(crate) mod snapshot;
pub(crate) mod socket;
