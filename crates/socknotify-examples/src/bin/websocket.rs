//! Rooms whose members talk by websockets, and requests that talk to all in a room.
//!
//! - Routes by `matchit`; websockets by `tungstenite`, blocking, on the stream of an upgrade.
//! - A member has two threads: one reads, and one writes what any thread has for it. Nobody waits for one that is slow: when its queue
//!   is full, it is dropped.
//! - Limits of members, of their messages, and of how long they say nothing (clients may send pings).
//! - At SIGTERM and Ctrl-C members get a close frame, and two seconds.
//!
//! Run it: `cargo run -p socknotify-examples --features websocket --bin websocket 127.0.0.1:8080`, connect a client to
//! `ws://127.0.0.1:8080/rooms/first`, and try `curl -d hello http://127.0.0.1:8080/rooms/first`.
//!
//! ```toml
//! [dependencies]
//! matchit = "0.9"
//! socknotify-http = "0.1"
//! tungstenite = "0.30"
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, thread};

use matchit::Router;
use socknotify_http::http::{Method, StatusCode};
use socknotify_http::{Limits, Request, Response, ResponseBody, Server, Upgraded};
use tungstenite::handshake::server::create_response_with_body;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tungstenite::protocol::{Message, Role, WebSocket, WebSocketConfig};

const TEXT: OpCode = OpCode::Data(Data::Text);
const MEMBERS: usize = 1_000;
const MESSAGE: usize = 16 << 10;
/// So many frames wait for a member.
const QUEUE: usize = 256;
const SILENCE: Duration = Duration::from_secs(60);
const CLOSING: Duration = Duration::from_secs(2);

static ALL: Mutex<Vec<Member>> = Mutex::new(Vec::new());
static LEFT: Condvar = Condvar::new();

#[derive(Clone)]
struct Member {
    room: Arc<str>,
    queue: SyncSender<Arc<[u8]>>,
    stream: Arc<TcpStream>,
}

type Route = fn(&str, &mut Request<'_>) -> Response;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut routes = Router::<Route>::new();
    routes.insert("/", |_, _| {
        respond(StatusCode::OK, "/rooms/ROOM: a websocket, or POST\n")
    })?;
    routes.insert("/rooms/{room}", in_room)?;
    let server = Server::bind(env::args().nth(1).ok_or("websocket ADDRESS")?)?;
    println!("listening on {}", server.local_addr()?);
    server.end_on_signals(Duration::from_secs(10))?;
    let server = server.limits(Limits::default().body(MESSAGE as u64));
    let served = server.serve(move |request| {
        let path = request.uri().path().to_owned();
        match routes.at(&path) {
            Ok(route) => (route.value)(route.params.get("room").unwrap_or_default(), request),
            Err(_) => respond(StatusCode::NOT_FOUND, "no such path\n"),
        }
    });
    tell(None, Frame::close(None));
    let _ = LEFT.wait_timeout_while(all(), CLOSING, |all| !all.is_empty());
    Ok(served?)
}

fn in_room(room: &str, request: &mut Request<'_>) -> Response {
    match *request.method() {
        Method::GET if all().len() >= MEMBERS => {
            respond(StatusCode::SERVICE_UNAVAILABLE, "too many members\n")
        }
        Method::GET => {
            let room = Arc::from(room);
            let join = |it| join(room, it).unwrap_or_else(|error| eprintln!("{error}"));
            create_response_with_body(request, || ResponseBody::upgrade(join))
                .unwrap_or_else(|error| respond(StatusCode::BAD_REQUEST, format!("{error}\n")))
        }
        Method::POST => {
            let mut text = String::new();
            // If the client breaks off, or sends too much, the server answers that in place of this.
            if request.body_mut().read_to_string(&mut text).is_err() {
                return respond(StatusCode::BAD_REQUEST, "messages are text\n");
            }
            let count = tell(Some(room), Frame::message(text, TEXT, true));
            respond(StatusCode::OK, format!("members: {count}\n"))
        }
        _ => respond(StatusCode::METHOD_NOT_ALLOWED, "not so\n"),
    }
}

fn respond(status: StatusCode, body: impl Into<ResponseBody>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
}

fn all() -> MutexGuard<'static, Vec<Member>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queue a frame for the members of a room, or for all, and return how many there are. It waits for nobody.
fn tell(room: Option<&str>, frame: Frame) -> usize {
    let mut bytes = Vec::new();
    frame.format(&mut bytes).expect("memory takes everything");
    let (bytes, mut count) = (Arc::from(bytes), 0);
    all().retain(|member| {
        if room.is_some_and(|room| *room != *member.room) {
            return true;
        }
        let is_queued = member.queue.try_send(Arc::clone(&bytes)).is_ok();
        count += usize::from(is_queued);
        if !is_queued {
            // Its threads end by that.
            let _ = member.stream.shutdown(Shutdown::Both);
        }
        is_queued
    });
    count
}

/// Have two threads serve a member: the one that calls this is the server's.
fn join(room: Arc<str>, upgraded: Upgraded) -> io::Result<()> {
    let stream = Arc::new(upgraded.stream);
    stream.set_read_timeout(Some(SILENCE))?;
    let writes = Arc::clone(&stream);
    let (queue, frames) = sync_channel(QUEUE);
    thread::Builder::new().spawn(move || write(&writes, frames))?;
    let member = Member {
        room,
        queue,
        stream,
    };
    let mut config = WebSocketConfig::default().read_buffer_size(4 << 10);
    (config.max_message_size, config.max_frame_size) = (Some(MESSAGE), Some(MESSAGE));
    let (begin, role) = (upgraded.read_ahead, Role::Server);
    let mut socket = WebSocket::from_partially_read(member.clone(), begin, role, Some(config));
    // It cannot leave before it is among all, and who is welcomed is told all that follows.
    let mut all = all();
    let _ = socket.send("welcome".into());
    thread::Builder::new().spawn(move || read(socket))?;
    all.push(member);
    Ok(())
}

/// Write what is queued for a member. A close frame is the last.
fn write(mut stream: &TcpStream, frames: Receiver<Arc<[u8]>>) {
    for frame in frames {
        let is_last = frame[0] & 0xf == u8::from(OpCode::Control(Control::Close));
        if stream.write_all(&frame).is_err() || is_last {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Tell the room what a member says, until that closes, breaks a rule or a limit, or says nothing.
fn read(mut socket: WebSocket<Member>) {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => {
                tell(
                    Some(&socket.get_ref().room),
                    Frame::message(text, TEXT, true),
                );
            }
            Ok(_) => {}
            // A signal ends a call that has a timeout.
            Err(tungstenite::Error::Io(it)) if it.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // Unless it was closed.
    let _ = socket.close(None);
    let member = socket.into_inner();
    all().retain(|other| !Arc::ptr_eq(&other.stream, &member.stream));
    LEFT.notify_all();
}

impl Read for Member {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.stream).read(buffer)
    }
}

/// To read writes as well: pongs, and the answer to a close frame. They are whole frames, and go the way of all others, as two threads
/// would mix their bytes on the socket.
impl Write for Member {
    fn write(&mut self, frames: &[u8]) -> io::Result<usize> {
        match self.queue.try_send(frames.into()) {
            Ok(()) => Ok(frames.len()),
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
