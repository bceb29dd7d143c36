//! Where connections are while no thread holds them. A slot's lock guards its [`record`], which alone decides who takes
//! the connection; packets only say which slot to lock.

pub(super) mod connections;
#[cfg(all(test, interleavings))]
mod interleavings;
pub(super) mod packet;
pub(super) mod record;
