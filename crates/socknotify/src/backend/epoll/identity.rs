//! Whether a number still stands for the socket that was registered under it.
//!
//! `epoll` watches open files, not descriptor numbers. Closing a number ends the watch only if no other
//! number, here or in a forked child, stands for the same file. So a report says that a file is ready, but
//! not that the number still stands for it.
//!
//! `epoll_ctl` identifies a file by its number: adding it again fails with `EEXIST` if this file was added
//! under this number. That is certain. It takes one call per socket. A `poll` of many at once is
//! cheaper, but does not notice another socket under the number that is ready in the same way.

use std::sync::PoisonError;

use super::{Data, Epoll, Errno, sys};
use crate::RegistrationError;
use crate::engine::Validity;

impl Epoll {
    /// `epoll_ctl` — Whether the number stands for the socket that is in the set under it.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it did not answer that.
    pub(super) fn is_armed(&self, socket: u32) -> Result<bool, Errno> {
        // If it is added, and cannot be deleted because it was just closed, it stays silent.
        let silent = (libc::EPOLLONESHOT | libc::EPOLLET) as u32;
        let control = |call| sys::control(&self.set, call, socket, silent, Data::IGNORED);
        // No other thread may arm it meanwhile, and take it for the registered one.
        let _members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        match control(libc::EPOLL_CTL_ADD) {
            Err(libc::EEXIST) => Ok(true),
            // It is closed, or something that cannot be in this set.
            Err(libc::EBADF | libc::EPERM | libc::EINVAL | libc::ELOOP) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => {
                // It is another one, and has to be deleted again.
                let _ = control(libc::EPOLL_CTL_DEL);
                Ok(false)
            }
        }
    }

    /// `epoll_ctl` — Whether this descriptor can be added to a set.
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
