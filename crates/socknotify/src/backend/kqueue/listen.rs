//! Sockets that begin to listen after they were registered, on systems whose filters do not notice.
//!
//! Sockets that neither listen nor are connected are checked from time to time. When one listens, its filters are
//! deleted and added again.

use std::sync::{Mutex, MutexGuard};

use super::identity::{self, Kind};
use super::sys::{self, Errno};
use super::{Kqueue, conditions, systems};
use crate::engine::{ArmError, Interest, Mode, Wanted};
use crate::lock::lock;

/// Sockets that may begin to listen.
#[derive(Default)]
pub(super) struct Unconnected {
    sockets: Mutex<Vec<u32>>,
}

impl Unconnected {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.sockets)
    }
}

impl Kqueue {
    /// A socket was registered.
    pub(super) fn note_unconnected(&self, socket: u32) -> Result<(), Errno> {
        if !systems::LISTEN_SILENCES_FILTERS || !is_unconnected(socket) {
            return Ok(());
        }
        let mut sockets = self.unconnected.lock();
        if sockets.is_empty() {
            self.timer.tick(&self.queue)?;
        }
        if !sockets.contains(&socket) {
            sockets.push(socket);
        }
        Ok(())
    }

    /// Check these sockets.
    pub(super) fn check_unconnected(&self, wanted: &Wanted) {
        let mut sockets = self.unconnected.lock();
        sockets.retain(|&socket| {
            if sys::listens(socket) != Ok(true) {
                return wanted.get(socket).is_some() && is_unconnected(socket);
            }
            if let Some(interest) = wanted.get(socket) {
                // If it is closed by now, there is nothing to do.
                let _ = wanted.follow(&interest, |interest| self.renew(interest));
            }
            false
        });
        if sockets.is_empty() {
            self.timer.stop_ticking(&self.queue);
        }
    }

    /// Delete the filters of a socket, and add them as they are wanted.
    fn renew(&self, interest: &Interest) -> Result<(), ArmError> {
        let is_edge = interest.mode() == Mode::Edge;
        self.change(&conditions::deletions(interest.socket))?;
        if is_edge {
            self.change(&conditions::silenced(interest, true))?;
            return self.edges.renew(interest).map_err(super::arm_error);
        }
        self.change(&conditions::changes(interest, true))
    }
}

/// Whether a stream neither listens nor is connected. False if it is closed.
fn is_unconnected(socket: u32) -> bool {
    identity::kind(socket) == Kind::Stream
        && sys::is_connected(socket) == Ok(false)
        && sys::listens(socket) == Ok(false)
}
