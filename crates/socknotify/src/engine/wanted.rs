//! What is to be watched of each socket, published for those who tell the system without a lock.
//!
//! A thread that tells the system of an interest may be late: another one may have changed the interest,
//! and told the system, in the meantime. So whoever tells the system reads the interest again afterwards
//! ([`Wanted::follow`]). Whatever the order, what the system was told last was current when it was told.

use std::sync::atomic::Ordering;

use super::interest::{ArmError, Interest};
use super::sync::AtomicU64;
use crate::pages::SharedPages;

/// The interests of a port, by the number of the socket. Written with the engine's lock held.
#[derive(Debug)]
pub(crate) struct Wanted {
    interests: SharedPages<AtomicU64>,
}

/// What came of telling the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    /// The system was told, and answered.
    Told(Result<(), ArmError>),
    /// Another thread has changed the interest, and sees to it.
    Changed,
    /// There is none any more.
    Withdrawn,
}

impl Wanted {
    pub(super) fn new() -> Self {
        Wanted {
            interests: SharedPages::new(),
        }
    }

    /// What is to be watched of this socket, if anything.
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

    /// Tell the system of an interest, and of the next one for as long as it changes meanwhile.
    ///
    /// If this is withdrawn, the system was or will be told with the engine's lock held, after which it
    /// knows no such socket to be armed again.
    #[inline]
    pub(crate) fn follow(
        &self,
        interest: &Interest,
        mut tell: impl FnMut(&Interest) -> Result<(), ArmError>,
    ) -> Followed {
        let mut told = *interest;
        match self.get(told.socket) {
            None => return Followed::Withdrawn,
            Some(current) if current != told => return Followed::Changed,
            Some(_) => {}
        }
        loop {
            let answer = tell(&told);
            match self.get(told.socket) {
                None => return Followed::Withdrawn,
                Some(current) if current != told => told = current,
                Some(_) if told != *interest => return Followed::Changed,
                Some(_) => return Followed::Told(answer),
            }
        }
    }

    /// Every interest that there is.
    #[cfg_attr(
        not(all(target_os = "linux", not(kqueue_stand_in))),
        allow(dead_code, reason = "not every backend builds anything anew")
    )]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Interest> {
        let words = self.interests.iter();
        words.filter_map(|(socket, word)| match word.load(Ordering::Acquire) {
            0 => None,
            word => Some(Interest { socket, word }),
        })
    }
}
