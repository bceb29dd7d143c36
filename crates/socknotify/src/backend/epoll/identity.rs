//! Whether a number still stands for the socket that was registered under it.
//!
//! `epoll` watches open files, not descriptor numbers. Closing a number ends the watch only if no other
//! number, here or in a forked child, stands for the same file. So a report says that a file is ready, and
//! not that the number stands for it still.
//!
//! `epoll_ctl` knows files by their numbers: to add one again fails with `EEXIST` if this very file was added
//! under this very number. That is certain. It is one call for each socket; a `poll` of many at once is
//! cheaper, but sees a number that was taken by something that is ready in the same way as no change.

use std::sync::PoisonError;

use super::{Data, Epoll, Errno, sys};
use crate::RegistrationError;
use crate::engine::Validity;

impl Epoll {
    /// `epoll_ctl` — Whether the number stands for the socket that is in the set under it.
    ///
    /// # Errors
    ///
    /// What kept the kernel from saying so.
    pub(super) fn is_armed(&self, socket: u32) -> Result<bool, Errno> {
        // If it is added, and cannot be deleted because it was closed just now, it keeps silent.
        let silent = (libc::EPOLLONESHOT | libc::EPOLLET) as u32;
        let control = |call| sys::control(&self.set, call, socket, silent, Data::IGNORED);
        // Nobody arms it meanwhile, and takes it for the one that was registered.
        let _members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        match control(libc::EPOLL_CTL_ADD) {
            Err(libc::EEXIST) => Ok(true),
            // It is closed, or something that cannot be in this set.
            Err(libc::EBADF | libc::EPERM | libc::EINVAL | libc::ELOOP) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => {
                // It is another one, and was not meant to be added.
                let _ = control(libc::EPOLL_CTL_DEL);
                Ok(false)
            }
        }
    }

    /// `epoll_ctl` — Whether the set takes this.
    pub(super) fn try_to_watch(&self, socket: u32) -> Result<(), RegistrationError> {
        let silent = (libc::EPOLLONESHOT | libc::EPOLLET) as u32;
        let control = |call| sys::control(&self.set, call, socket, silent, Data::IGNORED);
        let _members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        match control(libc::EPOLL_CTL_ADD) {
            Err(libc::EEXIST) => Ok(()),
            Err(libc::EPERM) => Err(RegistrationError::NotWatchable),
            Err(error) => Err(super::refusal(error)),
            Ok(()) => {
                let _ = control(libc::EPOLL_CTL_DEL);
                Ok(())
            }
        }
    }

    /// Whether a report of this number is of the socket that it stands for.
    pub(super) fn validity(&self, socket: u32) -> Validity {
        match self.is_armed(socket) {
            Ok(true) => Validity::Valid,
            Ok(false) => Validity::Closed,
            Err(_) => Validity::Doubtful,
        }
    }
}
