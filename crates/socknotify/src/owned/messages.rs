//! [`Port::send`], [`Port::send_after`], [`Port::send_every`]: messages to whichever worker dequeues next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::port::{Message, Notice, Port, Shared};
use super::slot::connections::drop_all;
use super::slot::packet::Packet;
use super::time::timers::{Action, Make, TimerId};
use crate::files::Reason;
use crate::support::lock::lock;
use crate::{Entry, Error};

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

impl<T, M> Port<T, M> {
    /// Queues a message. One thread takes it, as [`Event::Message`](super::Event::Message), in the order of the queue.
    /// The queue has no limit.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed.
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
        let mut messages = lock(&self.shared.messages);
        messages.push_back(Message::Sent(message));
        // A thread that wakes for it finds the lock free.
        let mut messages = Some(messages);
        let packet = self.shared.message_packet();
        let system = self.shared.connections.port.system();
        let outcome = system.post(&[packet], || drop(messages.take()));
        match (outcome, messages.as_mut().and_then(|it| it.pop_back())) {
            (Err(_), Some(Message::Sent(message))) => Err(SendError(message)),
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
    /// One of the threads that call [`process`](super::Worker::process) calls the function, never two at once. If it
    /// panics, one thread takes [`Event::Panicked`](super::Event::Panicked), and the timer goes on.
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
        let timer = self.shared.set_timer(begin + period, action);
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
        self.shared.cancel_timer(timer)
    }
}

impl<T, M> Shared<T, M> {
    /// Send messages, in order. If the port is closed, they are dropped.
    pub(super) fn send_all(&self, messages: Vec<Message<M>>) {
        if messages.is_empty() {
            return;
        }
        let packets = vec![self.message_packet(); messages.len()];
        let mut list = lock(&self.messages);
        let before = list.len();
        list.extend(messages);
        let mut list = Some(list);
        // A thread that wakes for them finds the lock free.
        let system = self.connections.port.system();
        if system.post(&packets, || drop(list.take())).is_err() {
            // Those before them are the closing thread's.
            let dropped = list.as_mut().map(|list| list.split_off(before));
            drop(list);
            drop_all(dropped.into_iter().flatten());
        }
    }

    pub(super) fn message_packet(&self) -> Entry {
        Packet::Message.entry(&self.connections.slots)
    }

    pub(super) fn set_timer(&self, time: Instant, action: Action<M>) -> Result<TimerId, Action<M>> {
        self.timers
            .set(&self.connections, &self.deadlines, time, action)
    }

    pub(super) fn cancel_timer(&self, timer: TimerId) -> bool {
        !self.connections.is_closed() && self.timers.cancel(&self.deadlines, timer)
    }

    /// TIMER was dequeued. Returns whether the time of draining is over.
    pub(super) fn ring(&self) -> bool {
        let due = self.deadlines.expire(&self.connections);
        let mut messages = Vec::new();
        let mut functions = Vec::new();
        let mut is_drain_over = false;
        for action in self.timers.ring(&self.connections, &self.deadlines, due) {
            match action {
                Action::Send(message) => messages.push(Message::Sent(message)),
                Action::SendEvery(make, ..) => functions.push(make),
                Action::EndDrain => is_drain_over = true,
                Action::Expire(id) => {
                    self.files.cancel(id, Reason::Deadline);
                }
            }
        }
        self.send_all(messages);
        // A thread for each, since each may block.
        let more = functions.len().saturating_sub(1);
        let mut list = lock(&self.due);
        // Closing drops those that are there, and may be over.
        if !self.connections.is_closed() {
            list.extend(functions.iter().map(Arc::downgrade));
        }
        drop(list);
        drop_all(functions);
        for _ in 0..more {
            let packet = Packet::Timer.entry(&self.connections.slots);
            let _ = self.connections.port.system().post_ahead(packet);
        }
        is_drain_over
    }

    /// Whether there are functions of timers to call.
    pub(super) fn is_any_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    /// Call the functions of timers that are due. This runs the caller's code.
    pub(super) fn call_due(&self) {
        while let Some(make) = self.next_due() {
            // One that was cancelled since is gone.
            let Some(make) = make.upgrade() else {
                continue;
            };
            let outcome = match make.try_lock() {
                Ok(mut make) => Some(catch_unwind(AssertUnwindSafe(&mut *make))),
                // Another thread still makes the one before. (It is not poisoned: no panic leaves it.)
                Err(_) => None,
            };
            match outcome {
                Some(Ok(message)) => self.send_all(vec![Message::Sent(message)]),
                Some(Err(panic)) => self.notify(Notice::Panicked(None, panic)),
                None => {}
            }
            // It may have been cancelled meanwhile, and dropping it runs the caller's code.
            drop_all([make]);
        }
    }

    fn next_due(&self) -> Option<Weak<Make<M>>> {
        lock(&self.due).pop_front()
    }
}
