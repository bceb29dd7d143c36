//! The slots of a port's connections: who may use one is decided here, with the slot locked.

pub(super) mod connections;
#[cfg(all(test, interleavings))]
mod interleavings;
pub(super) mod packet;
pub(super) mod record;
