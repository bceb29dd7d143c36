//! [`serve`]: an HTTP server for a tower service, such as an axum `Router`.

use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use std::{fmt, future};

use hyper::body::{Body, Incoming};
use hyper::rt::{self, ReadBufCursor};
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use socknotify::owned::unacknowledged;
use tower_service::Service;

use super::{Executor, Timer};
use crate::sync::lock;
use crate::{JoinSet, Sleep, TcpListener, TcpStream, sleep, timeout};

/// After an error of the listener, such as one for want of descriptors, it tries again in this time.
const RETRY: Duration = Duration::from_millis(50);

/// For ever: hyper adds it to the present time, and that panics with what is too long.
const FAR: Duration = Duration::from_secs(1 << 32);

/// Serves HTTP/1 and HTTP/2 with a tower service, such as an axum `Router`, on the connections of a listener.
///
/// Nothing happens until [`Serve::until`] is awaited. Its handlers may block. An axum `Router` is a service as it is; websockets and
/// server-sent events of axum need tokio's context besides ([`Builder::inside`](crate::Builder::inside)).
///
/// # Examples
///
/// ```ignore
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use socknotify_async::{Runtime, TcpListener, hyper_rt::serve};
///
/// let runtime = Runtime::new()?;
/// let left = runtime.block_on(async {
///     let router = Router::new().route("/", get(async || "hello"));
///     let listener = TcpListener::bind("127.0.0.1:8080")?;
///     let ended = async { /* a signal has come */ };
///     std::io::Result::Ok(serve(listener, router).until(ended, Duration::from_secs(10)).await)
/// })?;
/// ```
pub fn serve<S>(listener: TcpListener, service: S) -> Serve<S> {
    Serve {
        listener,
        service,
        connections: 10_000,
        head_time: Duration::from_secs(30),
        stall: Duration::from_secs(30),
    }
}

/// A server that is about to serve: see [`serve`].
#[must_use = "it serves in `until`"]
pub struct Serve<S> {
    listener: TcpListener,
    service: S,
    connections: usize,
    head_time: Duration,
    stall: Duration,
}

/// The address of the peer, in the extensions of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

impl<S> Serve<S> {
    /// The most connections at once, those that were upgraded, to a websocket say, among them: 10,000 by default. Others wait in the
    /// listener's backlog.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// How long the head of an HTTP/1 request may take, from when it may begin, and the first request of any connection: 30 seconds by
    /// default. Then the connection is closed, also one that is idle.
    pub fn head_time(mut self, time: Duration) -> Self {
        self.head_time = time.min(FAR);
        self
    }

    /// How long a client may take nothing of what it is sent, also on a connection that was upgraded: 30 seconds by default. Then to
    /// send fails with [`TimedOut`](io::ErrorKind::TimedOut), and the connection is reset when it is dropped. One that takes a little is
    /// not given up, where the system tells: see [`Limited`](socknotify::owned::Limited).
    ///
    /// How long the body of a request may take is for the service to limit. A connection of HTTP/2 may be idle for ever, or leave
    /// answers waiting, which it gives no window.
    pub fn stall(mut self, time: Duration) -> Self {
        self.stall = time.min(FAR);
        self
    }

