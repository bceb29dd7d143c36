//! [`Connection`]: one client, and what becomes of its events.

use std::cell::Cell;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};
use socket2::SockRef;
use socknotify::owned::{
    BorrowedSocket, Event, Input, Interest, Readiness, Source, Worker, unacknowledged,
};

use crate::body::{Chunks, EARLY, RequestBody};
use crate::head::{self, Head};
use crate::response::{self, Answer, Kind, Sending, Stop, Upgraded, caught};
use crate::wire::{Wire, after, input};
use crate::{Response, server::Shared};

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
    /// Since when a head comes; or a body, if its head is there.
    begun: Option<Instant>,
    /// How long a head is that is there, and the chunks of its body.
    head: usize,
    chunks: Chunks,
    /// When the last answer was made, if its body was in memory.
    answered: Option<Instant>,
    /// An answer that the client has not taken yet: nothing is received before it has.
    waiting: Option<Box<Sending>>,
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
    /// A request, or the rest of one; or room for the rest of an answer.
    Event,
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
            begun: None,
            head: 0,
            chunks: Chunks::default(),
            answered: None,
            waiting: None,
        }
    }

    fn has_enough(&self) -> bool {
        let length = self.wire.input.bytes().len();
        length > 0 && length >= self.needed
    }

    /// What to wait for.
    fn interest(&mut self, shared: &Shared) -> Interest {
        let limits = &shared.limits;
        let now = self.answered.take().unwrap_or_else(Instant::now);
        if let Some(waiting) = &mut self.waiting {
            waiting.untaken = unacknowledged(&self.wire.stream);
            return Interest::OUT.until(waiting.end.min(after(now, limits.stall)));
        }
        // What has come is answered, also at the end; if there is nothing, or an empty line alone, its time is over at once.
        let is_over = shared.handle.is_draining() && !self.has_buffered();
        let has_nothing = self.wire.is_plain() && self.wire.input.bytes().is_empty();
        if self.needed == 0 || (is_over && has_nothing) {
            let time = if is_over { Duration::ZERO } else { limits.idle };
            return Interest::IN.until(after(now, time));
        }
        let begun = *self.begun.get_or_insert(now);
        // The client has no room for what a handshake says, and is read when it has.
        let wanted = match self.wire.has_unsent() {
            true => Interest::OUT,
            false => Interest::IN,
        };
        wanted.until(match self.head {
            0 => after(begun, limits.head_time),
            head => {
                let received = self.wire.input.bytes().len() - head;
                let end = limits.body_end(begun, received as u64);
                end.min(after(now, limits.stall))
            }
        })
    }

    /// Receive, if that is what to do, and answer the request that is there.
    fn serve(&mut self, readiness: &mut Readiness, shared: &Arc<Shared>) -> Next {
        if let Some(mut sending) = self.waiting.take() {
            sending.counted = None;
            sending.running.since = Some(Instant::now());
            shared.exchange(&mut sending.running);
            return self.go_on(*sending, shared);
        }
        if !self.has_enough() {
            if self.wire.input.bytes().is_empty() {
                self.wire.input = SPARE.take().unwrap_or_else(|| input(&shared.limits));
            }
            let received = match self.peer.port() {
                // A short read of a Unix socket may end behind bytes that came with descriptors.
                0 => self.wire.receive(|stream| stream),
                // One of TCP empties the socket: then it is armed again without a system call.
                _ => self.wire.receive(|stream| readiness.io(stream)),
            };
            match received {
                Ok(true) => {}
                // A session of TLS is ended by both sides.
                Ok(false) if !self.wire.is_plain() => return Next::Close,
                Ok(false) | Err(_) => return Next::Drop,
            }
        }
        // Some clients send an empty line behind a body.
        while self.head == 0 && self.wire.input.bytes().starts_with(b"\r\n") {
            self.wire.input.take(2);
        }
        let bytes = self.wire.input.bytes();
        let mut request = http::Request::new(());
        match head::parse(bytes, &shared.limits, &mut request) {
            Ok(None) => {
                self.needed = bytes.len() + 1;
                // The port does not say so while there is more to receive.
                let is_late = |begun: Instant| begun.elapsed() >= shared.limits.head_time;
                match self.begun {
                    Some(begun) if is_late(begun) => self.time_out(shared),
                    _ => Next::Event,
                }
            }
            Ok(Some((head, length))) => {
                let body = &bytes[length..];
                let early = shared.limits.body.min(EARLY as u64);
                let needed = match head.length {
                    _ if head.expects_continue && body.is_empty() => length,
                    Some(body) if body <= early => length + body as usize,
                    None if !self.chunks.is_whole(body, &shared.limits) => bytes.len() + 1,
                    _ => length,
                };
                if needed > bytes.len() {
                    self.needed = needed;
                    if self.head == 0 {
                        (self.head, self.begun) = (length, Some(Instant::now()));
                    }
                    return Next::Event;
                }
                shared.begin(bytes);
                self.wire.input.take(length);
                (self.needed, self.begun, self.head, self.chunks) = (0, None, 0, Chunks::default());
                self.answer(request, head, shared)
            }
            Err(status) => self.refuse_early(status, shared),
        }
    }

    /// Say what is wrong, for the last time.
    fn refuse(&mut self, status: StatusCode, is_head: bool, shared: &Arc<Shared>) -> Next {
        let answer = Answer {
            version: Version::HTTP_11,
            is_head,
            persists: false,
        };
        self.send(response::error(status), answer, shared)
    }

    /// The same, of what was received and not taken: the request has no parts.
    fn refuse_early(&mut self, status: StatusCode, shared: &Arc<Shared>) -> Next {
        let bytes = self.wire.input.bytes();
        shared.begin(bytes);
        self.refuse(status, bytes.starts_with(b"HEAD "), shared)
    }

    fn answer(&mut self, request: http::Request<()>, head: Head, shared: &Arc<Shared>) -> Next {
        // The handler may change them.
        let (is_head, version) = (request.method() == Method::HEAD, request.version());
        if head.length.is_some_and(|it| it > shared.limits.body) {
            return self.refuse(StatusCode::PAYLOAD_TOO_LARGE, is_head, shared);
        }
        let body = RequestBody::new(&mut self.wire, self.peer, &shared.limits, &head);
        let mut request = request.map(|()| body);
        let handled = caught(|| (shared.handler)(&mut request));
        head::reuse(request.headers_mut());
        // What a handler has put there may panic as it is dropped.
        caught(|| request.extensions_mut().clear());
        let body = request.body_mut();
        let failure = body.failure();
        let is_whole = handled.is_some() && failure.is_none() && body.skip();
        let response = match failure {
            // There is nobody to answer.
            Some(None) => return Next::Drop,
            Some(Some(status)) => response::error(status),
            None => handled.unwrap_or_else(|| response::error(StatusCode::INTERNAL_SERVER_ERROR)),
        };
        let status = response.status();
        // What is left of the request's body would be taken for the other protocol. HTTP/1.0 has no such answers.
        let may_switch = is_whole && version == Version::HTTP_11;
        let is_valid = match response.body().0 {
            Kind::Upgrade(_) => may_switch && status == StatusCode::SWITCHING_PROTOCOLS,
            _ => !status.is_informational(),
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
        };
        self.send(response, answer, shared)
    }

    fn send(&mut self, response: Response, answer: Answer, shared: &Arc<Shared>) -> Next {
        let now = Instant::now();
        self.answered = matches!(response.body().0, Kind::Bytes(..)).then_some(now);
        let end = after(now, shared.limits.answer_time);
        self.go_on(Sending::new(response, answer, now, end), shared)
    }

    /// Send what the client has room for. At the end, count and log it.
    fn go_on(&mut self, mut sending: Sending, shared: &Arc<Shared>) -> Next {
        let sent = sending.go_on(&mut self.wire);
        if let Err(Stop::Full) = sent {
            sending.counted = Some((Arc::clone(shared), self.peer));
            shared.exchange(&mut sending.running);
            // To send as much as there is room for takes time.
            self.answered = None;
            self.waiting = Some(Box::new(sending));
            return Next::Event;
        }
        shared.count(&sending, sent.is_ok(), self.peer);
        match (sent, mem::replace(&mut sending.body, ().into()).0) {
            (Ok(()), Kind::Upgrade(call)) => Next::Upgrade(call),
            (Ok(()), _) if sending.answer.persists => Next::Event,
            (Ok(()) | Err(Stop::Body), _) => Next::Close,
            (Err(_), _) => Next::Drop,
        }
    }

    /// The time of what it waits for has passed.
    fn time_out(&mut self, shared: &Arc<Shared>) -> Next {
        let Some(waiting) = &self.waiting else {
            if self.wire.input.bytes().is_empty() {
                return Next::Close;
            }
            return self.refuse_early(StatusCode::REQUEST_TIMEOUT, shared);
        };
        let untaken = unacknowledged(&self.wire.stream);
        // The client has taken something of its answer since it was armed. Where the system does not tell, it has not.
        let has_taken = untaken.is_some() && untaken < waiting.untaken;
        if has_taken && Instant::now() < waiting.end {
            return Next::Event;
        }
        // Else the system keeps for minutes what the client does not take.
        let _ = SockRef::from(&self.wire.stream).set_linger(Some(Duration::ZERO));
        Next::Drop
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
pub(crate) fn on_event(
    shared: &Arc<Shared>,
    worker: &mut Worker<Connection>,
    event: Event<Connection>,
) {
    let (mut held, next) = match event {
        Event::Ready(mut held, _) => {
            let (connection, readiness) = held.split();
            let next = connection.serve(readiness, shared);
            (held, next)
        }
        Event::Draining(held) => (held, Next::Event),
        Event::TimedOut(mut held) => {
            let next = held.time_out(shared);
            (held, next)
        }
        // It is closed, also by a panic: what this thread has begun is over.
        _ => return shared.end(),
    };
    match next {
        Next::Event => {
            if held.wire.input.bytes().is_empty() {
                let input = mem::replace(&mut held.wire.input, input(&shared.limits));
                SPARE.set(Some(input));
            }
            let interest = held.interest(shared);
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
            if blocking(&wire.stream, shared.limits.stall).is_ok() {
                call(Upgraded {
                    stream: wire.stream,
                    read_ahead: wire.input.bytes().to_vec(),
                    #[cfg(feature = "tls")]
                    tls: wire.tls,
                });
            }
        }
    }
    shared.end();
}
