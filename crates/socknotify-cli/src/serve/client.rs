//! A client of the server, and its turn.

use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use socknotify::owned::{BorrowedSocket, Interest, Readiness, Source};

use super::Mode;
use super::desk::Desk;
use super::http::{Conversation, Ending};
use super::outgoing::Outgoing;
use super::server::Server;
use super::tally::Reason;
use crate::stream::{Stream, is_for_later};

/// How long a client that was refused may go on sending. If the connection were closed while it
/// sends, the answer could be lost on its way.
const LINGER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    protocol: Protocol,
    outgoing: Outgoing,
    phase: Phase,
    waits_for: Wait,
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Protocol {
    Echo,
    Discard,
    Http(Conversation),
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// When everything is sent, it is over.
    Closing,
    /// When everything is sent, there may be something to receive that nobody wants.
    Refused,
    /// Everything is sent, and the client knows that it is over.
    Lingering,
}

/// What the deadline is for. It is not moved as long as that stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Anything. This one begins anew each time.
    Anything,
    /// The rest of a request.
    Request,
    /// That the client takes what it is sent.
    Taking,
    /// The end of what it sends.
    End,
}

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    Wait(Interest),
    Close,
    Shed(Reason),
}

/// Whether there will be another turn.
enum Progress {
    GoOn,
    Over,
}

impl Client {
    pub(crate) fn new(stream: impl Into<Stream>, mode: Mode) -> Self {
        Client {
            stream: stream.into(),
            protocol: match mode {
                Mode::Echo | Mode::UdpEcho => Protocol::Echo,
                Mode::Discard => Protocol::Discard,
                Mode::Http => Protocol::Http(Conversation::default()),
            },
            outgoing: Outgoing::default(),
            phase: Phase::Open,
            waits_for: Wait::Anything,
            deadline: None,
        }
    }

    /// Do what can be done now: at most one receive, the answers to it, and two sends.
    pub(crate) fn turn(
        &mut self,
        readiness: &mut Readiness,
        server: &Server,
        desk: &mut Desk,
    ) -> Next {
        match self.serve(readiness, server, desk) {
            Ok(Progress::GoOn) => self.wait(server),
            Ok(Progress::Over) => Next::Close,
            Err(_) => self.shed(Reason::Reset),
        }
    }

    /// What it waits for now, and until when.
    pub(crate) fn wait(&mut self, server: &Server) -> Next {
        let (waits_for, interest, time) = match (&self.protocol, self.phase) {
            _ if !self.outgoing.is_empty() => (Wait::Taking, Interest::OUT, server.idle_timeout),
            (_, Phase::Lingering) => (Wait::End, Interest::IN, LINGER),
            // There is a request to answer already. It waits for its turn, as the others do.
            (Protocol::Http(http), _) if http.has_more_in_hand() => {
                (Wait::Request, Interest::OUT, server.idle_timeout)
            }
            (Protocol::Http(http), _) if http.is_within_request() => {
                (Wait::Request, Interest::IN, server.idle_timeout)
            }
            _ => (Wait::Anything, Interest::IN, server.idle_timeout),
        };
        let cut_off = server.cut_off();
        if waits_for == Wait::Anything && cut_off.is_some() {
            return Next::Close;
        }
        if waits_for != self.waits_for || waits_for == Wait::Anything {
            self.waits_for = waits_for;
            // A time too long to be represented is none.
            self.deadline = Instant::now().checked_add(time);
        }
        let deadline = self.deadline.into_iter().chain(cut_off).min();
        Next::Wait(deadline.map_or(interest, |deadline| interest.until(deadline)))
    }

    /// Its deadline has passed.
    pub(crate) fn overdue(&self) -> Next {
        match self.waits_for {
            Wait::Anything => self.shed(Reason::Idle),
            Wait::Request | Wait::Taking => self.shed(Reason::Slow),
            Wait::End => Next::Close,
        }
    }

    /// One that was refused has been counted already.
    fn shed(&self, reason: Reason) -> Next {
        match self.phase {
            Phase::Open | Phase::Closing => Next::Shed(reason),
            Phase::Refused | Phase::Lingering => Next::Close,
        }
    }