    /// Serves until `end` is ready, and then for `grace` at most. Returns how many connections were cut off.
    ///
    /// At the end the listener is closed, with what waits in its backlog, and so are connections that are idle; requests that have begun
    /// are answered. What was upgraded is not waited for. [`future::pending`] never ends; a server whose future is dropped
    /// cuts all connections off at once, but for those that were upgraded.
    ///
    /// # Panics
    ///
    /// If it is awaited in no task of a [`Runtime`](crate::Runtime), nor in its `block_on`.
    pub async fn until<B>(self, end: impl Future<Output = ()>, grace: Duration) -> usize
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let open = Arc::new(Open::default());
        let graceful = GracefulShutdown::new();
        let mut tasks = JoinSet::new();
        let mut end = pin!(end);
        loop {
            let next = future::poll_fn(|cx| {
                while let Poll::Ready(Some(_)) = tasks.poll_join_next(cx) {}
                if end.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                ready!(open.poll_room(self.connections, cx));
                self.listener.poll_accept(cx).map(Some)
            });
            let (stream, address) = match next.await {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => {
                    // A client that has gone again, as the BSDs tell, keeps no other waiting.
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        sleep(RETRY).await;
                    }
                    continue;
                }
                None => break,
            };
            let _ = stream.set_nodelay(true);
            let stream = Counted {
                stream,
                stall: self.stall,
                waits: None,
                gives_up: sleep(FAR),
                _is_open: open.add(),
            };
            let service = TowerToHyperService::new(self.service.clone());
            let begun = Arc::new(AtomicBool::new(false));
            let begins = Arc::clone(&begun);
            let service = service_fn(move |mut request: Request<Incoming>| {
                begins.store(true, Ordering::Relaxed);
                request.extensions_mut().insert(Peer(address));
                service.call(request)
            });
            let (watcher, head_time) = (graceful.watcher(), self.head_time);
            tasks.spawn(async move {
                let mut server = auto::Builder::new(Executor);
                server.http1().timer(Timer).header_read_timeout(head_time);
                server.http2().timer(Timer);
                let connection = server.serve_connection_with_upgrades(stream, service);
                let mut connection = pin!(watcher.watch(connection));
                // For the bytes that say which version it is, hyper-util waits for ever.
                let first = future::poll_fn(|cx| match connection.as_mut().poll(cx) {
                    Poll::Pending if !begun.load(Ordering::Relaxed) => Poll::Pending,
                    polled => Poll::Ready(polled.is_pending()),
                });
                if let Ok(true) = timeout(head_time, first).await {
                    // How it ended is between the peer and hyper.
                    let _ = connection.await;
                }
            });
        }
        drop(self.listener);
        let all_end = async {
            graceful.shutdown().await;
            while tasks.join_next().await.is_some() {}
        };
        let _ = timeout(grace, all_end).await;
        // Those that have ended meanwhile are not cut off.
        future::poll_fn(|cx| {
            while let Poll::Ready(Some(_)) = tasks.poll_join_next(cx) {}
            Poll::Ready(tasks.len())
        })
        .await
    }
}

impl<S> fmt::Debug for Serve<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("listener", &self.listener)
            .field("connections", &self.connections)
            .field("head_time", &self.head_time)
            .field("stall", &self.stall)
            .finish_non_exhaustive()
    }
}

/// How many connections are open, and who waits for one to end.
#[derive(Default)]
struct Open(Mutex<(usize, Option<Waker>)>);

impl Open {
    fn poll_room(&self, most: usize, cx: &mut Context<'_>) -> Poll<()> {
        let (open, waiting) = &mut *lock(&self.0);
        if *open < most {
            return Poll::Ready(());
        }
        *waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    fn add(self: &Arc<Self>) -> IsOpen {
        lock(&self.0).0 += 1;
        IsOpen(Arc::clone(self))
    }
}

/// One connection, in the count.
struct IsOpen(Arc<Open>);

impl Drop for IsOpen {
    fn drop(&mut self) {
        let mut counts = lock(&self.0.0);
        counts.0 -= 1;
        let waiting = counts.1.take();
        drop(counts);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

/// A connection that counts for as long as it is open, also once it was upgraded. To send fails when its peer has
/// [stalled](Serve::stall).
struct Counted {
    stream: TcpStream,
    stall: Duration,
    /// While there is no room to send: how much its peer had not taken when [`gives_up`](Self::gives_up) was set, 0 if the system does
    /// not tell.
    waits: Option<u64>,
    /// Of the runtime that serves, whoever sends.
    gives_up: Sleep,
    _is_open: IsOpen,
}

impl Counted {
    /// What has come of sending, unless there was no room for too long.
    fn limit<R>(&mut self, cx: &Context<'_>, sent: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if sent.is_ready() {
            self.waits = None;
            return sent;
        }
        loop {
            if self.waits.is_some() {
                ready!(self.gives_up.try_poll(cx))?;
            }
            // Some of it may have been taken, if less than the system calls room.
            let now = unacknowledged(&self.stream).unwrap_or(0);
            if self.waits.is_some_and(|before| now >= before) {
                // Else the system keeps for minutes what the peer does not take.
                let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.waits = Some(now);
            self.gives_up.reset(Instant::now() + self.stall);
        }
    }
}

impl rt::Read for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        rt::Read::poll_read(Pin::new(&mut self.stream), cx, buffer)
    }
}

impl rt::Write for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = rt::Write::poll_write(Pin::new(&mut self.stream), cx, bytes);
        self.limit(cx, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = rt::Write::poll_write_vectored(Pin::new(&mut self.stream), cx, buffers);
        self.limit(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        rt::Write::is_write_vectored(&self.stream)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        rt::Write::poll_flush(Pin::new(&mut self.stream), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        rt::Write::poll_shutdown(Pin::new(&mut self.stream), cx)
    }
}
