//! [`Event`]: what a worker takes from a port.

use std::any::Any;
use std::io;
use std::sync::Arc;

use super::{FileCompletion, Held, Id};
use crate::{Events, RegistrationError};

/// What a port reports to one thread.
///
/// Later versions may add events. A match arm `_ => {}` drops what they carry, which closes the connection.
#[derive(Debug)]
#[must_use = "a connection that is not armed again is closed"]
#[non_exhaustive]
pub enum Event<T, M = ()> {
    /// The connection is ready: what it waited for holds. Rarely, a receive finds nothing even so: the report was
    /// taken from the system before another thread handled the connection.
    Ready(Held<T>, Events),
    /// The connection's deadline has passed.
    TimedOut(Held<T>),
    /// The connection was [cancelled](super::Port::cancel).
    Cancelled(Held<T>),
    /// The port [drains](super::Port::drain). Answer what the connection has received. Then arm it again if it has something
    /// to finish, or let it [linger](super::Worker::linger).
    Draining(Held<T>),
    /// A [listener](super::Port::listen) has accepted the connection, and has not armed it.
    Accepted(Held<T>),
    /// A [listener](super::Port::listen) cannot accept, for this reason. It tries again every 50 ms, until
    /// [`Accepting`](Self::Accepting). One that the system refuses to watch is closed, and so is one that was to be closed in any
    /// case: what waits in its backlog is reset.
    NotAccepting(Id, io::Error),
    /// The listener accepts again.
    Accepting(Id),
    /// The connection has [connected](super::Port::connect).
    Connected(Held<T>),
    /// The connection could not [connect](super::Port::connect), for this reason.
    Unconnected(Held<T>, io::Error),
    /// The system refuses to watch the connection: for lack of memory, because of a limit, or because its socket is
    /// not the one that was adopted. [Arming](super::Worker::arm) fails for no other reason.
    Refused(Held<T>, RegistrationError),
    /// A [shared](super::Port::share) socket is ready. Other threads may be notified of it as well.
    Shared(Arc<T>, Events),
    /// The last event of a socket that is [not shared any more](super::Port::unshare).
    Returned(Arc<T>),
    /// A [message](super::Port::send).
    Message(M),
    /// An [operation](super::Port::begin) on a file has completed.
    Completed(FileCompletion),
    /// Code that you gave to the port has panicked, with this payload: work of [`Port::offload`](super::Port::offload), the
    /// function of a [listener](super::Port::listen) or a [timer](super::Port::send_every_with), or the clone of a message of
    /// [`Port::send_every`](super::Port::send_every); or the handler of [`Port::serve`](super::Port::serve). The thread that
    /// takes this event goes on.
    ///
    /// With the [`id`](Self::id) of the event that the handler had, or of the listener, if there is one.
    ///
    /// [`std::panic::resume_unwind`] resumes the panic here.
    Panicked(Option<Id>, Box<dyn Any + Send>),
}

impl<T, M> Event<T, M> {
    /// The connection or listener that this is about. `None` for shared sockets, messages and files.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use socknotify::owned::{Event, Port};
    ///
    /// let port = Port::<std::net::TcpStream, &str>::with_messages()?;
    /// port.send("hello").expect("it is open");
    /// let mut worker = port.worker(1);
    /// worker.process(None)?;
    /// let event = worker.take().expect("there is one");
    /// assert_eq!(event.id(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(&self) -> Option<Id> {
        match self {
            Event::Ready(held, _)
            | Event::TimedOut(held)
            | Event::Cancelled(held)
            | Event::Draining(held)
            | Event::Accepted(held)
            | Event::Connected(held)
            | Event::Unconnected(held, _)
            | Event::Refused(held, _) => Some(held.id()),
            Event::NotAccepting(id, _) | Event::Accepting(id) => Some(*id),
            Event::Panicked(id, _) => *id,
            Event::Shared(..) | Event::Returned(_) | Event::Message(_) | Event::Completed(_) => {
                None
            }
        }
    }
}
