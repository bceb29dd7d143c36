//! A port that owns its connections: Rust's ownership says which thread may use which connection.
//!
//! A [`CompletionPort`](crate::CompletionPort) reports completion keys. The caller has to know what a key refers to,
//! which thread may use that, and when it may be freed. This port has the connections themselves:
//!
//! - [`Port::adopt`] registers a connection and returns it as a [`Held`]. A held connection is yours alone, as `&mut`,
//!   without a lock.
//! - [`Worker::arm`] moves it into the port. No thread can use it there.
//! - An event moves it out again, to exactly one thread: [`Event::Ready`].
//! - A held connection that is dropped is deregistered and closed.
//!
//! So the caller needs no unsafe code and no lock around a connection, and waits for no REMOVE notification.
//!
//! One call, [`Worker::process`], arms all connections that this thread has handed back and waits for the next
//! events. [`Port::serve`] makes it, on as many threads as are needed.
//!
//! The [guide](crate::guide) explains it all; in short:
//!
//! | to | use |
//! |---|---|
//! | accept and connect | [`Port::listen`], [`Port::connect`]; [`connect_to`], by name |
//! | run handlers, which may block | [`Port::serve`]; [`Worker::blocking`], [`Port::offload`] |
//! | wait, and for how long | [`Worker::arm`] with an [`Interest`]: [`within`](Interest::within), [`until`](Interest::until) |
//! | wake a connection from elsewhere | [`Port::cancel`] with its [`Id`] |
//! | send messages, now or later | [`Port::send`], [`Port::send_after`], [`Port::send_every`] |
//! | keep what was received or is to be sent | [`Buffered`], [`Input`], [`Output`]; [`Outbox`], for other threads |
//! | wait for a peer, with a limit for several calls | [`Limited`] |
//! | read and write files | [`Port::adopt_file`], [`Worker::begin`] |
//! | share a UDP socket | [`Port::share`] |
//! | end a connection, and lose no answer | [`Worker::linger`] |
//! | shut down | [`Port::drain`], [`Port::close`] |
//!
//! # An echo server
//!
//! ```
//! use std::io::{self, Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use socknotify::owned::{Event, Interest, Limited, Port, Worker};
//!
//! const IDLE: Duration = Duration::from_secs(60);
//!
//! /// Echo what has arrived. Zero at the end of the stream.
//! fn echo(connection: &TcpStream) -> io::Result<usize> {
//!     // Its reads and writes may wait, for a minute at most.
//!     let mut stream = Limited::within(connection, IDLE);
//!     let mut buffer = [0; 1024];
//!     let length = stream.read(&mut buffer)?;
//!     stream.write_all(&buffer[..length])?;
//!     Ok(length)
//! }
//!
//! // What `Port::serve` does, by hand.
//! fn serve(mut worker: Worker<TcpStream>) {
//!     // Until the port is closed.
//!     while worker.process(None).is_ok() {
//!         while let Some(event) = worker.take() {
//!             match event {
//!                 Event::Ready(connection, _) => {
//!                     // An error is this connection's alone.
//!                     if let Ok(1..) = echo(&connection) {
//!                         worker.arm(connection, Interest::IN.within(IDLE));
//!                     }
//!                     // Otherwise it is dropped here, which closes it.
//!                 }
//!                 // A connection that is not armed again is closed: here, an idle one.
//!                 _ => {}
//!             }
//!         }
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! let port = Port::<TcpStream>::new()?;
//! let threads: Vec<_> = (0..2)
//!     .map(|_| port.worker(64))
//!     .map(|worker| std::thread::spawn(move || serve(worker)))
//!     .collect();
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut client = TcpStream::connect(listener.local_addr()?)?;
//! let (connection, _) = listener.accept()?;
//! connection.set_nonblocking(true)?;
//! port.arm(port.adopt(connection)?, Interest::IN);
//!
//! client.write_all(b"ping")?;
//! let mut answer = [0; 4];
//! client.read_exact(&mut answer)?;
//! assert_eq!(&answer, b"ping");
//!
//! // The threads end. `close` returns what is left: the connection, unless a thread holds it.
//! assert!(port.close().len() <= 1);
//! for thread in threads {
//!     thread.join().expect("no panic");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What the types forbid
//!
//! To use a connection that is armed, or to arm it twice:
//!
//! ```compile_fail,E0382
//! # use socknotify::owned::{Held, Interest, Worker};
//! # fn f(mut worker: Worker<std::net::TcpStream>, connection: Held<std::net::TcpStream>) {
//! worker.arm(connection, Interest::IN);
//! connection.peer_addr();
//! # }
//! ```
//!
//! ```compile_fail,E0382
//! # use socknotify::owned::{Held, Interest, Worker};
//! # fn f(mut worker: Worker<std::net::TcpStream>, connection: Held<std::net::TcpStream>) {
//! worker.arm(connection, Interest::IN);
//! worker.arm(connection, Interest::OUT);
//! # }
//! ```
//!
//! To keep a reference into it while it is armed:
//!
//! ```compile_fail,E0505
//! # use socknotify::owned::{BorrowedSocket, Held, Interest, Source, Worker};
//! # struct Vec2 { socket: std::net::TcpStream, buffer: Vec<u8> }
//! # impl Source for Vec2 {
//! #     fn socket(&self) -> BorrowedSocket<'_> { self.socket.socket() }
//! # }
//! # fn g(mut worker: Worker<Vec2>, connection: Held<Vec2>) {
//! let buffer = &connection.buffer;
//! worker.arm(connection, Interest::IN);
//! println!("{}", buffer.len());
//! # }
//! ```

mod builder;
mod closed;
mod connect;
mod drain;
mod event;
mod files;
mod held;
mod interest;
mod linger;
mod listen;
mod messages;
mod offload;
mod port;
mod readiness;
mod refusal;
pub(crate) mod serve;
mod slot;
mod source;
mod time;
mod worker;

pub use crate::files::{Buffer, FileCompletion, FileDriver, FileOperation, OperationId, PortFile};
pub use builder::Builder;
pub use closed::Closed;
pub use connect::{Connect, connect_to};
pub use event::Event;
pub use held::Held;
pub use held::buffered::Buffered;
pub use held::buffers::{Input, Output, unacknowledged};
pub use held::limited::Limited;
pub use held::outbox::{Outbox, OutboxError, Sender};
pub use interest::Interest;
pub use listen::{Listen, Listening};
pub use messages::SendError;
pub use port::{Port, SharedTrigger};
pub use readiness::{Io, Readiness, Stream};
pub use refusal::{AdoptError, BeginError, Refusal};
pub use serve::{Serving, ServingThreads, SlowHandler};
pub use slot::connections::Id;
pub use source::{BorrowedSocket, OwnedSocket, Source};
pub use time::TimerId;
pub use worker::Worker;
