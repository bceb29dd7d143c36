//! [`Connection`]: one client, and what becomes of its events.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};
use socknotify::owned::{
    BorrowedSocket, Event, Input, Interest, Readiness, Source, Worker, unacknowledged,
};

use crate::body::{EARLY, RequestBody, is_whole};
use crate::head::{self, Framing, Head};
use crate::limits::Limits;
use crate::response::{self, Answer, Sending, Stop, Upgraded};
use crate::server::Shared;
use crate::wire::{Wire, after, input};
use crate::{Request, Response};

/// How long a connection that ends waits for its client to have the last answer.
const CLOSING: Duration = Duration::from_secs(2);

thread_local! {
    /// Memory for what comes next on this thread: connections that wait have none.
    static SPARE: Cell<Option<Input>> = const { Cell::new(None) };
}

pub(crate) struct Connection {
    wire: Wire,
    peer: SocketAddr,
    /// So many bytes have to be there before it goes on. 0 if nothing has begun.
    needed: usize,
    /// When the head that has begun is to be there.
    deadline: Option<Instant>,
    /// The head is there: since when, and how long it is. And where the next chunk of its body begins.
    body: Option<(Instant, usize)>,
    chunk: usize,
    /// An answer that the client has not taken yet: nothing is received before it has.
    waiting: Option<Box<Waiting>>,
}

/// An answer that waits for its client, and what was asked for, since when.
struct Waiting {
    sending: Sending,
    line: Vec<u8>,
    begun: Instant,
    /// What the client's system had not taken, when that was last looked at.
    untaken: Option<u64>,
}

impl Source for Connection {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.wire.stream.socket()
    }

    fn has_buffered(&self) -> bool {
        self.has_enough() || self.wire.has_more
    }
}

/// What comes next on a connection.
enum Next {
    /// The rest of a request.
    Rest,
    Request,
    /// The rest of an answer is to be sent.
    Send,
    /// The last answer was sent.
    Close,
    /// There is nobody, or nobody who understands.
    Drop,
    Upgrade(Box<dyn FnOnce(Upgraded) + Send>),
}

impl Connection {
    pub(crate) fn new(wire: Wire, peer: SocketAddr) -> Self {
        // An answer does not wait for the one before to be acknowledged.
        let _ = wire.stream.set_nodelay(true);
        Connection {
            wire,
            peer,
            needed: 0,
            deadline: None,
            body: None,
            chunk: 0,
            waiting: None,
        }
    }

    fn has_enough(&self) -> bool {
        let length = self.wire.input.bytes().len();
        length > 0 && length >= self.needed
    }

    /// What to wait for, if a request or an answer has begun.
    fn interest(&mut self, limits: &Limits) -> Interest {
        let now = Instant::now();
        if let Some(waiting) = &mut self.waiting {
            waiting.untaken = unacknowledged(&self.wire.stream);
            return Interest::OUT.until(waiting.sending.end.min(after(now, limits.stall)));
        }
        Interest::IN.until(match self.body {
            Some((since, head)) => {
                let received = self.wire.input.bytes().len() - head;
                let end = limits.body_end(since, received as u64);
                end.min(after(now, limits.stall))
            }
            None => *self.deadline.get_or_insert(after(now, limits.head_time)),
        })
    }

