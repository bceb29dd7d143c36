//! Which port a socket is registered with, for the whole process: a socket has one port at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Identity;
use super::pages::Pages;
use crate::RegistrationError;

/// The port that a descriptor number was registered with, and the socket that it stood for then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owner {
    /// 0 for nobody.
    port: u32,
    identity: [u32; 2],
}

/// A leaf in the order of locks: whoever holds it takes no other, but those that a poller needs to tell
/// what a socket is.
static OWNERS: Mutex<Pages<Owner>> = Mutex::new(Pages::new());

fn owners() -> MutexGuard<'static, Pages<Owner>> {
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn halves(identity: u64) -> [u32; 2] {
    [identity as u32, (identity >> 32) as u32]
}

/// Make `port` the owner of the socket, unless another port is.
///
/// An owner of another socket that had the same number lost it when that socket was closed.
///
/// `identify` tells what socket it is. No other claim comes between: or else one of a socket that was
/// closed meanwhile could take the number from the next one.
pub(super) fn claim(
    socket: u32,
    port: u32,
    identify: impl FnOnce() -> Result<Identity, RegistrationError>,
) -> Result<Identity, RegistrationError> {
    let mut owners = owners();
    let found = identify()?;
    let owner = owners.entry(socket);
    let identity = halves(found.id);
    if owner.port != 0 && owner.port != port && owner.identity == identity {
        return Err(RegistrationError::OtherPort);
    }
    *owner = Owner { port, identity };
    Ok(found)
}

/// Whether `port` owns this very socket.
pub(super) fn owns(socket: u32, port: u32, identity: u64) -> bool {
    let owner = Owner {
        port,
        identity: halves(identity),
    };
    owners().get(socket) == Some(&owner)
}

/// The numbers that belong to a port, whatever sockets they stand for. No other can be claimed or
/// released as long as this lives.
pub(super) struct Numbers {
    port: u32,
    owners: MutexGuard<'static, Pages<Owner>>,
}

pub(super) fn of_port(port: u32) -> Numbers {
    Numbers {
        port,
        owners: owners(),
    }
}

impl Numbers {
    pub(super) fn has(&self, socket: u32) -> bool {
        let owner = self.owners.get(socket);
        owner.is_some_and(|owner| owner.port == self.port)
    }
}

/// Give up the number, if it is `port`'s still.
pub(super) fn release(socket: u32, port: u32) {
    if let Some(owner) = owners().get_mut(socket) {
        if owner.port == port {
            *owner = Owner::default();
        }
    }
}
