//! Async tasks on a completion port, in which blocking is allowed.
//!
//! A [`Runtime`] runs tasks on the threads of a [`CompletionPort`](socknotify::CompletionPort). While polls are quick, no more
//! of them run at once than there are processors. A task whose poll blocks in a system call, on a disk, a lock or a database, keeps
//! nobody waiting: another thread goes on, on Linux as a rule within a millisecond. All other tasks go on, also those that it
//! has woken. So there is no `spawn_blocking` to remember, and nothing to audit for calls that block.
//!
//! # A server
//!
//! ```
//! use std::time::Duration;
//! use futures_lite::{AsyncReadExt, AsyncWriteExt};
//! use socknotify_async::{Runtime, TcpListener, TcpStream, spawn, timeout};
//!
//! async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
//!     let mut buffer = [0; 1024];
//!     loop {
//!         let length = timeout(Duration::from_secs(60), stream.read(&mut buffer)).await??;
//!         if length == 0 {
//!             return Ok(());
//!         }
//!         // This may wait for a disk. No other connection does.
//!         let page = std::fs::read("README.md")?;
//!         let answer = stream.write_all(&page[..length.min(page.len())]);
//!         timeout(Duration::from_secs(60), answer).await??;
//!     }
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let runtime = Runtime::new()?;
//!     let listener = runtime.block_on(async { TcpListener::bind("127.0.0.1:0") })?;
//!     let address = listener.local_addr()?;
//!     let server = runtime.spawn(async move {
//!         loop {
//!             match listener.accept().await {
//!                 Ok((stream, _)) => drop(spawn(serve(stream))),
//!                 // Out of descriptors, say.
//!                 Err(_) => socknotify_async::sleep(Duration::from_millis(50)).await,
//!             }
//!         }
//!     });
//!
//!     runtime.block_on(async {
//!         let mut client = TcpStream::connect(address).await?;
//!         client.write_all(b"nine byte").await?;
//!         let mut answer = [0; 9];
//!         client.read_exact(&mut answer).await?;
//!         assert_eq!(&answer, b"# socknot");
//!         std::io::Result::Ok(())
//!     })?;
//!     server.abort();
//!     // Connections have a while to end.
//!     assert!(runtime.shutdown(Duration::from_secs(5)));
//!     Ok(())
//! }
//! ```
//!
//! # What blocks
//!
//! Anything may: reading a file, a mutex, a client of a database that knows nothing of async, [`Runtime::block_on`], and
//! another executor.
//! What costs a thread, and a moment until it is seen, is one task that blocks, not its neighbours. [`unblock`] says it before, and
//! another thread goes on at once. No more tasks block at once than there are
//! [threads](Builder::threads); then the others wait. What is said by [`unblock`], and names that are resolved, leave one of the
//! threads to others.
//!
//! A task that computes for long keeps its thread. If tasks compute on as many threads as may run, another one goes on beside them
//! after some milliseconds. Those that wait behind it in its list go to another
//! thread after some milliseconds.
//!
//! On OpenBSD and DragonFly the system does not show that a thread blocks: there it counts as one that computes, unless
//! you say it, with [`unblock`].
//!
//! A guard of a [`std::sync::Mutex`] that is held over an `.await` is as wrong here as elsewhere: a task that waits for the
//! lock keeps a thread until the other task runs again.
//!
//! # Fairness
//!
//! - A poll has a budget of 128 operations on sockets and timers. One that has used it up is woken, and the next task runs;
//!   so a [`timeout`] ends what never has to wait, and what is polled behind that, in the same task, goes on, too: no operation
//!   is put off twice. To wait is none.
//! - A thread asks the kernel after 64 tasks, or half a millisecond, whatever comes first. So reports and timers come between
//!   tasks that are always ready.
//! - One in four tasks may come from another list than the thread's: one in 8 from what other threads than the runtime's have
//!   woken, one in 16 from the longest list, and one in 16 from each in turn. So nothing waits for ever.
//! - A task that wakes itself goes to the end of its list.
//!
//! # Sockets
//!
//! [`TcpStream`], [`TcpListener`], [`UdpSocket`], their like for Unix, and [`Async`] for any other socket or descriptor. Each
//! is registered once, for edges; a connection that was accepted when an operation on it would block, so a short one may cost
//! nothing but its own calls. Whether a socket is ready is kept beside it, so an operation costs its own system call and no
//! other. A future that is dropped before it is ready has done nothing, and can be made again.
//!
//! TCP's urgent data are not waited for, and what a peer sends after them may be read only when more comes.
//!
//! # Other crates
//!
//! Streams have the traits of `futures-io`; with the feature `hyper` those of `hyper::rt`, and with `tokio` tokio's `AsyncRead`
//! and `AsyncWrite`. The feature `serve` has an HTTP server for axum and other services of tower. tokio's runtime is no part of it. `socknotify-async-examples` has a whole service to copy: axum, a
//! database that is called directly, websockets, events, and a graceful end.
//!
//! | for | runs as it is |
//! |---|---|
//! | HTTP/1 and HTTP/2 | an axum `Router`, by `hyper_rt::serve` (feature `serve`); hyper; hyper-util's auto server and pooled client; async-h1; isahc |
//! | TLS, websockets | futures-rustls and tokio-rustls; async-tungstenite and tokio-tungstenite |
//! | channels, locks, `select!`, `join!` | those of futures, and `tokio::sync`, `tokio::select!`, `tokio::join!` |
//! | groups of tasks, cancellation | [`JoinSet`], [`AbortHandle`]; `TaskTracker` and `CancellationToken` of tokio-util |
//! | tasks that are not `Send` | `LocalSet` and `spawn_local` of tokio, in [`Runtime::block_on`]: they run on that thread |
//! | signals | signal-hook: [`Async::readable`] on a pair of sockets, one of which it writes to |
//! | a graceful end | that of `hyper_rt::serve`, or hyper-util's `GracefulShutdown`; then [`Runtime::shutdown`] |
//! | databases, files, processes | anything that blocks; sqlx's SQLite with its feature `runtime-async-std` |
//! | QUIC | quinn with its feature `runtime-smol` |
//! | sockets, timers, files and processes of smol | async-io, async-net, async-fs, async-process: their own threads wait for them |
//!
//! | asks for tokio's context | so |
//! |---|---|
//! | `tokio::spawn`, `tokio::time`, `tokio::net`, `axum::serve`, axum's `WebSocketUpgrade` and `Sse::keep_alive`; reqwest, tower-http's timeout, rumqttc | [`Builder::inside`], for all tasks, or async-compat around one future |
//!
//! What then uses tokio's sockets and timers costs a switch to its thread for each wake. A task of `tokio::spawn` runs there,
//! where it may not block: have it await one that was spawned here, as `hyper_rt::here` does for the callbacks of websockets.
//! `axum::serve` and tonic spawn there; for their services there is `hyper_rt::serve`. A debug build says it on standard error,
//! once, when a thread of tokio's that has its default name uses a socket of this crate.
#![cfg_attr(not(any(feature = "hyper", feature = "tokio")), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod context;
mod file;
#[cfg(feature = "hyper")]
pub mod hyper_rt;
#[cfg(all(test, interleavings))]
mod interleavings;
mod io;
mod jobs;
mod join_set;
mod net;
mod queue;
mod runtime;
mod shared;
mod slow;
mod source;
#[cfg(any(feature = "hyper", feature = "tokio"))]
mod streams;
mod sync;
mod task;
mod timers;
#[cfg(feature = "tokio")]
mod tokio;
mod wheel;

pub use context::Entered;
pub use file::File;
pub use io::Async;
pub use join_set::JoinSet;
pub use net::{ReadHalf, TcpListener, TcpStream, ToAddresses, UdpSocket, WriteHalf};
#[cfg(unix)]
pub use net::{UnixDatagram, UnixListener, UnixStream};
pub use runtime::{Builder, Handle, Runtime, spawn, unblock};
pub use slow::SlowTask;
pub use task::{AbortHandle, JoinError, JoinHandle};
pub use timers::{Elapsed, Interval, Sleep, Timeout, interval, sleep, sleep_until, timeout};

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
