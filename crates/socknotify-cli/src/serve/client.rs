//! A client of the server, and what one notification leads to.

use std::io;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use socknotify::owned::{
    BorrowedSocket, Buffer, FileOperation, Interest, PortFile, Readiness, Source, unacknowledged,
};

use super::delivery::{Delivery, Stage};
use super::desk::Desk;
use super::http::{Conversation, Ending, FileRequest, Found, Site};
use super::log::Log;
use super::outgoing::Outgoing;
use super::plan::{Mode, Plan};
use super::tally::{Counts, Figures, Reason};
use crate::stream::{Stream, is_for_later};

/// How long a client that was refused may go on sending. If the connection were closed while it
/// sends, the answer could be lost on its way.
const LINGER: Duration = Duration::from_secs(2);

/// How often to look, within the time that it has, whether a client has taken something.
const LOOKS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    protocol: Protocol,
    outgoing: Outgoing,
    /// What follows that.
    file: Option<Errand>,
    phase: Phase,
    waits_for: Wait,
    deadline: Option<Instant>,
    /// What it had not acknowledged when it last waited for the client to take something.
    unacknowledged: Option<u64>,
    /// The port has said that it drains.
    drains: bool,
}

#[derive(Debug)]
enum Protocol {
    Echo,
    Discard,
    Http(Conversation),
}

/// A file that was asked for.
#[derive(Debug)]
enum Errand {
    /// Nobody opens it yet.
    Request(Box<FileRequest>),
    Delivery(Box<Delivery>),
}

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// When everything is sent, it is over.
    Closing,
    /// When everything is sent, what the client still sends is received and dropped.
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
    /// That the client takes what it is sent. This one begins anew each time that it has taken something.
    Taking,
    /// The end of what it sends.
    End,
}

/// What becomes of a connection after its turn.
#[derive(Debug)]
pub(crate) enum Next {
    Wait(Interest),
    /// Open the file that was asked for, and then [`Client::have_opened`].
    Open(Box<FileRequest>),
    /// Read from the file: [`Client::read`], and then [`Client::have_read`].
    Read,
    Close,
    Drop(Reason),
}

/// Whether there will be another turn, and after what.
enum Progress {
    GoOn,
    Open(Box<FileRequest>),
    Read,
    Over,
}

impl Client {
    pub(crate) fn new(stream: impl Into<Stream>, mode: Mode, site: Site) -> Self {
        Client {
            stream: stream.into(),
            protocol: match mode {
                Mode::Echo | Mode::UdpEcho => Protocol::Echo,
                Mode::Discard => Protocol::Discard,
                Mode::Http | Mode::Files => Protocol::Http(Conversation::new(site)),
            },
            outgoing: Outgoing::default(),
            file: None,
            phase: Phase::Open,
            waits_for: Wait::Anything,
            deadline: None,
            unacknowledged: None,
            drains: false,
        }
    }

    /// From here on it waits for nothing that has not begun.
    pub(crate) fn drain(&mut self) {
        self.drains = true;
    }

    /// Do what can be done now: at most one receive, the answers to it, and two sends.
    pub(crate) fn turn(
        &mut self,
        readiness: &mut Readiness,
        plan: &Plan,
        figures: &mut dyn FnMut(&mut Counts) -> Figures,
        desk: &mut Desk,
    ) -> Next {
        let outcome = self.serve(readiness, plan, figures, desk);
        self.next(outcome, plan)
    }

    /// The file that was asked for is open, or cannot be opened.
    pub(crate) fn have_opened(
        &mut self,
        request: &FileRequest,
        file: Option<PortFile>,
        found: &Found,
        plan: &Plan,
        log: &mut Log,
    ) -> Next {
        let answer = request.answer(found);
        log.begin(|| self.stream.peer());
        log.answered(request.line(), answer.told);
        let outcome = match file {
            Some(file) if !answer.body.is_empty() => {
                self.file = Some(Errand::Delivery(Box::new(Delivery::new(file, answer))));
                self.deliver()
            }
            _ => self.send(&answer.head),
        };
        self.next(outcome, plan)
    }

