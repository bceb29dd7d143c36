//! [`Port::drain`]: graceful shutdown.
//!
//! All connections are interrupted, and each that is adopted later. An operation or work counts as pending until the
//! worker that took its result calls `process` again, so what it begins in turn is counted before the port can close.

use std::time::{Duration, Instant};

use super::readiness::Phase;
use super::slot::record::Reasons;
use super::time::Action;
use super::{Held, Id, Port, Source};

impl<T, M> Port<T, M> {
    /// Shuts the port down gracefully, within this time.
    ///
    /// Listeners are closed, once what waits in their backlogs is [accepted](Self::listen). Each connection is reported once as [`Event::Draining`](super::Event::Draining): at once
    /// if it is armed, otherwise when it is armed next. Answer what it has received, and arm it again if something is left
    /// to do; otherwise let it [linger](super::Worker::linger), or drop it if its peer was sent nothing. When the last connection is closed and all work is done, or the time is over, the port closes, and
    /// [`process`](super::Worker::process) returns an error to all threads.
    ///
    /// Work is each [operation on a file](Self::begin) and each call of [`offload`](Self::offload). It is done when the worker
    /// that took its result calls `process` again, or is dropped: so what that begins in turn is waited for, too.
    ///
    /// `drain` returns at once, and threads must go on calling `process`. The main thread can join them and then call
    /// [`close`](Self::close), which returns the connections that did not finish in time, and waits for no operation on a
    /// file any longer. A connection that a thread holds when the time is over is shut down, so that what its thread waits for
    /// ends, and closed when it is armed or dropped.
    ///
    /// Draining again with a shorter time takes effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use socknotify::Error;
    /// use socknotify::owned::{Event, Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// port.listen(listener, Interest::IN, |stream, _| stream)?;
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let _client = TcpStream::connect(listener.local_addr()?)?;
    /// # port.arm(port.adopt(listener.accept()?.0)?, Interest::IN);
    ///
    /// port.drain(Duration::from_secs(10));
    /// let mut worker = port.worker(8);
    /// while worker.process(None).is_ok() {
    ///     while let Some(event) = worker.take() {
    ///         // It has nothing to finish, and was sent nothing: drop it, which closes it.
    ///         assert!(matches!(event, Event::Draining(_)));
    ///     }
    /// }
    /// assert_eq!(port.connections(), 0);
    /// assert!(port.close().is_empty(), "all were closed in time");
    /// assert!(TcpStream::connect(address).is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "shutdown")]
    #[doc(alias = "graceful_shutdown")]
    pub fn drain(&self, within: Duration) {
        if !self.shared.connections.is_here() {
            return;
        }
        if let Some(end) = Instant::now().checked_add(within) {
            self.shared.files.close_by(end);
            let _ = self.shared.clock.set_timer(end, Action::EndDrain);
            self.shared.connections.end.by(end);
        }
        self.shared.connections.drain();
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.shared.connections.is_draining()
    }

    /// The number of connections, armed or held. Listeners and shared sockets do not count.
    pub fn connections(&self) -> usize {
        self.shared.connections.count()
    }

    /// [Cancels](Self::cancel) all present connections, and returns how many these are.
    pub fn cancel_all(&self) -> usize {
        let connections = &self.shared.connections;
        connections.interrupt_all(Reasons::CANCELLED, |place| place.resident.is_none())
    }
}

impl<T: Source, M> Port<T, M> {
    /// Takes an armed connection out of the port. No event comes for it.
    ///
    /// Returns `None` if there is no such connection, if a thread holds it, or if a worker has dequeued its event.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use socknotify::owned::{Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let _theirs = TcpStream::connect(listener.local_addr()?)?;
    /// # let (ours, _) = listener.accept()?;
    /// let port = Port::<TcpStream>::new()?;
    /// let connection = port.adopt(ours)?;
    /// let id = connection.id();
    /// port.arm(connection, Interest::IN);
    /// let stream: TcpStream = port.disarm(id).expect("it waits").into_inner();
    /// # drop(stream);
    /// assert!(port.disarm(id).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn disarm(&self, id: Id) -> Option<Held<T>> {
        let connections = &self.shared.connections;
        connections.check().ok()?;
        let mut node = connections.take_out(id)?;
        if node.readiness.phase == Phase::Lingering {
            node.readiness.phase = Phase::Open;
        }
        Some(Held::from_node(node))
    }
}
