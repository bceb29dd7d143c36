//! Echo and discard: streams of bytes, and datagrams that go back to where they have come from.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socknotify::CompletionPort;
use socknotify::owned::{
    BorrowedSocket, Event, Interest, Limited, Listening, Port, Serving, SharedTrigger, Source,
    Worker,
};
use socknotify_http::Listener as Streaming;

use super::Figures;
use super::listen::Listener;

/// The most that is received at once: it has room for the largest datagram.
const RECEIVE: usize = 64 * 1024;

/// How many datagrams a thread answers before it serves others again.
const BATCH: usize = 64;

/// How long a client that is not served any more may take for what it was sent.
const LINGER: Duration = Duration::from_secs(2);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the port owns.
#[derive(Debug)]
enum Peer {
    Client(TcpStream),
    /// A socket for the datagrams of all clients.
    Datagrams(UdpSocket),
}

impl Source for Peer {
    fn socket(&self) -> BorrowedSocket<'_> {
        match self {
            Peer::Client(stream) => stream.socket(),
            Peer::Datagrams(socket) => socket.socket(),
        }
    }
}

/// A server of these.
pub(crate) struct Streams {
    port: Arc<Port<Peer>>,
    is_tcp: bool,
    is_echo: bool,
    idle: Duration,
    requests: AtomicU64,
}

impl Streams {
    pub(crate) fn new(
        port: CompletionPort,
        listener: Listener,
        is_echo: bool,
        idle: Duration,
    ) -> io::Result<Self> {
        let port = Arc::new(Port::from(port));
        let listening = Listening::arming(Interest::IN.within(idle));
        let is_tcp = matches!(listener, Listener::Streams(Streaming::Tcp(_)));
        match listener {
            Listener::Streams(Streaming::Tcp(listener)) => {
                port.listen(listener, listening, |stream, _| {
                    // What is sent should not wait for an acknowledgement. It is sent in any case.
                    let _ = stream.set_nodelay(true);
                    Peer::Client(stream)
                })?;
            }
            // One kind of stream socket does here what the other does.
            #[cfg(unix)]
            Listener::Streams(Streaming::Unix(listener)) => {
                port.listen(listener, listening, |stream, _| {
                    Peer::Client(std::os::fd::OwnedFd::from(stream).into())
                })?;
            }
            Listener::Datagrams(socket) => {
                let socket = Arc::new(Peer::Datagrams(socket));
                port.share(socket, Interest::IN, SharedTrigger::Level)?;
            }
        }
        Ok(Streams {
            port,
            is_tcp,
            is_echo,
            idle,
            requests: AtomicU64::new(0),
        })
    }

    pub(crate) fn serve(self: Arc<Self>, serving: Serving) -> io::Result<()> {
        let port = Arc::clone(&self.port);
        let serving = port.serve_detached(serving, move |worker, event| {
            BUFFER.with_borrow_mut(|buffer| {
                buffer.resize(RECEIVE, 0);
                self.handle(worker, event, buffer);
            });
        });
        match serving {
            // It was told to end before it began.
            Err(_) if port.is_draining() => Ok(()),
            served => Ok(served.map(drop)?),
        }
    }

    pub(crate) fn drain(&self, within: Duration) {
        self.port.drain(within);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.port.is_draining()
    }

    pub(crate) fn figures(&self) -> Figures {
        let threads = self.port.serving();
        Figures {
            connections: self.port.connections(),
            threads: threads.threads,
            waiting_threads: threads.waiting,
            requests: self.requests.load(Ordering::Relaxed),
            ..Figures::default()
        }
    }

    fn handle(&self, worker: &mut Worker<Peer>, event: Event<Peer>, buffer: &mut [u8]) {
        match event {
            Event::Ready(mut held, _) => {
                let (Peer::Client(stream), readiness) = held.split() else {
                    return;
                };
                let read = match self.is_tcp {
                    true => readiness.io(&*stream).read(buffer),
                    // A short read of a Unix socket does not mean that it is empty.
                    false => (&*stream).read(buffer),
                };
                let done = read.and_then(|count| {
                    self.requests
                        .fetch_add(u64::from(count > 0), Ordering::Relaxed);
                    if self.is_echo {
                        // A client may take it slowly, if only it takes something.
                        Limited::within(&*stream, Duration::MAX)
                            .stall(self.idle)
                            .write_all(&buffer[..count])?;
                    }
                    Ok(count > 0)
                });
                match done {
                    Ok(true) if self.port.is_draining() => worker.arm(held, at_once()),
                    Ok(true) => worker.arm(held, Interest::IN.within(self.idle)),
                    // What is not armed again is closed.
                    Ok(false) => {}
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::Interrupted
                        ) =>
                    {
                        worker.arm(held, Interest::IN.within(self.idle));
                    }
                    Err(_) => {}
                }
            }
            // What it has sent is still answered. If that is nothing, its time is over at once.
            Event::Draining(held) => worker.arm(held, at_once()),
            Event::TimedOut(held) => worker.linger(held, LINGER),
            Event::Shared(peer, _) => {
                let Peer::Datagrams(socket) = &*peer else {
                    return;
                };
                for _ in 0..BATCH {
                    match socket.recv_from(buffer) {
                        Ok((length, address)) => {
                            self.requests.fetch_add(1, Ordering::Relaxed);
                            // There is no room for it, or no way: datagrams may get lost.
                            let _ = socket.send_to(&buffer[..length], address);
                        }
                        // Of an answer that did not arrive, on Windows.
                        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                        Err(_) => return,
                    }
                }
            }
            _ => {}
        }
    }
}

fn at_once() -> Interest {
    Interest::IN.until(Instant::now())
}
