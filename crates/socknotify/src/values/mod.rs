//! The types of public signatures that all rooms use.

pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod registration;
pub(crate) mod snapshot;
pub(crate) mod socket;
