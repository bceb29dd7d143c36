//! A client: one connection and its requests.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::iter;
use std::time::{Duration, Instant};

use socknotify::owned::{BorrowedSocket, Interest, Source};

use super::answers::{Answers, WrongAnswer};
use super::fates::Fate;
use super::plan::Plan;
use super::score::Score;
use crate::stream::{Stream, is_for_later};

#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    answers: Answers,
    /// Something has come.
    has_received: bool,
    pub(crate) requests: Requests,
    /// What did not fit into the socket.
    unsent: Vec<u8>,
}

/// What a client keeps when its connection is made anew.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    is_answered: bool,
    /// Those in progress, those that were sent at once together: since when they count, and how many.
    sent: VecDeque<(Instant, usize)>,
    /// In an open loop, when the next one is due.
    pub(crate) due: Option<Instant>,
}

impl Requests {
    /// How long each has waited that was due by this time, and was not answered. There may be more than there is memory for.
    pub(crate) fn waits(
        &self,
        end: Instant,
        interval: Option<Duration>,
    ) -> impl Iterator<Item = Duration> {
        let sent = self.sent.iter().flat_map(move |&(since, count)| {
            iter::repeat_n(end.saturating_duration_since(since), count)
        });
        let next = self.due.zip(interval.filter(|it| !it.is_zero()));
        let not_sent = next.into_iter().flat_map(move |(due, interval)| {
            let all = iter::successors(Some(due), move |due| due.checked_add(interval));
            all.take_while(move |&due| due < end)
                .map(move |due| end - due)
        });
        sent.chain(not_sent)
    }

    /// Whether there was no answer, though one was due by this time.
    pub(crate) fn are_overdue_since(&self, time: Instant) -> bool {
        let first = self.sent.front();
        !self.is_answered && first.is_some_and(|&(since, _)| since <= time)
    }

    /// Whether an answer has come.
    pub(crate) fn are_answered(&self) -> bool {
        self.is_answered
    }
}

impl Client {
    /// Sends the requests that were in progress on another connection.
    pub(crate) fn new(stream: impl Into<Stream>, requests: Requests, plan: &Plan) -> Self {
        let count = requests.sent.iter().map(|&(_, count)| count).sum();
        Client {
            stream: stream.into(),
            answers: Answers::new(plan.mode, plan.is_head),
            has_received: requests.is_answered,
            unsent: plan.request.repeat(count),
            requests,
        }
    }

    /// What another connection is for, since the server has closed this one: what was not answered, and so many more.
    pub(crate) fn begin_again(&mut self, more: usize) -> Requests {
        if more > 0 {
            self.requests.sent.push_back((Instant::now(), more));
        }
        std::mem::take(&mut self.requests)
    }

    /// Whether the server has said that it closes the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.answers.are_over()
    }

    /// Whether a part of an answer has come, and no answer.
    pub(crate) fn has_part(&self) -> bool {
        self.has_received && !self.requests.is_answered
    }

    /// Send so many requests, whose latency counts from this time.
    pub(crate) fn send(&mut self, count: usize, since: Instant, plan: &Plan) -> Result<(), Fate> {
        self.requests.sent.push_back((since, count));
        match (count, self.unsent.is_empty()) {
            // No copy for what is most usual.
            (1, true) => self.write(&plan.request),
            _ => {
                let mut bytes = std::mem::take(&mut self.unsent);
                bytes.extend_from_slice(&plan.request.repeat(count));
                self.write(&bytes)
            }
        }
    }

    /// Take the answers that have come. How many these are.
    pub(crate) fn turn(
        &mut self,
        room: &mut [u8],
        score: &mut Score,
        plan: &Plan,
    ) -> Result<usize, Fate> {
        if !self.unsent.is_empty() {
            let bytes = std::mem::take(&mut self.unsent);
            self.write(&bytes)?;
        }
        let length = match (&self.stream).read(room) {
            Ok(0) => return Err(Fate::Closed),
            Ok(length) => length,
            Err(error) if is_for_later(&error) => return Ok(0),
            Err(error) => return Err(Fate::Broken(error)),
        };
        self.has_received = true;
        let now = Instant::now();
        let answers = self
            .answers
            .count(&room[..length], &plan.request)
            .map_err(Fate::Wrong)?;
        if answers > 0 && !self.requests.is_answered {
            self.requests.is_answered = true;
            score.fates.answered += 1;
        }
        let mut left = answers;
        while left > 0 {
            let (sent, waiting) = self
                .requests
                .sent
                .front_mut()
                .ok_or(Fate::Wrong(WrongAnswer::Unasked))?;
            let count = left.min(*waiting);
            score.answered(count, now.duration_since(*sent));
            *waiting -= count;
            left -= count;
            if *waiting == 0 {
                self.requests.sent.pop_front();
            }
        }
        Ok(answers)
    }

    /// Whether no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.sent.is_empty()
    }

    pub(crate) fn interest(&self) -> Interest {
        match self.unsent.is_empty() {
            true => Interest::IN,
            false => Interest::IN | Interest::OUT,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fate> {
        let sent = match (&self.stream).write(bytes) {
            Ok(sent) => sent,
            Err(error) if is_for_later(&error) => 0,
            Err(error) => return Err(Fate::Broken(error)),
        };
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}
