//! [`Server`], [`Handle`] and [`Metrics`].

use std::cell::OnceCell;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
#[cfg(unix)]
use std::os::{fd::OwnedFd, unix::net::UnixListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::SockRef;
use socknotify::CompletionPort;
use socknotify::owned::{Interest, Listening, Port, Serving, SlowHandler};

use crate::connection::{self, Connection};
use crate::log::Log;
use crate::response::Sending;
use crate::wire::{Wire, input};
use crate::{Limits, Request, Response, date, signals};

/// An HTTP/1.1 server.
///
/// [`serve`](Self::serve) runs it: on as many threads as there are processors, and on more while handlers block. See the
/// [crate](crate) for an example.
#[derive(Debug)]
#[must_use = "it serves nobody before `serve`"]
pub struct Server {
    listener: Listener,
    /// Signals end the server as long as there is this one.
    handle: Arc<Handle>,
    limits: Limits,
    serving: Serving,
    log: io::Result<Option<(Log, Receiver<()>)>>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ServerConfig>>,
}

/// How long the end waits for the log.
const LOGGED: Duration = Duration::from_secs(1);

/// Where clients come to a [`Server`].
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// At the path of a Unix socket, as behind a proxy on the same machine. Its clients have no address.
    #[cfg(unix)]
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener::Unix(listener)
    }
}

/// What a server counts, and what it does.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Answers, by the first digit of their status.
    answers: [AtomicU64; 6],
    incomplete: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    /// Lines that the log has left out, and bytes that it has to write.
    pub(crate) left_out: AtomicU64,
    pub(crate) waiting: AtomicUsize,
    running: Mutex<Vec<Arc<Mutex<Running>>>>,
}

/// What a thread answers.
#[derive(Debug, Default)]
pub(crate) struct Running {
    /// When it began, and since when it is this thread's.
    begun: Option<Instant>,
    pub(crate) since: Option<Instant>,
    /// The first line of the request.
    line: Vec<u8>,
}

