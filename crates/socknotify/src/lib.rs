//! For servers of plain threads, in which a handler may block: a completion port for sockets. Many threads share one queue,
//! and each ready connection goes to exactly one of them. It says which sockets are ready; you read and write yourself.
//!
//! # Start here: a port that owns its connections
//!
//! [`owned::Port`] owns the connections. Arming a connection moves it into the port. An event moves it out, to exactly
//! one thread, which then has it alone, without a lock, and closes it by dropping it. While handlers are quick, no more
//! threads run than there are processors; if one blocks, another runs in its place.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use socknotify::owned::{Event, Interest, Limited, Port, Serving};
//!
//! # fn main() -> std::io::Result<()> {
//! let port = Port::new()?;
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! # let address = listener.local_addr()?;
//! port.listen(listener, Interest::IN, |client, _| client)?;
//!
//! # std::thread::scope(|scope| {
//! # scope.spawn(|| {
//! #     let mut peer = TcpStream::connect(address).unwrap();
//! #     peer.write_all(b"ping").unwrap();
//! #     peer.read_exact(&mut [0; 4]).unwrap();
//! #     port.close();
//! # });
//! // Until the port is closed, on as many threads as are needed.
//! port.serve(Serving::default(), |worker, event| {
//!     if let Event::Ready(client, _) = event {
//!         // Its reads and writes may block, for 30 seconds at most.
//!         let mut stream = Limited::within(&*client, Duration::from_secs(30));
//!         let mut buffer = [0; 512];
//!         if let Ok(length @ 1..) = stream.read(&mut buffer) {
//!             if stream.write_all(&buffer[..length]).is_ok() {
//!                 worker.arm(client, Interest::IN);
//!             }
//!         }
//!     } // What is not armed again is closed here.
//! })?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! The [`guide`] leads from here to a server with deadlines, backpressure, timers, outgoing connections and a
//! graceful shutdown.
//!
//! # The layer beneath: the Windows interface
//!
//! With `ProcessSocketNotifications`, Windows registers a batch of sockets with an I/O completion port and dequeues
//! notifications of ready sockets in one call. [`CompletionPort`] has the same contract on systems without that
//! function: Linux, over `epoll`; macOS and the BSDs, over `kqueue`; older Windows and Wine, over polls of the socket
//! driver (AFD). If Windows has the function, a port is the kernel's own.
//!
//! - Registrations are one-shot or persistent, level- or edge-triggered ([`Trigger`]).
//! - Many threads share one port. No more of them run than its concurrency value says, but for those that block or compute for
//!   long ([permits](CompletionPort#permits)), and waiting threads are woken last in, first out.
//! - Packets of your own go through the same queue ([`CompletionPort::post`]).
//! - The last notification of a registration is REMOVE. After it, you may free what the completion key
//!   refers to ([`Events::REMOVE`]).
//! - The port keeps no I/O buffer per socket.
//!
//! Use it to build a runtime, to port a program written for Windows, or if you need completion keys.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use socknotify::{CompletionPort, Entry, EventFilter, Registration, Trigger};
//!
//! # fn main() -> std::io::Result<()> {
//! const ONE_AT_A_TIME: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
//! const STOP: usize = usize::MAX;
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut client = TcpStream::connect(listener.local_addr()?)?;
//! let (connection, _) = listener.accept()?;
//!
//! let port = CompletionPort::new()?;
//! port.register(Registration::enable(&connection, 0, EventFilter::IN, ONE_AT_A_TIME))?;
//!
//! std::thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| -> std::io::Result<()> {
//!             loop {
//!                 let entry: Entry = port.dequeue_one(None)?;
//!                 if entry.completion_key == STOP {
//!                     return port.post(entry).map_err(Into::into); // for the other thread
//!                 }
//!                 // No other thread is notified of the connection until it is enabled again.
//!                 let mut buffer = [0; 512];
//!                 let length = (&connection).read(&mut buffer)?;
//!                 (&connection).write_all(&buffer[..length])?;
//!                 port.register(Registration::enable(&connection, 0, EventFilter::IN, ONE_AT_A_TIME))?;
//!             }
//!         });
//!     }
//!     client.write_all(b"ping")?;
//!     let mut answer = [0; 4];
//!     client.read_exact(&mut answer)?;
//!     assert_eq!(&answer, b"ping");
//!     port.post(Entry::new(STOP, 0, 0))?;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # The names of the Windows interface
//!
//! | Winsock | here |
//! |---|---|
//! | `CreateIoCompletionPort`, `CloseHandle` | [`CompletionPort::new`], [`CompletionPort::close`] |
//! | `ProcessSocketNotifications` | [`CompletionPort::process`] |
//! | `GetQueuedCompletionStatus`, `…Ex` | [`CompletionPort::dequeue_one`], [`CompletionPort::dequeue`] |
//! | `PostQueuedCompletionStatus` | [`CompletionPort::post`] |
//! | `SOCK_NOTIFY_REGISTRATION` | [`Registration`] |
//! | `OVERLAPPED_ENTRY` | [`Entry`] |
//! | `SocketNotificationRetrieveEvents` | [`Entry::events`] |
#![deny(unsafe_code)]

#[cfg(not(any(
    target_os = "linux",
    windows,
    target_vendor = "apple",
    target_os = "freebsd",
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly"
)))]
compile_error!("socknotify supports Linux, Windows, macOS and its relatives, and the BSDs");

// Threads and time that a seed drives: see `crates/socknotify-simulation`.
#[cfg(simulated)]
extern crate simulated_std as std;

mod backend;
mod engine;
mod files;
#[doc(hidden)]
pub mod interface;
mod os;
pub mod owned;
#[doc = include_str!("../GUIDE.md")]
pub mod guide {}
mod port;
mod support;
mod values;

pub use backend::{Backend, UnknownBackend};
#[cfg(unix)]
pub use files::Overlapped;
pub use os::default_concurrency;
pub use port::{Builder, CompletionPort};
pub use values::entry::{Entry, Events, Origin};
pub use values::error::{Error, RegisterError, RegistrationError};
pub use values::registration::{EventFilter, Operation, Registration, Trigger};
pub use values::snapshot::{SlowThread, Snapshot, WakePolicy};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
