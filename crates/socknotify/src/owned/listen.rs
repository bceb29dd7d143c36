//! [`Port::listen`]: incoming connections.

use std::io;
use std::sync::Arc;

use super::slot::connections::{Place, Resident, Wish};
use super::slot::listener::Listener;
use super::slot::packet::Packet;
use super::slot::record::Reasons;
use super::{Id, Listen, Listening, Port, Source};
use crate::{Error, EventFilter, RegistrationError};

impl<T: Source, M> Port<T, M> {
    /// Accepts connections from a listener, for as long as the port is open.
    ///
    /// `make` makes a `T` of each connection. Then it is armed, or reported as
    /// [`Event::Accepted`](super::Event::Accepted), as `listening` says. The listener is set to non-blocking mode, and so are
    /// its connections.
    ///
    /// A thread accepts up to 16 connections in the listener's turn. While it runs `make`, others may accept.
    ///
    /// A connection that fails before it is accepted is skipped. When sixteen in a row cannot be accepted, as when the process or
    /// the system is out of descriptors or memory, the listener tries again every 50 ms, and connections wait in its backlog.
    /// [`Event::NotAccepting`](super::Event::NotAccepting) reports that once, and [`Event::Accepting`](super::Event::Accepting)
    /// that it is over.
    ///
    /// To close the listener, [cancel](Self::cancel) it. What waits in its backlog then is accepted before: up to
    /// 65,536 connections, whatever the [limit](Listening::at_most), for clients may connect as fast as
    /// that. So it is when the port [drains](Self::drain), but not when it is closed. Out of descriptors it tries
    /// again for a second; then the rest is reset, and [`Event::NotAccepting`](super::Event::NotAccepting) says so. `make` is called by a thread in
    /// [`process`](super::Worker::process). If it panics, that connection is closed, and the listener stays.
    ///
    /// # Errors
    ///
    /// If the listener cannot be watched, as in [`adopt`](Self::adopt), or the system cannot make a timer for its pauses;
    /// [`Error::Closed`], also if the port drains.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use socknotify::owned::{Event, Interest, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// port.listen(listener, Interest::OUT, |stream, _| stream)?;
    ///
    /// let client = TcpStream::connect(address)?;
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Ready(connection, _)) = worker.take() else { panic!() };
    /// assert_eq!(connection.peer_addr()?, client.local_addr()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "accept")]
    pub fn listen<L, F>(
        &self,
        listener: L,
        listening: impl Into<Listening>,
        make: F,
    ) -> io::Result<Id>
    where
        L: Listen,
        F: Fn(L::Stream, L::Address) -> T + Send + Sync + 'static,
    {
        listener.prepare()?;
        let connections = &self.shared.connections;
        connections.check()?;
        if connections.is_draining() {
            return Err(Error::Closed.into());
        }
        let listener = Arc::new(Listener::new(listener, listening.into(), make));
        let socket = listener.socket;
        let place = Place::new(socket, Some(Resident::Listener(listener)));
        let token = connections.slots.insert(place);
        let token = token.ok_or(RegistrationError::LimitReached)?;
        let key = connections.slots.key(token);
        connections.add_listener(token);
        let watch = || -> io::Result<()> {
            let system = connections.port.system();
            system.adopt(socket, key, false)??;
            // It pauses when there are no resources: its timer must not need any then.
            system.prepare_alarm(Packet::Timer.key(&connections.slots))?;
            let put = connections.put_listener(key, &Wish::of(EventFilter::IN));
            if let Some(registration) = put.and_then(|to_do| to_do.arm()) {
                connections.port.register(registration)?;
            }
            Ok(())
        };
        if let Err(error) = watch() {
            connections.close_listener(key);
            return Err(error);
        }
        if connections.is_draining() {
            // Closing may have missed it.
            connections.interrupt_named(token, Reasons::DRAINING);
        }
        Ok(Id(token))
    }
}