thread_local! {
    static RUNNING: OnceCell<Arc<Mutex<Running>>> = const { OnceCell::new() };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Handler = dyn Fn(&mut Request<'_>) -> Response + Send + Sync;

/// What the threads of a server share.
pub(crate) struct Shared {
    pub(crate) handler: Box<Handler>,
    pub(crate) limits: Limits,
    pub(crate) handle: Handle,
    log: Option<Log>,
}

impl Server {
    /// Listens at an address; with port 0 the system chooses one. Up to 4,096 connections wait to be accepted, or as many as the system
    /// allows.
    ///
    /// # Errors
    ///
    /// The system's, if none of the addresses can be bound to, or if it has no descriptors for a port.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // The standard library's is short. Where it cannot be changed, it stays.
        let _ = SockRef::from(&listener).listen(4096);
        Self::from_listener(listener)
    }

    /// Serves a listener that there is already: one that was inherited, that has options of its own, or a Unix socket.
    ///
    /// # Errors
    ///
    /// The system's, if it has no descriptors for a port.
    pub fn from_listener(listener: impl Into<Listener>) -> io::Result<Self> {
        Ok(Self::on_port(CompletionPort::new()?, listener))
    }

    /// The same, on a port with options of its own: a concurrency value, or a backend.
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::CompletionPort;
    /// use socknotify_http::Server;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let server = Server::on_port(CompletionPort::builder().concurrency(1).build()?, listener);
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_port(port: CompletionPort, listener: impl Into<Listener>) -> Self {
        Server {
            listener: listener.into(),
            handle: Arc::new(Handle {
                port: Arc::new(Port::from(port)),
                counts: Arc::default(),
            }),
            limits: Limits::default(),
            serving: Serving::default().name("http"),
            log: Ok(None),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The address that it listens at.
    ///
    /// # Errors
    ///
    /// The system's; [`Unsupported`](ErrorKind::Unsupported) for a Unix socket, which has a path.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr(),
            #[cfg(unix)]
            Listener::Unix(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// What clients may take.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How it serves: the most threads, their names, and what is called when handlers are slow or all threads work. See
    /// [`Serving`].
    pub fn serving(mut self, serving: Serving) -> Self {
        self.serving = serving;
        self
    }

    /// Speaks TLS. The protocol is HTTP/1.1, whatever the configuration has for ALPN.
    ///
    /// A client that is slow with its handshake holds no thread; it has the time of [`Limits::head_time`] for it and its first request, also
    /// when the server ends: one that has begun may send its request yet.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use socknotify_http::rustls::ServerConfig;
    /// use socknotify_http::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    /// use socknotify_http::{Response, Server};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let chain = CertificateDer::pem_file_iter("chain.pem")?.collect::<Result<_, _>>()?;
    /// let key = PrivateKeyDer::from_pem_file("key.pem")?;
    /// let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    /// let server = Server::bind("0.0.0.0:443")?.tls(Arc::new(config));
    /// server.serve(|_| Response::new("hello\n".into()))?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    #[doc(alias = "https")]
    pub fn tls(mut self, config: Arc<rustls::ServerConfig>) -> Self {
        let mut config = Arc::unwrap_or_clone(config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.tls = Some(Arc::new(config));
        self
    }

    /// Writes a line for each answer, in the common log format: the client, the time, the first line of the request, the status, and the
    /// length of the body, as far as it was sent. Behind these is the time that it took, in milliseconds, and `incomplete` if the answer
    /// broke off. In the line of the request, quotation marks and what is not printable are escaped as in Rust.
    ///
    /// The length does not count what is around chunks; what is around a chunk that broke off may be taken off, though it was not sent.
    ///
    /// A thread of its own writes, so that no request waits for the log. While a MiB waits for it, lines are left out, and counted in
    /// [`Metrics::log_left_out`]. At the end [`serve`](Self::serve) waits up to a second for it, and for the writer to be dropped.
    pub fn log(mut self, writer: impl Write + Send + 'static) -> Self {
        self.log = Log::start(writer, Arc::clone(&self.handle.counts)).map(Some);
        self
    }

    /// To end it, and to see how it does, from other threads and from handlers.
    pub fn handle(&self) -> Handle {
        Handle::clone(&self.handle)
    }

    /// Ends it within this time when the process is told to end: see [`Handle::drain`]. By SIGTERM or SIGINT; on Windows by Ctrl-C and
    /// the like.
    ///
    /// When all servers that do so have ended, these do what they do by default: they end the process. One thread waits for signals,
    /// for all servers, and stays.
    ///
    /// # Errors
    ///
    /// The system's, if it can start no thread; on Windows, if the process has a handler already.
    #[doc(alias = "SIGTERM")]
    #[doc(alias = "graceful_shutdown")]
    pub fn end_on_signals(&self, within: Duration) -> io::Result<()> {
        signals::add(&self.handle, within)
    }

    /// Serves until it is [ended](Handle::drain): `handler` answers each request, on one of the server's threads.
    ///
    /// It may block: others are served meanwhile. A panic in it is answered with 500, and ends that connection. It owns what it uses
    /// (`move`, and an [`Arc`] of what others use, too), since one that does not return is left behind.
    ///
    /// If it was told to end before, it returns at once.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](ErrorKind::TimedOut) if handlers were left behind that had not returned in the time of
    /// [`drain`](Handle::drain); it says which threads they block, and in which system calls. The system's, if it can start no thread, or not
    /// watch the listener.
    pub fn serve<F>(self, handler: F) -> io::Result<()>
    where
        F: Fn(&mut Request<'_>) -> Response + Send + Sync + 'static,
    {
        let (limits, port) = (self.limits, Arc::clone(&self.handle.port));
        let (log, written) = self.log?.unzip();
        let listening =
            Listening::arming(Interest::IN.within(limits.head_time)).at_most(limits.connections);
        let connection = move |stream, peer| {
            let wire = Wire {
                stream,
                input: input(&limits),
                has_more: false,
                #[cfg(feature = "tls")]
                tls: self.tls.as_ref().map(|config| {
                    let session = rustls::ServerConnection::new(Arc::clone(config));
                    Box::new(session.expect("an extension that was chosen fits in a message"))
                }),
            };
            Connection::new(wire, peer)
        };
        let listened = match self.listener {
            Listener::Tcp(listener) => port.listen(listener, listening, connection),
            // But for addresses and TCP's options, one kind of stream socket does what the other does.
            #[cfg(unix)]
            Listener::Unix(listener) => port.listen(listener, listening, move |stream, _| {
                connection(OwnedFd::from(stream).into(), ([0; 4], 0).into())
            }),
        };
        match listened {
            Err(_) if port.is_draining() => return Ok(()),
            listened => listened?,
        };
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            limits,
            handle: Handle::clone(&self.handle),
            log,
        });
        let serves = Arc::clone(&shared);
        let left = port.serve_detached(self.serving, move |worker, event| {
            connection::on_event(&serves, worker, event);
        });
        // Answers that wait are counted by that. Without threads, the listener is closed.
        drop(port.close());
        // Nobody else has the log, unless handlers were left behind: then all but theirs is written by the end of that time.
        drop(shared);
        let _ = written.map(|it| it.recv_timeout(LOGGED));
        let left = left?;
        if left.is_empty() {
            return Ok(());
        }
        let says = left.iter().map(|SlowHandler { thread, .. }| {
            let name = thread.name.as_deref().unwrap_or("a thread");
            let call = thread.system_call.unwrap_or("no call");
            format!("{name} in {call}")
        });
        let (count, says) = (left.len(), says.collect::<Vec<_>>().join(", "));
        let text = format!("{count} handlers were left behind: {says}");
        Err(io::Error::new(ErrorKind::TimedOut, text))
    }
}

impl Shared {
    fn on_running<R>(&self, call: impl FnOnce(&mut Running) -> R) -> R {
        RUNNING.with(|running| {
            let running = running.get_or_init(|| {
                let mut all = lock(&self.handle.counts.running);
                // Other threads have ended.
                all.retain(|it| Arc::strong_count(it) > 1);
                all.push(Arc::default());
                Arc::clone(&all[all.len() - 1])
            });
            call(&mut lock(running))
        })
    }

    /// This thread answers the request that begins with these bytes, from now on.
    pub(crate) fn begin(&self, bytes: &[u8]) {
        let bytes = bytes.trim_ascii_start();
        let length = memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
        let length = length.min(self.limits.head);
        self.on_running(|running| {
            running.begun = Some(Instant::now());
            running.since = running.begun;
            running.line.clear();
            running.line.extend_from_slice(&bytes[..length]);
        });
    }

    pub(crate) fn end(&self) {
        self.on_running(|running| running.since = None);
    }

    /// What this thread answers is this from now on, and this is what it was, and is nobody's.
    pub(crate) fn exchange(&self, other: &mut Running) {
        self.on_running(|running| mem::swap(running, other));
        other.since = None;
    }

    /// Count an answer, and log it.
    pub(crate) fn count(&self, sent: &Sending, is_whole: bool, peer: SocketAddr) {
        let (status, length) = (sent.status.as_u16(), sent.length());
        let counts = &self.handle.counts;
        let add = |count: &AtomicU64, more| (more > 0).then(|| count.fetch_add(more, Relaxed));
        add(&counts.answers[usize::from(status / 100).min(5)], 1);
        add(&counts.sent, length);
        add(&counts.failed, sent.has_failed.into());
        add(&counts.incomplete, (!is_whole).into());
        let Some(log) = &self.log else { return };
        let end = if is_whole { "" } else { " incomplete" };
        let (peer, now) = (peer.ip(), date::of_log());
        log.add(self.on_running(|running| {
            let took = running.begun.map_or(0.0, |it| it.elapsed().as_secs_f64());
            let (line, took) = (running.line.escape_ascii(), took * 1000.0);
            format!("{peer} - - [{now}] \"{line}\" {status} {length} {took:.3}{end}\n")
        }));
    }
}

/// A running [`Server`], for other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    port: Arc<Port<Connection>>,
    counts: Arc<Counts>,
}

impl Handle {
    /// Ends the server, within this time: it accepts what waits in its backlog, answers what has come, each time with
    /// `Connection: close`, and closes its connections. When that is done, or the time has passed, [`Server::serve`] returns.
    ///
    /// It returns at once. To call it again with a shorter time takes effect.
    #[doc(alias = "shutdown")]
    pub fn drain(&self, within: Duration) {
        self.port.drain(within);
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.port.is_draining()
    }

    /// The requests that threads have been with for this time at least, the longest first: for how long, and the method and the path,
    /// such as `GET /reports`. While an answer waits for its client, no thread is with it.
    ///
    /// For an admin's page, or for [`Serving::on_slow`], which calls when handlers take long.
    pub fn slow(&self, time: Duration) -> Vec<(Duration, String)> {
        let running = lock(&self.counts.running);
        let slow = running.iter().filter_map(|it| {
            let it = lock(it);
            let took = it.since?.elapsed();
            let end = memchr::memchr(b'?', &it.line).or(memchr::memrchr(b' ', &it.line));
            let request = it.line[..end.unwrap_or(it.line.len())].escape_ascii();
            (took >= time).then(|| (took, request.to_string()))
        });
        let mut slow: Vec<_> = slow.collect();
        slow.sort_unstable_by(|one, other| other.cmp(one));
        slow
    }

    /// How the server does.
    pub fn metrics(&self) -> Metrics {
        let count = |class: usize| self.counts.answers[class].load(Relaxed);
        let serving = self.port.serving();
        Metrics {
            informational: count(1),
            successful: count(2),
            redirections: count(3),
            client_errors: count(4),
            server_errors: count(5),
            incomplete: self.counts.incomplete.load(Relaxed),
            body_bytes: self.counts.sent.load(Relaxed),
            failed_bodies: self.counts.failed.load(Relaxed),
            log_left_out: self.counts.left_out.load(Relaxed),
            connections: self.port.connections(),
            threads: serving.threads,
            waiting_threads: serving.waiting,
        }
    }
}

/// How a server does: what it has done since it was made, and what it has now.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Answers with status 101.
    pub informational: u64,
    /// Answers with 2xx.
    pub successful: u64,
    /// Answers with 3xx.
    pub redirections: u64,
    /// Answers with 4xx, those of the server itself with them.
    pub client_errors: u64,
    /// Answers with 5xx, those of the server itself with them.
    pub server_errors: u64,
    /// Answers, counted above, that broke off: the client has gone, or takes nothing, or the body failed.
    pub incomplete: u64,
    /// Bytes of bodies that were sent, without what is around chunks.
    pub body_bytes: u64,
    /// Answers whose body could not be read to its end: a file became shorter, or a disk or a reader failed.
    pub failed_bodies: u64,
    /// Lines that the [log](Server::log) did not keep up with.
    pub log_left_out: u64,
    /// Connections.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// Threads that wait for a request. 0 while there are as many threads as there may be: then requests wait.
    pub waiting_threads: usize,
}