    /// Receive, if that is what to do, and answer the request that is there.
    fn serve<F>(&mut self, readiness: &mut Readiness, shared: &Shared<F>) -> Next
    where
        F: Fn(&mut Request<'_>) -> Response,
    {
        if let Some(waiting) = self.waiting.take() {
            shared.begin(&waiting.line, waiting.begun);
            return self.go_on(waiting.sending, shared);
        }
        if !self.has_enough() {
            if self.wire.input.bytes().is_empty() {
                self.wire.input = SPARE.take().unwrap_or_else(|| input(&shared.limits));
            }
            // A short read empties the socket: then it is armed again without a system call.
            match self.wire.receive(|stream| readiness.io(stream)) {
                Ok(true) => {}
                Ok(false) | Err(_) => return Next::Drop,
            }
        }
        // Some clients send an empty line behind a body.
        while self.body.is_none() && self.wire.input.bytes().starts_with(b"\r\n") {
            self.wire.input.take(2);
        }
        let bytes = self.wire.input.bytes();
        match head::parse(bytes, &shared.limits) {
            Ok(None) if bytes.is_empty() && self.wire.is_plain() => Next::Request,
            Ok(None) => {
                self.needed = bytes.len() + 1;
                Next::Rest
            }
            Ok(Some((head, length))) => {
                let body = &bytes[length..];
                let needed = match head.framing {
                    _ if head.expects_continue && body.is_empty() => length,
                    Framing::Length(body) if body <= (EARLY as u64).min(shared.limits.body) => {
                        length + body as usize
                    }
                    Framing::Chunked if !is_whole(body, &mut self.chunk, &shared.limits) => {
                        bytes.len() + 1
                    }
                    _ => length,
                };
                if needed > bytes.len() {
                    self.needed = needed;
                    self.body = self.body.or_else(|| Some((Instant::now(), length)));
                    head::reuse(head.parts.headers);
                    return Next::Rest;
                }
                shared.begin(bytes, Instant::now());
                self.wire.input.take(length);
                (self.needed, self.deadline, self.body, self.chunk) = (0, None, None, 0);
                self.answer(head, shared)
            }
            Err(status) => {
                shared.begin(bytes, Instant::now());
                self.refuse(status, false, shared)
            }
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
        self.send(response::error(status), answer, shared)
    }

    fn answer<F>(&mut self, head: Head, shared: &Shared<F>) -> Next
    where
        F: Fn(&mut Request<'_>) -> Response,
    {
        // The handler may change them.
        let (is_head, version) = (head.parts.method == Method::HEAD, head.parts.version);
        if matches!(head.framing, Framing::Length(length) if length > shared.limits.body) {
            return self.refuse(StatusCode::PAYLOAD_TOO_LARGE, is_head, shared);
        }
        let (wire, peer) = (&mut self.wire, self.peer);
        let body = RequestBody::new(wire, peer, &shared.limits, &head);
        let mut request = Request::from_parts(head.parts, body);
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
        // What has come is answered, also at the end.
        let is_last = shared.handle.is_draining() && !self.has_buffered();
        let answer = Answer {
            version,
            is_head,
            persists: head.persists && is_whole && !is_last,
            now: Instant::now(),
        };
        head::reuse(request.headers);
        self.send(response, answer, shared)
    }

    fn send<F>(&mut self, response: Response, answer: Answer, shared: &Shared<F>) -> Next {
        let end = after(answer.now, shared.limits.answer_time);
        self.go_on(Sending::new(response, answer, end), shared)
    }

    /// Send what the client has room for. At the end, count and log it.
    fn go_on<F>(&mut self, mut sending: Sending, shared: &Shared<F>) -> Next {
        let sent = sending.go_on(&mut self.wire);
        if let Err(Stop::Full) = sent {
            let (line, begun) = shared.line();
            self.waiting = Some(Box::new(Waiting {
                sending,
                line,
                begun,
                untaken: None,
            }));
            return Next::Send;
        }
        shared.count(&sending, sent.is_ok(), self.peer);
        let persists = sending.answer.persists;
        match (sent, sending.into_upgrade()) {
            (Ok(()), Some(call)) => Next::Upgrade(call),
            (Ok(()), None) if persists => Next::Request,
            (Ok(()) | Err(Stop::Body), _) => Next::Close,
            (Err(_), _) => Next::Drop,
        }
    }

    /// Whether the client has taken something of its answer since it was armed. Where the system does not tell, it has not.
    fn has_taken(&self) -> bool {
        let untaken = unacknowledged(&self.wire.stream);
        self.waiting.as_ref().is_some_and(|it| {
            Instant::now() < it.sending.end && untaken.is_some() && untaken < it.untaken
        })
    }

    /// Count and log the answer that waits, if there is one: it is not sent any more.
    pub(crate) fn give_up<F>(&mut self, shared: &Shared<F>) -> bool {
        let Some(waiting) = self.waiting.take() else {
            return false;
        };
        shared.begin(&waiting.line, waiting.begun);
        shared.count(&waiting.sending, false, self.peer);
        true
    }
}

/// Have each call wait for so long.
fn blocking(stream: &TcpStream, most: Duration) -> io::Result<()> {
    let most = Some(most.max(Duration::from_millis(1)));
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(most)?;
    stream.set_write_timeout(most)
}

/// Handle what a port reports.
pub(crate) fn on_event<F>(
    shared: &Shared<F>,
    worker: &mut Worker<Connection>,
    event: Event<Connection>,
) where
    F: Fn(&mut Request<'_>) -> Response,
{
    let limits = &shared.limits;
    let (mut held, next) = match event {
        Event::Ready(mut held, _) => {
            let (connection, readiness) = held.split();
            let next = connection.serve(readiness, shared);
            (held, next)
        }
        // What it has sent is answered; if there is nothing, its time is over at once.
        Event::Draining(mut held) => {
            let interest = match held.needed {
                0 if held.waiting.is_none() => Interest::IN.until(Instant::now()),
                _ => held.interest(limits),
            };
            return worker.arm(held, interest);
        }
        Event::TimedOut(mut held) => {
            let next = if held.has_taken() {
                Next::Send
            } else if held.give_up(shared) {
                Next::Drop
            } else if held.wire.input.bytes().is_empty() {
                Next::Close
            } else {
                shared.begin(held.wire.input.bytes(), Instant::now());
                held.refuse(StatusCode::REQUEST_TIMEOUT, false, shared)
            };
            (held, next)
        }
        // It is closed.
        _ => return,
    };
    match next {
        Next::Rest | Next::Request | Next::Send => {
            if held.wire.input.bytes().is_empty() {
                let input = mem::replace(&mut held.wire.input, input(limits));
                SPARE.set(Some(input));
            }
            let interest = match next {
                // It may have been told to end while it was sent an answer.
                Next::Request if shared.handle.is_draining() && !held.has_buffered() => {
                    Interest::IN.until(Instant::now())
                }
                Next::Request => Interest::IN.within(limits.idle),
                _ => held.interest(limits),
            };
            worker.arm(held, interest);
        }
        Next::Close => {
            #[cfg(feature = "tls")]
            held.wire.close();
            worker.linger(held, CLOSING);
        }
        Next::Drop => drop(held),
        Next::Upgrade(call) => {
            let wire = held.into_inner().wire;
            if blocking(&wire.stream, limits.stall).is_err() {
                return shared.end();
            }
            call(Upgraded {
                stream: wire.stream,
                read_ahead: wire.input.bytes().to_vec(),
                #[cfg(feature = "tls")]
                tls: wire.tls,
            });
        }
    }
    shared.end();
}
