//! Async tasks on a completion port, in which blocking is allowed.
#![forbid(unsafe_code)]

mod context;
mod file;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(all(test, interleavings))]
mod interleavings;
mod io;
mod net;
mod queue;
mod runtime;
mod shared;
mod source;
mod sync;
mod task;
mod timers;
#[cfg(feature = "tokio")]
mod tokio;

pub use context::Entered;
pub use file::File;
pub use io::Async;
pub use net::{ReadHalf, TcpListener, TcpStream, UdpSocket, WriteHalf};
#[cfg(unix)]
pub use net::{UnixDatagram, UnixListener, UnixStream};
pub use runtime::{Builder, Handle, Runtime, spawn, unblock};
pub use task::{JoinError, JoinHandle};
pub use timers::{Elapsed, Interval, Sleep, Timeout, interval, sleep, sleep_until, timeout};
