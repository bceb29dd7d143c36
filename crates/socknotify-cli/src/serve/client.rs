//! A client of the server, and what one notification leads to.

use std::io;
use std::time::Instant;

use socknotify::owned::{
    BorrowedSocket, Buffer, FileOperation, Interest, PortFile, Readiness, Source, unacknowledged,
};

use super::delivery::{Delivery, Stage};
use super::desk::Desk;
use super::http::{Conversation, Ending, FileRequest, Found, Page, Site};
use super::log::Log;
use super::outgoing::Outgoing;
use super::plan::{Mode, Plan};
use super::tally::{Counts, Figures, Reason};
use crate::stream::{Stream, is_for_later};

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
    /// It was sent something, and so is not closed while it may be on its way.
    is_answered: bool,
    /// Everything is done.
    is_over: bool,
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
    /// What it has is sent first.
    Page(Box<Page>),
}

/// How many parts of a page are sent before others have their turn.
const PARTS: usize = 16;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// When everything is sent, it is over.
    Closing,
    /// The same, and the reason was counted.
    Refused,
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
    /// Close it when the client has got what it was sent, and count it for a reason.
    Linger(Option<Reason>),
    Drop(Reason),
}

/// Whether there will be another turn, and after what.
enum Progress {
    GoOn,
    Open(Box<FileRequest>),
    Read,
    /// The client was sent everything.
    Over,
    /// The client sends nothing more, and has got everything.
    Ended,
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
            is_answered: false,
            is_over: false,
        }
    }

    /// Whether nothing is left to do for it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
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
            _ if answer.page.is_some() => {
                self.file = answer.page.map(Errand::Page);
                let sent = self.outgoing.send(&self.stream, &answer.head);
                self.is_answered = true;
                match sent {
                    Ok(()) if self.outgoing.is_empty() => self.deliver(),
                    sent => sent.map(|()| Progress::GoOn),
                }
            }
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

    /// The same in this thread, which may block, since the port has none for it.
    pub(crate) fn read_here(&mut self, mut memory: Vec<u8>, plan: &Plan) -> Next {
        let count = match &mut self.file {
            Some(Errand::Delivery(delivery)) => delivery.read_here(&mut memory),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        self.have_read(memory, count, plan)
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
                return self.end(Some(Reason::File));
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
            Ok(Progress::Over) => self.end(None),
            Ok(Progress::Ended) => self.close(),
            // No socket fails so: the file does.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.end(Some(Reason::File))
            }
            Err(_) => self.drop_for(Reason::Reset),
        }
    }

    fn close(&mut self) -> Next {
        self.is_over = true;
        Next::Close
    }

    /// It has all that there is for it. If it sends more, that must not destroy what is on its way. One that was refused has
    /// been counted already.
    fn end(&mut self, reason: Option<Reason>) -> Next {
        self.is_over = true;
        match reason.filter(|_| self.phase != Phase::Refused) {
            reason if self.is_answered => Next::Linger(reason),
            Some(reason) => Next::Drop(reason),
            None => Next::Close,
        }
    }

    /// What it waits for now, and until when.
    pub(crate) fn wait(&mut self, plan: &Plan) -> Next {
        let now = Instant::now();
        let (waits_for, interest, time) = match (&self.protocol, self.phase) {
            _ if !self.outgoing.is_empty() || self.file.is_some() => {
                (Wait::Taking, Interest::OUT, plan.idle_timeout)
            }
            // There is a request to answer already. It is served after those that are ready now.
            (Protocol::Http(http), _) if http.has_more_in_hand() => {
                (Wait::Request, Interest::OUT, plan.idle_timeout)
            }
            (Protocol::Http(http), _) if http.is_within_request() => {
                (Wait::Request, Interest::IN, plan.idle_timeout)
            }
            _ => (Wait::Anything, Interest::IN, plan.idle_timeout),
        };
        // Before that, something may have come that nobody has looked for.
        if waits_for == Wait::Anything && self.drains {
            let is_empty = || !self.stream.has_more();
            let is_over = match self.protocol {
                Protocol::Echo => plan.takes_no_more(is_empty),
                Protocol::Discard => true,
                // Its last answer says so.
                Protocol::Http(_) => is_empty(),
            };
            if is_over {
                return self.end(None);
            }
        }
        if plan.cut_off().is_some_and(|time| time <= now) {
            return self.cut_off();
        }
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
            _ if is_past(plan.cut_off()) => self.cut_off(),
            Wait::Anything => self.end(Some(Reason::Idle)),
            Wait::Request => self.end(Some(Reason::Slow)),
            Wait::Taking => match self.wait(plan) {
                _ if is_past(self.deadline) => self.drop_for(Reason::Slow),
                next => next,
            },
        }
    }

    /// The time of the server is over. What was answered whole still gets there.
    fn cut_off(&mut self) -> Next {
        if self.outgoing.is_empty() && self.file.is_none() {
            self.end(Some(Reason::Cut))
        } else {
            self.drop_for(Reason::Cut)
        }
    }

    /// One that was refused has been counted already.
    fn drop_for(&mut self, reason: Reason) -> Next {
        self.is_over = true;
        match self.phase {
            Phase::Open | Phase::Closing => Next::Drop(reason),
            Phase::Refused => Next::Close,
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
        Ok(match self.phase {
            Phase::Open => Progress::GoOn,
            Phase::Closing | Phase::Refused => Progress::Over,
        })
    }

    /// Nothing else is left to be sent. Send what was read of the file that was asked for, or have it opened.
    fn deliver(&mut self) -> io::Result<Progress> {
        let mut delivery = match self.file.take() {
            None => return Ok(Progress::GoOn),
            Some(Errand::Request(request)) => return Ok(Progress::Open(request)),
            Some(Errand::Delivery(delivery)) => delivery,
            Some(Errand::Page(page)) => return self.deliver_page(page),
        };
        if delivery.send(&self.stream)? > 0 {
            self.is_answered = true;
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

    fn deliver_page(&mut self, mut page: Box<Page>) -> io::Result<Progress> {
        let mut part = Vec::new();
        for _ in 0..PARTS {
            part.clear();
            page.write_part(&mut part);
            if part.is_empty() {
                return Ok(self.have_answered());
            }
            // There is the whole time for the next part.
            self.waits_for = Wait::Anything;
            self.outgoing.send(&self.stream, &part)?;
            if !self.outgoing.is_empty() {
                break;
            }
        }
        self.file = Some(Errand::Page(page));
        Ok(Progress::GoOn)
    }

    /// Sends an answer that is no file.
    fn send(&mut self, answer: &[u8]) -> io::Result<Progress> {
        self.outgoing.send(&self.stream, answer)?;
        self.is_answered = true;
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
                self.is_answered = true;
                Ok(Progress::GoOn)
            }
            Received::Nothing => Ok(Progress::GoOn),
            Received::End => Ok(Progress::Ended),
        }
    }

    fn discard(&mut self, readiness: &mut Readiness, desk: &mut Desk) -> io::Result<Progress> {
        match received(self.stream.receive(readiness, &mut desk.input))? {
            Received::Bytes(_) => {
                desk.counts.requests += 1;
                Ok(Progress::GoOn)
            }
            Received::Nothing => Ok(Progress::GoOn),
            Received::End => Ok(Progress::Ended),
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
                Received::End => return Ok(Progress::Ended),
            }
        }
        desk.answers.clear();
        let counts = &mut desk.counts;
        let mut stats = |requests| {
            let mut figures = figures(counts);
            figures.counts.requests += requests;
            serde_json::to_string(&figures).unwrap_or_default()
        };
        let stream = &self.stream;
        let is_last = |is_newest| plan.takes_no_more(|| is_newest && !stream.has_more());
        desk.log.begin(|| self.stream.peer());
        let heard = http.hear(
            &desk.input[..length],
            &mut desk.answers,
            &is_last,
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
        self.is_answered |= !desk.answers.is_empty();
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
