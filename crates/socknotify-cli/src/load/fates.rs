//! What has become of each connection.

use std::fmt;
use std::io;

use super::answers::WrongAnswer;

/// Why a connection makes no more requests.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It could not be made.
    Unconnected(io::Error),
    /// The server has closed it.
    Closed,
    /// It was reset, or failed otherwise.
    Broken(io::Error),
    /// What has come is no answer.
    Wrong(WrongAnswer),
}

/// How many connections have ended in one way, and what was said of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) count: u64,
    pub(crate) reason: Option<String>,
}

impl Ended {
    fn count(&mut self, reason: Option<&dyn fmt::Display>) {
        self.count += 1;
        if self.reason.is_none() {
            self.reason = reason.map(ToString::to_string);
        }
    }

    fn add(&mut self, other: &Ended) {
        self.count += other.count;
        if self.reason.is_none() {
            self.reason.clone_from(&other.reason);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fates {
    /// Connections that have had an answer.
    pub(crate) answered: u64,
    /// Those of them that have ended.
    answered_and_ended: u64,
    /// Those of these that could not be made anew.
    pub(crate) lost: u64,
    /// In an open loop, connections on which no request was due, or only just before the end.
    pub(crate) unused: u64,
    /// Connections on which a part of an answer has come, and no answer.
    pub(crate) parts: u64,
    pub(crate) unconnected: Ended,
    pub(crate) closed: Ended,
    pub(crate) broken: Ended,
    pub(crate) wrong: Ended,
}

impl Fates {
    pub(crate) fn count(&mut self, fate: &Fate, is_answered: bool) {
        self.answered_and_ended += u64::from(is_answered);
        match fate {
            Fate::Unconnected(error) => {
                self.lost += u64::from(is_answered);
                self.unconnected.count(Some(error));
            }
            Fate::Closed => self.closed.count(None),
            Fate::Broken(error) => self.broken.count(Some(error)),
            Fate::Wrong(answer) => self.wrong.count(Some(answer)),
        }
    }

    /// There is no address to connect to.
    pub(crate) fn none_connected(&mut self, connections: u32, error: &io::Error) {
        for _ in 0..connections {
            self.unconnected.count(Some(error));
        }
    }

    pub(crate) fn add(&mut self, other: &Fates) {
        self.answered += other.answered;
        self.answered_and_ended += other.answered_and_ended;
        self.lost += other.lost;
        self.unconnected.add(&other.unconnected);
        self.closed.add(&other.closed);
        self.broken.add(&other.broken);
        self.wrong.add(&other.wrong);
    }

    /// Connections that were answered, and are open at the end.
    pub(crate) fn served(&self) -> u64 {
        self.answered - self.answered_and_ended
    }

    /// Connections that have ended, or were never made.
    pub(crate) fn errors(&self) -> u64 {
        self.unconnected.count + self.closed.count + self.broken.count + self.wrong.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fates_of_all_threads_add_up() {
        let mut total = Fates::default();
        for is_answered in [true, false] {
            let mut one = Fates {
                answered: 2,
                ..Fates::default()
            };
            one.count(&Fate::Closed, is_answered);
            one.count(&Fate::Wrong(WrongAnswer::Status(404)), false);
            one.count(&Fate::Wrong(WrongAnswer::Status(500)), false);
            total.add(&one);
        }
        assert_eq!((total.served(), total.errors()), (3, 6));
        assert_eq!((total.closed.count, total.wrong.count), (2, 4));
        let reason = total.wrong.reason.as_deref();
        assert_eq!(reason, Some("it has HTTP status 404"));
    }
}
