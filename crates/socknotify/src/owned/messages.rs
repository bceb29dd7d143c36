//! [`Port::send`], [`Port::send_after`], [`Port::send_every`]: messages to whichever worker dequeues next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::port::{Panic, Port, Shared};
use super::slot::connections::drop_all;
use super::slot::packet::OfPort;
use super::time::{Action, Make, TimerId};
use super::{Event, Held, Id};
use crate::files::Reason;
use crate::support::lock::lock;
use crate::{Error, RegistrationError};

/// A time that never comes.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A message that could not be sent, because the port is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SendError<M>(pub M);

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the port is closed, and takes no message")
    }
}

/// Whatever could not be sent, also a closure: its value is left out.
impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").finish_non_exhaustive()
    }
}

impl<M> std::error::Error for SendError<M> {}

impl<M> From<SendError<M>> for io::Error {
    fn from(_: SendError<M>) -> Self {
        Error::Closed.into()
    }
}

/// What is in the list of messages.
pub(super) enum Message<T, M> {
    Sent(M),
    /// Of [work](Port::offload), which is done when this was handled.
    Result(Result<M, Panic>),
    /// A timer is due, whose function makes a message unless it is gone.
    Due(Weak<Make<M>>),
    /// The system refuses to watch a connection.
    Refused(Held<T>, RegistrationError),
    Accepted(Held<T>),
    NotAccepting(Id, io::Error),
    Accepting(Id),
    /// Of a listener.
    Panicked(Id, Panic),
}

impl<T, M> Message<T, M> {
    /// What a thread gets that takes it. This runs the function of a timer.
    pub(super) fn into_event(self) -> Option<Event<T, M>> {
        Some(match self {
            Message::Sent(message) => Event::Message(message),
            Message::Result(result) => of_result(result),
            Message::Due(make) => of_result(call(&make)?),
            Message::Refused(held, error) => Event::Refused(held, error),
            Message::Accepted(held) => Event::Accepted(held),
            Message::NotAccepting(id, error) => Event::NotAccepting(id, error),
            Message::Accepting(id) => Event::Accepting(id),
            Message::Panicked(id, panic) => Event::Panicked(Some(id), panic),
        })
    }
}

fn of_result<T, M>(result: Result<M, Panic>) -> Event<T, M> {
    match result {
        Ok(message) => Event::Message(message),
        Err(panic) => Event::Panicked(None, panic),
    }
}

/// Call the function of a timer, unless that was cancelled. Meanwhile none is due.
fn call<M>(due: &Weak<Make<M>>) -> Option<Result<M, Panic>> {
    let make = due.upgrade()?;
    let made = catch_unwind(AssertUnwindSafe(|| lock(&make)()));
    // It may have been cancelled meanwhile, and dropping it runs the caller's code.
    drop_all([make]);
    Some(made)
}

