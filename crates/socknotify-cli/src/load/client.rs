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
    is_answered: bool,
    /// Something has come.
    has_received: bool,
    /// Requests in progress, those that were sent at once together: since when they count, and how many.
    sent: VecDeque<(Instant, usize)>,
    /// In an open loop, when its next request is due.
    pub(crate) due: Option<Instant>,
    /// What did not fit into the socket.
    unsent: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: impl Into<Stream>, plan: &Plan) -> Self {
        Client {
            stream: stream.into(),
            answers: Answers::new(plan.mode, plan.is_head),
            is_answered: false,
            has_received: false,
            sent: VecDeque::with_capacity(1),
            due: None,
            unsent: Vec::new(),
        }
    }

    /// The same client on another connection, since the server has closed this one. What was not answered is sent again, and
    /// this many more.
    pub(crate) fn begin_again(&mut self, more: usize) -> Again {
        if more > 0 {
            self.sent.push_back((Instant::now(), more));
        }
        Again {
            is_answered: self.is_answered,
            sent: std::mem::take(&mut self.sent),
            due: self.due,
        }
    }

    pub(crate) fn again(stream: impl Into<Stream>, again: Again, plan: &Plan) -> Self {
        let Again {
            is_answered,
            sent,
            due,
        } = again;
        let count = sent.iter().map(|&(_, count)| count).sum();
        Client {
            is_answered,
            has_received: is_answered,
            unsent: plan.request.repeat(count),
            sent,
            due,
            ..Client::new(stream, plan)
        }
    }

    /// Whether the server has said that it closes the connection.
    pub(crate) fn is_over(&self) -> bool {
        self.answers.are_over()
    }

    /// Whether a part of an answer has come, and no answer.
    pub(crate) fn has_part(&self) -> bool {
        self.has_received && !self.is_answered
    }

    /// How long each request has waited that was due by this time, and was not answered.
    pub(crate) fn waits(&self, end: Instant, interval: Option<Duration>) -> Vec<Duration> {
        let mut waits = Vec::new();
        for &(since, count) in &self.sent {
            waits.extend(iter::repeat_n(end.saturating_duration_since(since), count));
        }
        if let (Some(mut due), Some(interval)) = (self.due, interval) {
            while due < end && !interval.is_zero() {
                waits.push(end - due);
                due += interval;
            }
        }
        waits
    }

    /// Send so many requests, whose latency counts from this time.
    pub(crate) fn send(&mut self, count: usize, since: Instant, plan: &Plan) -> Result<(), Fate> {
        self.sent.push_back((since, count));
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
        if answers > 0 && !self.is_answered {
            self.is_answered = true;
            score.fates.answered += 1;
        }
        let mut left = answers;
        while left > 0 {
            let (sent, waiting) = self
                .sent
                .front_mut()
                .ok_or(Fate::Wrong(WrongAnswer::Unasked))?;
            let count = left.min(*waiting);
            score.answered(count, now.duration_since(*sent));
            *waiting -= count;
            left -= count;
            if *waiting == 0 {
                self.sent.pop_front();
            }
        }
        Ok(answers)
    }

    /// Whether no request is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    pub(crate) fn interest(&self) -> Interest {
        match self.unsent.is_empty() {
            true => Interest::IN,
            false => Interest::IN | Interest::OUT,
        }
    }

    /// Whether there was no answer, though a request was due by this time.
    pub(crate) fn is_overdue_since(&self, time: Instant) -> bool {
        let first = self.sent.front();
        !self.is_answered && first.is_some_and(|&(since, _)| since <= time)
    }

    /// Whether an answer has come.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
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

/// What a client keeps when its connection is made anew.
#[derive(Debug)]
pub(crate) struct Again {
    is_answered: bool,
    sent: VecDeque<(Instant, usize)>,
    due: Option<Instant>,
}

impl Again {
    /// Whether an answer has come.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}
