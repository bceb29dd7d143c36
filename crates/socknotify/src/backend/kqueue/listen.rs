//! Sockets that begin to listen after they were registered, on systems whose filters do not notice.
//!
//! Sockets that neither listen nor are connected are checked from time to time. When one listens, its filters are
//! deleted and added again.

use std::time::Duration;

use super::identity::{self, Kind};
use super::sys::{self, Errno};
use super::timer::{self, TICK};
use super::{Kqueue, systems};
use crate::engine::{ArmError, Outcome, Table};
use crate::os::Fd;
use crate::support::lock::lock;

impl Kqueue {
    /// A socket is about to be registered.
    pub(super) fn note_unconnected(&self, fd: Fd) -> Result<(), Errno> {
        let may_listen = || is_unconnected(fd) && sys::listens(fd) == Ok(false);
        if !systems::LISTEN_SILENCES_FILTERS || !may_listen() {
            return Ok(());
        }
        let mut unconnected = lock(&self.unconnected);
        if unconnected.is_empty() {
            timer::set(&self.queue, TICK, Some(Duration::from_millis(10)))?;
        }
        if !unconnected.contains(&fd) {
            unconnected.push(fd);
        }
        Ok(())
    }

    /// Check these sockets.
    pub(super) fn check_unconnected(&self, table: &Table) {
        let mut unconnected = lock(&self.unconnected);
        unconnected.retain(|&fd| {
            let Some(mut interest) = table.interest(fd) else {
                return false;
            };
            if sys::listens(fd) != Ok(true) {
                // It may listen by now, and is found the next time.
                return is_unconnected(fd);
            }
            let armed = table.arm_latest(&mut interest, |interest| {
                self.add(&mut lock(&self.adding), interest, false)
            });
            // If it is closed by now, there is nothing to do.
            matches!(
                armed,
                Outcome::Failed(ArmError::Refused(_)) | Outcome::Overtaken
            )
        });
        if unconnected.is_empty() {
            // It cannot fail to delete what is there, or not.
            let _ = timer::set(&self.queue, TICK, None);
        }
    }
}

/// Whether a stream listens, or is not connected. False if it is closed.
fn is_unconnected(fd: Fd) -> bool {
    identity::kind(fd) == Kind::Stream && sys::is_connected(fd) == Ok(false)
}
