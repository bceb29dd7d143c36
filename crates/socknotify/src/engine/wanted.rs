//! What to watch each socket for, published for threads that arm sockets without a lock.
//!
//! A thread that arms an interest may be late: another one may have changed the interest meanwhile, and armed that.
//! So each thread reads the interest again after it has armed it ([`Wanted::follow`]). Whatever the order, the last
//! interest that the system got was current when it got it.

use std::sync::atomic::Ordering;

use super::interest::{ArmError, Interest};
use super::sync::AtomicU64;
use crate::pages::SharedPages;

/// The interests of a port, by the number of the socket. Written with the engine's lock held.
#[derive(Debug)]
pub(crate) struct Wanted {
    interests: SharedPages<AtomicU64>,
}

/// The result of arming an interest that may change meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    /// The system call was made, with this result.
    Done(Result<(), ArmError>),
    /// Another thread has changed the interest, and arms it.
    Changed,
    /// The interest was withdrawn.
    Withdrawn,
}

impl Wanted {
    pub(super) fn new() -> Self {
        Wanted {
            interests: SharedPages::new(),
        }
    }

    /// What to watch this socket for, if anything.
    #[inline]
    pub(crate) fn get(&self, socket: u32) -> Option<Interest> {
        let word = self.interests.get(socket)?.load(Ordering::Acquire);
        (word != 0).then_some(Interest { socket, word })
    }

    #[inline]
    pub(super) fn set(&self, interest: &Interest) {
        let word = self.interests.get(interest.socket);
        let word = word.unwrap_or_else(|| self.interests.entry(interest.socket));
        word.store(interest.word, Ordering::Release);
    }

    pub(super) fn withdraw(&self, socket: u32) {
        if let Some(word) = self.interests.get(socket) {
            word.store(0, Ordering::Release);
        }
    }

    /// Arm an interest, and again as long as it changes meanwhile.
    ///
    /// If it is withdrawn, the thread that holds the engine's lock removes the socket from the system, after which it
    /// cannot be re-armed.
    #[inline]
    pub(crate) fn follow(
        &self,
        interest: &Interest,
        mut arm: impl FnMut(&Interest) -> Result<(), ArmError>,
    ) -> Followed {
        let mut armed = *interest;
        match self.get(armed.socket) {
            None => return Followed::Withdrawn,
            Some(current) if current != armed => return Followed::Changed,
            Some(_) => {}
        }
        loop {
            let result = arm(&armed);
            match self.get(armed.socket) {
                None => return Followed::Withdrawn,
                Some(current) if current != armed => armed = current,
                Some(_) if armed != *interest => return Followed::Changed,
                Some(_) => return Followed::Done(result),
            }
        }
    }

    /// All interests.
    #[allow(dead_code, reason = "not every backend builds anything anew")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Interest> {
        let words = self.interests.iter();
        words.filter_map(|(socket, word)| match word.load(Ordering::Acquire) {
            0 => None,
            word => Some(Interest { socket, word }),
        })
    }
}
