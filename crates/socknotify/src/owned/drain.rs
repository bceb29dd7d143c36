//! Shutting down in good order.

use std::time::{Duration, Instant};

use super::home::Node;
use super::packet::CANCELLED;
use super::{Held, Id, Port, Source};

impl<T, M> Port<T, M> {
    /// Have the port end in good order, within this time.
    ///
    /// Listeners are closed. Each connection is reported as [`Event::Draining`](super::Event::Draining), once:
    /// at once if it is armed, otherwise when it is armed the next time. Those that are dropped then are closed;
    /// those that have something to finish are armed again, as ever. When the last one has gone, or when the
    /// time is over, the port closes, and its threads end.
    ///
    /// So the main thread calls `drain`, joins the others, and [`close`](Self::close) hands it what was cut off:
    /// the connections that were armed when the time was over. What a thread holds then is closed when it is
    /// armed or dropped.
    ///
    /// This does not wait. Threads have to go on calling [`process`](super::Worker::process). To drain again
    /// with a shorter time cuts it short.
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
    ///         // Nothing is left to finish: what is dropped is closed.
    ///         assert!(matches!(event, Event::Draining(_)));
    ///     }
    /// }
    /// assert_eq!(port.connections(), 0);
    /// assert!(port.close().is_empty(), "nothing was cut off");
    /// assert!(TcpStream::connect(address).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self, within: Duration) {
        if let Some(end) = Instant::now().checked_add(within) {
            self.shared.end_at(end);
        }
        self.shared.home.drain();
    }

    /// Whether the port [drains](Self::drain), or has done so.
    pub fn is_draining(&self) -> bool {
        self.shared.home.is_draining()
    }

    /// How many connections there are, armed or held. Listeners and shared sockets do not count.
    pub fn connections(&self) -> usize {
        self.shared.home.connections()
    }

    /// [Cancel](Self::cancel) every connection that there is at this moment. Says how many.
    pub fn cancel_all(&self) -> usize {
        let home = &self.shared.home;
        home.interrupt_all(CANCELLED, |place| place.fixture.is_none())
    }
}

impl<T: Source, M> Port<T, M> {
    /// Take a connection out that is armed and has nothing to report. No event of it comes.
    ///
    /// `None` if there is no connection by this name, or a thread has it, or is about to: because it is ready, or
    /// its worker has not called [`process`](super::Worker::process) since it was handed back.
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
    /// let stream: TcpStream = port.take(id).expect("it waits").into_inner();
    /// # drop(stream);
    /// assert!(port.take(id).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&self, id: Id) -> Option<Held<T>> {
        let home = &self.shared.home;
        let mut place = home.slots.get(id.0)?;
        let key = place.armed.as_deref().map(Node::key)?;
        // The slot is locked: nobody arms it again meanwhile.
        if !home.halt(key, &place) {
            return None;
        }
        place.take().map(Held::from_node)
    }
}