    /// The memory to read into, and what makes the read of it.
    pub(crate) fn read(
        &mut self,
    ) -> Option<(Vec<u8>, impl FnOnce(Buffer) -> FileOperation + use<>)> {
        match &mut self.file {
            Some(Errand::Delivery(delivery)) => Some(delivery.read()),
            _ => None,
        }
    }

    /// That read is over.
    pub(crate) fn have_read(
        &mut self,
        memory: Vec<u8>,
        count: io::Result<usize>,
        plan: &Plan,
    ) -> Next {
        if let Some(Errand::Delivery(delivery)) = &mut self.file {
            if delivery.have_read(memory, count).is_err() {
                return self.drop_for(Reason::File);
            }
        }
        let outcome = self.deliver();
        self.next(outcome, plan)
    }

    fn next(&mut self, outcome: io::Result<Progress>, plan: &Plan) -> Next {
        match outcome {
            Ok(Progress::GoOn) => self.wait(plan),
            Ok(Progress::Open(request)) => Next::Open(request),
            Ok(Progress::Read) => Next::Read,
            Ok(Progress::Over) => Next::Close,
            // No socket fails so: the file does.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.drop_for(Reason::File)
            }
            Err(_) => self.drop_for(Reason::Reset),
        }
    }

    /// What it waits for now, and until when.
    pub(crate) fn wait(&mut self, plan: &Plan) -> Next {
        let (waits_for, interest, time) = match (&self.protocol, self.phase) {
            _ if !self.outgoing.is_empty() || self.file.is_some() => {
                (Wait::Taking, Interest::OUT, plan.idle_timeout)
            }
            (_, Phase::Lingering) => (Wait::End, Interest::IN, LINGER),
            // There is a request to answer already. It is served after those that are ready now.
            (Protocol::Http(http), _) if http.has_more_in_hand() => {
                (Wait::Request, Interest::OUT, plan.idle_timeout)
            }
            (Protocol::Http(http), _) if http.is_within_request() => {
                (Wait::Request, Interest::IN, plan.idle_timeout)
            }
            _ => (Wait::Anything, Interest::IN, plan.idle_timeout),
        };
        // Before that, a request may have come that nobody has looked for.
        if waits_for == Wait::Anything && self.drains {
            return Next::Close;
        }
        let now = Instant::now();
        let has_taken = waits_for == Wait::Taking && self.has_taken();
        if waits_for != self.waits_for || waits_for == Wait::Anything || has_taken {
            self.waits_for = waits_for;
            // A time too long to be represented is none.
            self.deadline = now.checked_add(time);
        }
        // The socket becomes writable only when much of its buffer is free. Until then, somebody has to look.
        let look = self.unacknowledged.filter(|_| waits_for == Wait::Taking);
        let look = look.and_then(|_| now.checked_add(time / LOOKS));
        let times = [self.deadline, plan.cut_off(), look];
        let deadline = times.into_iter().flatten().min();
        Next::Wait(deadline.map_or(interest, |deadline| interest.until(deadline)))
    }

    /// Whether the client has acknowledged something since this was last asked, or the system has accepted more for it.
    fn has_taken(&mut self) -> bool {
        let now = unacknowledged(&self.stream);
        let before = std::mem::replace(&mut self.unacknowledged, now);
        now != before
    }

    /// Its deadline has passed.
    pub(crate) fn overdue(&mut self, plan: &Plan) -> Next {
        let is_past = |time: Option<Instant>| time.is_some_and(|time| time <= Instant::now());
        match self.waits_for {
            Wait::Anything => self.drop_for(Reason::Idle),
            Wait::Request => self.drop_for(Reason::Slow),
            Wait::Taking if is_past(plan.cut_off()) => self.drop_for(Reason::Slow),
            Wait::Taking => match self.wait(plan) {
                _ if is_past(self.deadline) => self.drop_for(Reason::Slow),
                next => next,
            },
            Wait::End => Next::Close,
        }
    }

    /// One that was refused has been counted already.
    fn drop_for(&self, reason: Reason) -> Next {
        match self.phase {
            Phase::Open | Phase::Closing => Next::Drop(reason),
            Phase::Refused | Phase::Lingering => Next::Close,
        }
    }

    fn serve(
        &mut self,
        readiness: &mut Readiness,
        plan: &Plan,
        figures: &mut dyn FnMut(&mut Counts) -> Figures,
        desk: &mut Desk,
    ) -> io::Result<Progress> {
        if !self.outgoing.is_empty() {
            if self.outgoing.send_rest(&self.stream)? > 0 {
                // Whatever it waits for next, it has the whole time for it.
                self.waits_for = Wait::Anything;
            }
            if !self.outgoing.is_empty() {
                return Ok(Progress::GoOn);
            }
        }
        if self.file.is_some() {
            return self.deliver();
        }
        if self.phase == Phase::Open {
            let progress = match self.protocol {
                Protocol::Echo => self.echo(readiness, desk),
                Protocol::Discard => self.discard(readiness, desk),
                Protocol::Http(_) => self.converse(readiness, plan, figures, desk),
            }?;
            if !matches!(progress, Progress::GoOn) || !self.outgoing.is_empty() {
                return Ok(progress);
            }
            if self.file.is_some() {
                return self.deliver();
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

    /// Nothing else is left to be sent. Send what was read of the file that was asked for, or have it opened.
    fn deliver(&mut self) -> io::Result<Progress> {
        let mut delivery = match self.file.take() {
            None => return Ok(Progress::GoOn),
            Some(Errand::Request(request)) => return Ok(Progress::Open(request)),
            Some(Errand::Delivery(delivery)) => delivery,
        };
        if delivery.send(&self.stream)? > 0 {
            // There is the whole time for the next part.
            self.waits_for = Wait::Anything;
        }
        let progress = match delivery.stage() {
            Stage::Over => return Ok(self.have_answered()),
            Stage::Send => Progress::GoOn,
            Stage::Read => Progress::Read,
        };
        self.file = Some(Errand::Delivery(delivery));
        Ok(progress)
    }

    /// Sends an answer that is no file.
    fn send(&mut self, answer: &[u8]) -> io::Result<Progress> {
        self.outgoing.send(&self.stream, answer)?;
        match self.outgoing.is_empty() {
            true => Ok(self.have_answered()),
            false => Ok(Progress::GoOn),
        }
    }

    fn have_answered(&mut self) -> Progress {
        self.waits_for = Wait::Anything;
        match self.phase {
            Phase::Closing => Progress::Over,
            _ => Progress::GoOn,
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
        plan: &Plan,
        figures: &mut dyn FnMut(&mut Counts) -> Figures,
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
            let mut figures = figures(counts);
            figures.counts.requests += requests;
            serde_json::to_string(&figures).unwrap_or_default()
        };
        let is_ending = plan.cut_off().is_some();
        desk.log.begin(|| self.stream.peer());
        let heard = http.hear(
            &desk.input[..length],
            &mut desk.answers,
            is_ending,
            &mut stats,
            &mut desk.log,
        );
        desk.counts.requests += heard.requests;
        self.file = heard.file.map(Errand::Request);
        if heard.requests > 0 {
            // The next request has the whole time, even if it has begun.
            self.waits_for = Wait::Anything;
        }
        match heard.ending {
            None => {}
            Some(Ending::Wanted) => self.phase = Phase::Closing,
            Some(Ending::Refused(reason)) => {
                if let Some(reason) = reason {
                    desk.counts.dropped.count(reason);
                }
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
