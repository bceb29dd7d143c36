//! [`Connection`]: one client, and what becomes of its events.

use std::any::Any;
use std::cell::Cell;
use std::io::ErrorKind;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version, request};
use socknotify::owned::{BorrowedSocket, Event, Held, Input, Interest, Readiness, Source, Worker};

use crate::body::RequestBody;
use crate::head::{self, Framing, Head};
use crate::limits::Limits;
use crate::response::{self, Answer, Failure, ResponseBody, Upgraded};
use crate::server::Shared;
use crate::{Request, Response};

/// How long a connection that ends waits for its client to have the last answer.
const CLOSING: Duration = Duration::from_secs(2);

thread_local! {
    /// Memory for what comes next on this thread: connections that wait have none.
    static SPARE: Cell<Option<Input>> = const { Cell::new(None) };
}

pub(crate) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    input: Input,
    /// What is in the input is no whole head: the next part has to come.
    is_partial: bool,
    /// When the head that has begun is to be there.
    deadline: Option<Instant>,
}

impl Source for Connection {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }

    fn has_buffered(&self) -> bool {
        !self.is_partial && !self.input.bytes().is_empty()
    }
}

/// What comes next on a connection.
enum Next {
    Request,
    /// The last answer was sent.
    Close,
    /// There is nobody, or nobody who understands.
    Drop,
    Upgrade(Box<dyn FnOnce(Upgraded) + Send>),
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr, limits: &Limits) -> Self {
        // An answer does not wait for the one before to be acknowledged.
        let _ = stream.set_nodelay(true);
        Connection {
            stream,
            peer,
            input: Input::new(limits.head),
            is_partial: false,
            deadline: None,
        }
    }

    /// What to wait for.
    fn interest(&mut self, limits: &Limits) -> Interest {
        if self.input.bytes().is_empty() {
            SPARE.set(Some(mem::replace(&mut self.input, Input::new(limits.head))));
            self.deadline = None;
            return Interest::IN.within(limits.idle);
        }
        let end = || Instant::now().checked_add(limits.head_time);
        self.deadline = self.deadline.or_else(end);
        self.deadline
            .map_or(Interest::IN, |end| Interest::IN.until(end))
    }

    /// Receive, if that is what to do, and answer the request that is there.
    fn serve<F>(&mut self, readiness: &mut Readiness, shared: &Shared<F>) -> Next
    where
        F: Fn(&mut Request<'_>) -> Response,
    {
        if !self.has_buffered() {
            if self.input.bytes().is_empty() {
                self.input = SPARE.take().unwrap_or(Input::new(shared.limits.head));
            }
            // A short read empties the socket: then it is armed again without a system call.
            match self.input.receive(readiness.io(&self.stream)) {
                Ok(true) => {}
                Ok(false) => return Next::Drop,
                // There is more than a head may have.
                Err(error) if error.kind() == ErrorKind::InvalidData => {}
                Err(_) => return Next::Drop,
            }
            self.is_partial = false;
        }
        // Some clients send an empty line behind a body.
        while self.input.bytes().starts_with(b"\r\n") {
            self.input.take(2);
        }
        match head::parse(self.input.bytes(), &shared.limits) {
            Ok(None) if self.input.bytes().is_empty() => Next::Request,
            Ok(None) => {
                self.is_partial = true;
                Next::Request
            }
            Ok(Some((head, length))) => {
                self.input.take(length);
                self.deadline = None;
                self.answer(head, shared)
            }
            Err(status) => self.refuse(status, false, shared),
        }
    }

    /// Say what is wrong, for the last time.
    fn refuse<F>(&mut self, status: StatusCode, is_head: bool, shared: &Shared<F>) -> Next {
        let answer = Answer {
            version: Version::HTTP_11,
            is_head,
            persists: false,
            now: Instant::now(),
        };
        let response = response::error(status);
        let (end, _) = self.send(response, answer, answer.now, None, shared);
        match end {
            Ok(_) => Next::Close,
            Err(_) => Next::Drop,
        }
    }

    fn answer<F>(&mut self, head: Head, shared: &Shared<F>) -> Next
    where
        F: Fn(&mut Request<'_>) -> Response,
    {
        let Head {
            parts,
            framing,
            persists,
            expects_continue,
        } = head;
        // The handler may change them.
        let (is_head, version) = (parts.method == Method::HEAD, parts.version);
        if matches!(framing, Framing::Length(length) if length > shared.limits.body) {
            return self.refuse(StatusCode::PAYLOAD_TOO_LARGE, is_head, shared);
        }
        let begun = Instant::now();
        let Connection {
            stream,
            input,
            peer,
            ..
        } = self;
        let body = RequestBody::new(
            stream,
            input,
            *peer,
            &shared.limits,
            framing,
            expects_continue,
        );
        let mut request = Request::from_parts(parts, body);
        let handled = catch_unwind(AssertUnwindSafe(|| (shared.handler)(&mut request)));
        let is_panic = handled.is_err();
        let response = handled.unwrap_or_else(|panic: Box<dyn Any + Send>| {
            // The panic hook has reported it. To drop what it carries may panic as well.
            mem::forget(panic);
            response::error(StatusCode::INTERNAL_SERVER_ERROR)
        });
        let failure = request.body().failure();
        let is_whole = !is_panic && failure.is_none() && request.body_mut().skip();
        let response = match failure.or(request.body().failure()) {
            // There is nobody to answer.
            Some(None) => return Next::Drop,
            Some(Some(status)) => response::error(status),
            None => response,
        };
        let (request, _) = request.into_parts();
        let is_valid = match response.body().is_upgrade() {
            // What is left of the request's body would be taken for the other protocol. HTTP/1.0 has no such answers.
            true => {
                let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                is_switch && is_whole && version == Version::HTTP_11
            }
            false => !response.status().is_informational(),
        };
        if !is_valid {
            return self.refuse(StatusCode::INTERNAL_SERVER_ERROR, is_head, shared);
        }
        let answer = Answer {
            version,
            is_head,
            persists: persists && is_whole && !shared.port.is_draining(),
            now: Instant::now(),
        };
        let (end, body) = self.send(response, answer, begun, Some(&request), shared);
        head::reuse(request.headers);
        match (end, body.into_upgrade()) {
            (Ok(_), Some(call)) => Next::Upgrade(call),
            (Ok(true), None) => Next::Request,
            (Ok(false) | Err(Failure::Body), _) => Next::Close,
            (Err(Failure::Client), _) => Next::Drop,
        }
    }

    /// Write an answer, count and log it. Also returns what was its body.
    fn send<F>(
        &self,
        response: Response,
        answer: Answer,
        begun: Instant,
        request: Option<&request::Parts>,
        shared: &Shared<F>,
    ) -> (Result<bool, Failure>, ResponseBody) {
        let (parts, mut body) = response.into_parts();
        let end = answer.now.checked_add(shared.limits.answer_time);
        let written = response::write(&self.stream, end, answer, &parts, &mut body);
        shared.count(&written, begun, self.peer, request);
        (written.end, body)
    }
}

/// Handle what a port reports.
pub(crate) fn on_event<F>(
    shared: &Shared<F>,
    worker: &mut Worker<Connection>,
    event: Event<Connection>,
) where
    F: Fn(&mut Request<'_>) -> Response,
{
    let mut held = match event {
        Event::Ready(held, _) => held,
        // What it has sent is answered; if there is nothing, its time is over at once.
        Event::Draining(mut held) => {
            let interest = match held.is_partial {
                true => held.interest(&shared.limits),
                false => Interest::IN.until(Instant::now()),
            };
            return worker.arm(held, interest);
        }
        Event::TimedOut(mut held) if held.is_partial => {
            let next = held.refuse(StatusCode::REQUEST_TIMEOUT, false, shared);
            return go_on(shared, worker, held, next);
        }
        Event::TimedOut(held) => return worker.linger(held, CLOSING),
        // It is closed.
        _ => return,
    };
    let (connection, readiness) = held.split();
    let next = connection.serve(readiness, shared);
    go_on(shared, worker, held, next);
}

fn go_on<F>(
    shared: &Shared<F>,
    worker: &mut Worker<Connection>,
    mut held: Held<Connection>,
    next: Next,
) {
    match next {
        Next::Request => {
            let interest = held.interest(&shared.limits);
            worker.arm(held, interest);
        }
        Next::Close => worker.linger(held, CLOSING),
        Next::Drop => drop(held),
        Next::Upgrade(call) => {
            let connection = held.into_inner();
            let read_ahead = connection.input.bytes().to_vec();
            call(Upgraded {
                stream: connection.stream,
                read_ahead,
            });
        }
    }
}