    fn serve(
        &mut self,
        readiness: &mut Readiness,
        server: &Server,
        desk: &mut Desk,
    ) -> io::Result<Progress> {
        if !self.outgoing.is_empty() {
            self.outgoing.send_rest(&self.stream)?;
            if !self.outgoing.is_empty() {
                return Ok(Progress::GoOn);
            }
            // Whatever it waits for next, it has the whole time for it.
            self.waits_for = Wait::Anything;
        }
        if self.phase == Phase::Open {
            let progress = match self.protocol {
                Protocol::Echo => self.echo(readiness, desk),
                Protocol::Discard => self.discard(readiness, desk),
                Protocol::Http(_) => self.converse(readiness, server, desk),
            }?;
            if matches!(progress, Progress::Over) || !self.outgoing.is_empty() {
                return Ok(progress);
            }
        }
        match self.phase {
            Phase::Open => Ok(Progress::GoOn),
            Phase::Closing => Ok(Progress::Over),
            Phase::Refused => {
                self.stream.shutdown(Shutdown::Write)?;
                self.phase = Phase::Lingering;
                Ok(Progress::GoOn)
            }
            Phase::Lingering => self.discard(readiness, desk),
        }
    }

    fn echo(&mut self, readiness: &mut Readiness, desk: &mut Desk) -> io::Result<Progress> {
        match received(self.stream.receive(readiness, &mut desk.input))? {
            Received::Bytes(length) => {
                desk.counts.requests += 1;
                self.outgoing.send(&self.stream, &desk.input[..length])?;
                Ok(Progress::GoOn)
            }
            Received::Nothing => Ok(Progress::GoOn),
            Received::End => Ok(Progress::Over),
        }
    }

    fn discard(&mut self, readiness: &mut Readiness, desk: &mut Desk) -> io::Result<Progress> {
        match received(self.stream.receive(readiness, &mut desk.input))? {
            Received::Bytes(_) => {
                desk.counts.requests += u64::from(self.phase == Phase::Open);
                Ok(Progress::GoOn)
            }
            Received::Nothing => Ok(Progress::GoOn),
            Received::End => Ok(Progress::Over),
        }
    }

    fn converse(
        &mut self,
        readiness: &mut Readiness,
        server: &Server,
        desk: &mut Desk,
    ) -> io::Result<Progress> {
        let Protocol::Http(http) = &mut self.protocol else {
            return Ok(Progress::GoOn);
        };
        let mut length = http.put_kept(&mut desk.input);
        if !http.has_more_in_hand() {
            match received(self.stream.receive(readiness, &mut desk.input[length..]))? {
                Received::Bytes(more) => length += more,
                Received::Nothing => return Ok(Progress::GoOn),
                Received::End => return Ok(Progress::Over),
            }
        }
        desk.answers.clear();
        let counts = &mut desk.counts;
        let mut stats = |requests| {
            let mut figures = server.figures_with(counts);
            figures.counts.requests += requests;
            serde_json::to_string(&figures).unwrap_or_default()
        };
        let is_ending = server.cut_off().is_some();
        let heard = http.hear(
            &desk.input[..length],
            &mut desk.answers,
            is_ending,
            &mut stats,
        );
        desk.counts.requests += heard.requests;
        if heard.requests > 0 {
            // The next request has the whole time, even if it has begun.
            self.waits_for = Wait::Anything;
        }
        match heard.ending {
            None => {}
            Some(Ending::Wanted) => self.phase = Phase::Closing,
            Some(Ending::Refused(reason)) => {
                desk.counts.shed.count(reason);
                self.phase = Phase::Refused;
            }
        }
        self.outgoing.send(&self.stream, &desk.answers)?;
        Ok(Progress::GoOn)
    }
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

enum Received {
    Bytes(usize),
    Nothing,
    End,
}

fn received(outcome: io::Result<usize>) -> io::Result<Received> {
    match outcome {
        Ok(0) => Ok(Received::End),
        Ok(length) => Ok(Received::Bytes(length)),
        Err(error) if is_for_later(&error) => Ok(Received::Nothing),
        Err(error) => Err(error),
    }
}
