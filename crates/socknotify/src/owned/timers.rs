//! Timers that belong to no connection: messages that are sent later.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::OperationId;
use super::lock;
use super::port::{Port, SendError, Shared};

/// Identifies a timer of a port. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u64,
}

/// The timers of a port.
pub(super) struct Timers<M>(Mutex<Table<M>>);

struct Table<M> {
    entries: Vec<Timer<M>>,
    vacant: Vec<u32>,
    /// How often a timer was set.
    generation: u64,
}

struct Timer<M> {
    generation: u64,
    /// When it is due, in ticks.
    at: u64,
    /// Nothing if there is no such timer.
    action: Option<Action<M>>,
}

/// What is to be done when the time has come.
pub(super) enum Action<M> {
    Send(M),
    SendEvery(Arc<dyn Fn() -> M + Send + Sync>, Duration, Instant),
    EndDrain,
    /// Cancel an operation on a file.
    Expire(OperationId),
}

impl<M> Timers<M> {
    pub(super) fn new() -> Self {
        Timers(Mutex::new(Table {
            entries: Vec::new(),
            vacant: Vec::new(),
            generation: 0,
        }))
    }

    /// Drop all of them.
    pub(super) fn clear(&self) {
        let mut table = lock(&self.0);
        let entries = std::mem::take(&mut table.entries);
        table.vacant.clear();
        // What messages do when they are dropped is their own business.
        drop(table);
        drop(entries);
    }
}

impl<M> Table<M> {
    fn insert(&mut self, at: u64, action: Action<M>) -> TimerId {
        self.generation += 1;
        let timer = Timer {
            generation: self.generation,
            at,
            action: Some(action),
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.entries[index as usize] = timer;
                index
            }
            None => {
                self.entries.push(timer);
                (self.entries.len() - 1) as u32
            }
        };
        TimerId {
            index,
            generation: self.generation,
        }
    }

    fn remove(&mut self, id: TimerId) -> Option<Action<M>> {
        let timer = self.entries.get_mut(id.index as usize)?;
        if timer.generation != id.generation {
            return None;
        }
        let action = timer.action.take()?;
        self.vacant.push(id.index);
        Some(action)
    }
}

impl<T, M> Shared<T, M> {
    /// Set a timer. The action comes back if the port is closed.
    pub(super) fn set_timer(&self, time: Instant, action: Action<M>) -> Result<TimerId, Action<M>> {
        let at = self.deadlines.ticks_until(time);
        let mut table = lock(&self.timers.0);
        if self.home.is_closed() {
            return Err(action);
        }
        let id = table.insert(at, action);
        // Still with the table locked, so that nobody cancels it before it is set.
        self.deadlines.set_timer(&self.home, id.index, at);
        Ok(id)
    }

    pub(super) fn cancel_timer(&self, timer: TimerId) -> bool {
        let mut table = lock(&self.timers.0);
        let action = table.remove(timer);
        if action.is_some() {
            self.deadlines.unset_timer(timer.index);
        }
        drop(table);
        action.is_some()
    }

    /// When this time has passed, what still drains is cut off.
    pub(super) fn end_at(&self, time: Instant) {
        let _ = self.set_timer(time, Action::EndDrain);
    }

    /// The times of these have come, or had come for what was there before.
    pub(super) fn ring(&self, due: &[u32]) {
        let now = self.deadlines.now();
        let mut messages = Vec::new();
        let mut repeated = Vec::new();
        let mut expired = Vec::new();
        let mut is_over = false;
        let mut table = lock(&self.timers.0);
        for &index in due {
            let Some(timer) = table.entries.get_mut(index as usize) else {
                continue;
            };
            if timer.at > now {
                continue;
            }
            match timer.action.take() {
                None => continue,
                Some(Action::EndDrain) => is_over = true,
                Some(Action::Expire(id)) => expired.push(id),
                Some(Action::Send(message)) => messages.push(message),
                Some(Action::SendEvery(make, period, last)) => {
                    repeated.push(Arc::clone(&make));
                    // Times that were missed are left out.
                    let mut next = last + period;
                    let elapsed = Instant::now();
                    if next <= elapsed {
                        let missed = (elapsed - last).as_nanos() / period.as_nanos();
                        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
                        next = last + period.saturating_mul(missed) + period;
                    }
                    timer.at = self.deadlines.ticks_until(next);
                    timer.action = Some(Action::SendEvery(make, period, next));
                    self.deadlines.set_timer(&self.home, index, timer.at);
                    continue;
                }
            }
            table.vacant.push(index);
        }
        drop(table);
        expired.into_iter().for_each(|id| self.expire(id));
        messages.extend(repeated.into_iter().map(|make| make()));
        self.send_all(messages);
        if is_over {
            self.home.end();
        }
    }
}

impl<T, M> Port<T, M> {
    /// Sends a message after this time, as [`send`](Self::send) does.
    ///
    /// It comes up to some milliseconds later, and never earlier. If the time is too long to be represented, it never
    /// comes. A timer takes no descriptor, and the cost to set and to cancel one does not depend on their number.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::TcpStream;
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream, &str>::new()?;
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
        let far = Duration::from_secs(100 * 365 * 24 * 3600);
        let at = Instant::now() + time.min(far);
        shared
            .set_timer(at, Action::Send(message))
            .map_err(|action| match action {
                Action::Send(message) => SendError(message),
                _ => unreachable!("it is the one that was given"),
            })
    }

    /// Sends a message once per period, first after one period. A message that would be late by a whole period is left
    /// out. The shortest period is a millisecond.
    ///
    /// # Errors
    ///
    /// Returns the message if the port is closed.
    pub fn send_every(&self, period: Duration, message: M) -> Result<TimerId, SendError<M>>
    where
        M: Clone + Send + Sync + 'static,
    {
        let far = Duration::from_secs(100 * 365 * 24 * 3600);
        let period = period.clamp(Duration::from_millis(1), far);
        let begin = Instant::now();
        let copy = message.clone();
        let make: Arc<dyn Fn() -> M + Send + Sync> = Arc::new(move || copy.clone());
        let action = Action::SendEvery(make, period, begin + period);
        let timer = self.shared.set_timer(begin + period, action);
        timer.map_err(|_| SendError(message))
    }

    /// Cancels a timer: it sends nothing any more.
    ///
    /// Returns false if it was cancelled before, or has sent its only message, which may still be in the queue.
    pub fn cancel_timer(&self, timer: TimerId) -> bool {
        self.shared.cancel_timer(timer)
    }
}