impl<T, M> Port<T, M> {
    /// Queues a message. One thread takes it, as [`Event::Message`](super::Event::Message), in the order of the queue.
    /// The queue has no limit.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed, or of another process.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream, &str>::with_messages()?;
    /// port.send("hello")?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// assert!(matches!(worker.take(), Some(Event::Message("hello"))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "post")]
    #[doc(alias = "PostQueuedCompletionStatus")]
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        if self.shared.connections.is_closed() {
            return Err(SendError(message));
        }
        match self.shared.send(Message::Sent(message)) {
            Err(Message::Sent(message)) => Err(SendError(message)),
            _ => Ok(()),
        }
    }

    /// Sends a message after this time, as [`send`](Self::send) does.
    ///
    /// It comes up to some milliseconds later, and never earlier. If the time is too long to be represented, it never
    /// comes. A timer takes no descriptor, and the cost to set and to cancel one does not depend on their number.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed, or has no room for one more timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream, &str>::with_messages()?;
    /// port.send_after(Duration::from_millis(5), "tick")?;
    /// let tock = port.send_after(Duration::from_secs(3600), "tock")?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// assert!(matches!(worker.take(), Some(Event::Message("tick"))));
    /// assert!(port.cancel_timer(tock));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "timerfd_settime")]
    pub fn send_after(&self, time: Duration, message: M) -> Result<TimerId, SendError<M>> {
        let shared = &self.shared;
        let at = Instant::now() + time.min(FAR);
        shared
            .clock
            .set_timer(at, Action::Send(message))
            .map_err(|action| match action {
                Action::Send(message) => SendError(message),
                _ => unreachable!("it is the one that was given"),
            })
    }

    /// Sends a clone of a message once per period, as [`send_every_with`](Self::send_every_with) does.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed, or has no room for one more timer.
    pub fn send_every(&self, period: Duration, message: M) -> Result<TimerId, SendError<M>>
    where
        M: Clone + Send + 'static,
    {
        let copy = message.clone();
        let timer = self.send_every_with(period, move || copy.clone());
        timer.map_err(|_| SendError(message))
    }

    /// Sends a message that this function makes once per period, first after one period. A message that would be late by
    /// a whole period is left out. The shortest period is a millisecond.
    ///
    /// The thread that [takes](super::Worker::take) the message calls the function, never two at once: a message that would be
    /// made meanwhile is left out. If it panics, that thread gets [`Event::Panicked`](super::Event::Panicked), and the timer goes on.
    ///
    /// # Errors
    ///
    /// Returns the function if the port is closed, or has no room for one more timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Held, Port};
    ///
    /// enum Message {
    ///     /// Cannot be cloned.
    ///     Connection(Held<TcpStream>),
    ///     Tick(u32),
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream, Message>::with_messages()?;
    /// let mut ticks = 0;
    /// let timer = port.send_every_with(Duration::from_millis(1), move || {
    ///     ticks += 1;
    ///     Message::Tick(ticks)
    /// })?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// assert!(matches!(worker.take(), Some(Event::Message(Message::Tick(1)))));
    /// port.cancel_timer(timer);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "interval")]
    pub fn send_every_with<F>(&self, period: Duration, make: F) -> Result<TimerId, SendError<F>>
    where
        F: FnMut() -> M + Send + 'static,
        M: 'static,
    {
        let period = period.clamp(Duration::from_millis(1), FAR);
        let begin = Instant::now();
        let make = Arc::new(Mutex::new(make));
        let action = Action::SendEvery(Arc::clone(&make) as _, period, begin + period);
        let timer = self.shared.clock.set_timer(begin + period, action);
        timer.map_err(|action| {
            drop(action);
            let make = Arc::into_inner(make).expect("there is no timer");
            SendError(make.into_inner().expect("it was not called"))
        })
    }

    /// Cancels a timer: it sends nothing any more.
    ///
    /// What it has sent may still be in the queue, and a function that is being [called](Self::send_every_with) sends once
    /// more. Returns false if it was cancelled before, or has sent its only message.
    pub fn cancel_timer(&self, timer: TimerId) -> bool {
        self.shared.clock.cancel_timer(timer)
    }
}

impl<T, M> Shared<T, M> {
    /// Queue a message. Returns it if the port is closed.
    pub(super) fn send(&self, message: Message<T, M>) -> Result<(), Message<T, M>> {
        let mut messages = lock(&self.messages);
        messages.push_back(message);
        // A thread that wakes for it finds the lock free.
        let mut messages = Some(messages);
        let packet = OfPort::Message.entry(&self.connections.slots);
        let system = self.connections.port.system();
        let _ = system.post(&[packet], || drop(messages.take()));
        let refused = messages.and_then(|mut messages| messages.pop_back());
        refused.map_or(Ok(()), Err)
    }

    /// The same. If the port is closed, it is dropped.
    #[cold]
    pub(super) fn notify(&self, message: Message<T, M>) {
        drop_all(self.send(message).err());
    }

    /// TIMER was dequeued.
    pub(super) fn ring(&self) {
        for action in self.clock.ring() {
            match action {
                Action::Send(message) => self.notify(Message::Sent(message)),
                Action::Call(make) => self.notify(Message::Due(make)),
                Action::SendEvery(..) => unreachable!("it calls"),
                Action::EndDrain => drop_all(self.connections.end(true)),
                Action::Expire(id) => _ = self.files.cancel(id, Reason::Deadline),
            }
        }
    }
}
