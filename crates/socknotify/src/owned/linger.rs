//! [`Worker::linger`]: close a connection once its peer has received all that was sent.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::time::Duration;

use socket2::SockRef;

use crate::owned::port::Shared;
use crate::owned::readiness::Phase;
use crate::owned::slot::connections::NEVER;
use crate::owned::slot::record::Reasons;
use crate::owned::{Held, Interest, Source, Worker};

/// How much is discarded at once, and how often before others are served.
const DISCARDED: usize = 16 * 1024;
const BATCH: usize = 16;

impl<T: Source, M> Worker<T, M> {
    /// Ends a connection: tells its peer that nothing more comes, discards what it still sends, and closes the connection
    /// when the peer has closed its side, or after this time. Two seconds are a good choice.
    ///
    /// Use it wherever the peer was sent something, in place of dropping the connection. A system that closes a socket
    /// with unread data in it aborts the connection, and the peer may lose what was sent before. Not for a peer that takes nothing:
    /// what it was sent stays with the system, for minutes. Reset that one: set `SO_LINGER` to zero, and drop it.
    ///
    /// Send everything first, for TLS also its `close_notify`. No event comes for the connection any more. It still counts as
    /// one, and a port that [drains](crate::owned::Port::drain) waits for it. A [`cancel`](crate::owned::Port::cancel) that comes too late to wake it
    /// changes nothing; [`disarm`](crate::owned::Port::disarm) takes it back. It is in non-blocking mode from here on.
    ///
    /// # Panics
    ///
    /// As [`arm`](Self::arm).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// port.listen(listener, Interest::IN, |stream, _| stream)?;
    /// # let mut client = TcpStream::connect(address)?;
    /// # client.write_all(b"one and more than is read")?;
    /// let mut worker = port.worker(64);
    /// worker.process(None)?;
    /// if let Some(Event::Ready(mut connection, _)) = worker.take() {
    ///     connection.read_exact(&mut [0; 3])?;
    ///     connection.write_all(b"answer")?;
    ///     worker.linger(connection, Duration::from_secs(2));
    /// }
    /// # worker.process(Some(Duration::ZERO))?;
    /// # let mut answer = String::new();
    /// # client.read_to_string(&mut answer)?;
    /// # assert_eq!(answer, "answer");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "SO_LINGER")]
    #[doc(alias = "shutdown")]
    #[doc(alias = "lingering_close")]
    #[track_caller]
    pub fn linger(&mut self, mut connection: Held<T>, within: Duration) {
        let socket = connection.socket();
        let socket = SockRef::from(&socket);
        let ended = socket
            .shutdown(Shutdown::Write)
            .and_then(|()| socket.set_nonblocking(true));
        if ended.is_err() {
            // The peer has gone, or it is no stream.
            return;
        }
        connection.split().1.phase = Phase::Lingering;
        self.arm(connection, Interest::IN.within(within));
    }
}

/// A connection that lingers has had an event, or was interrupted for this reason.
#[cold]
pub(super) fn on_event<T: Source, M>(
    shared: &Shared<T, M>,
    held: Held<T>,
    reason: Option<Reasons>,
) {
    let place = shared.connections.slots.get(held.id().0);
    let deadline = place.map_or(NEVER, |place| place.deadline);
    let is_late = deadline <= shared.clock.now();
    // A peer that never stops sending is ready each time.
    if !is_late && (reason.is_some() || !discard(&SockRef::from(&held.socket()))) {
        let until = shared.clock.time(deadline);
        shared.arm(
            held,
            until.map_or(Interest::IN, |it| Interest::IN.until(it)),
        );
    }
}

/// Whether the peer has closed its side, or the connection is broken.
fn discard(socket: &SockRef<'_>) -> bool {
    let mut buffer = [MaybeUninit::uninit(); DISCARDED];
    for _ in 0..BATCH {
        match socket.recv(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                kind => return kind != io::ErrorKind::WouldBlock,
            },
        }
    }
    false
}
