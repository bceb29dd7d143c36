//! Data structures and locks. They know nothing of sockets, systems or ports.

pub(crate) mod burst;
pub(crate) mod deadline;
pub(crate) mod drops;
pub(crate) mod lock;
pub(crate) mod pages;
pub(crate) mod slots;
pub(crate) mod sync;
pub(crate) mod wheel;
