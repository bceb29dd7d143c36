//! Threads that register and dequeue at once.
//!
//! The packets depend on the order of the threads, so the model cannot follow step by step. Here every
//! thread has a socket that it alone registers, all threads dequeue for each other, nothing happens to
//! the sockets meanwhile, and all is checked at the end: by the order of those calls of which one ended
//! before the other began.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socknotify::{
    CompletionPort, Entry, Error, Events, Operation, Registration, RegistrationError,
};

use crate::conditions::Socket;
use crate::model::{Check, Request};

/// One call of one thread.
#[derive(Debug)]
pub(crate) struct Call {
    /// Within this time, counted in beginnings and ends of calls.
    time: Range<usize>,
    registered: Option<(Request, Result<(), RegistrationError>)>,
    dequeued: Vec<Entry>,
}

/// Have a thread for each of these apply one request after the other, and dequeue in the same calls
/// and once more.
pub(crate) fn run(
    port: &CompletionPort,
    requests: &[Vec<Request>],
    room: usize,
    registration: impl Fn(&Request) -> Registration<'static> + Sync,
) -> Result<Vec<Call>, Error> {
    let clock = AtomicUsize::new(0);
    let start = Barrier::new(requests.len());
    let (clock, start, registration) = (&clock, &start, &registration);
    std::thread::scope(|scope| {
        let threads = requests.iter().map(|requests| {
            scope.spawn(move || {
                start.wait();
                let once_more = std::iter::once(None);
                let steps = requests.iter().map(Some).chain(once_more);
                let calls = steps.map(|request| call(port, clock, request, room, registration));
                calls.collect::<Result<Vec<_>, _>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut calls = Vec::new();
        for thread in threads {
            calls.extend(thread.join().expect("a thread panicked")?);
        }
        Ok(calls)
    })
}

/// Dequeue once more, in the same way.
pub(crate) fn poll_now(port: &CompletionPort, after: &[Call]) -> Result<Call, Error> {
    let end = after.iter().map(|call| call.time.end).max();
    let clock = AtomicUsize::new(end.unwrap_or_default() + 1);
    call(port, &clock, None, 64, &|_: &Request| unreachable!())
}

fn call(
    port: &CompletionPort,
    clock: &AtomicUsize,
    request: Option<&Request>,
    room: usize,
    registration: &impl Fn(&Request) -> Registration<'static>,
) -> Result<Call, Error> {
    let mut entries = vec![Entry::default(); room];
    let mut batch: Vec<Registration<'_>> = request.map(registration).into_iter().collect();
    let begin = clock.fetch_add(1, Ordering::SeqCst);
    let dequeued = match port.process(&mut batch, &mut entries, Some(Duration::ZERO)) {
        Ok(entries) => entries.to_vec(),
        Err(Error::TimedOut) => Vec::new(),
        Err(error) => return Err(error),
    };
    let end = clock.fetch_add(1, Ordering::SeqCst);
    Ok(Call {
        time: begin..end,
        registered: request.map(|request| (*request, batch[0].result())),
        dequeued,
    })
}

impl Call {
    pub(crate) fn is_empty(&self) -> bool {
        self.dequeued.is_empty()
    }
}

/// A thread's socket, as it is throughout.
#[derive(Debug)]
pub(crate) struct Contender<'a> {
    pub(crate) key: usize,
    /// If the number is closed or no socket, what the port says to that.
    pub(crate) socket: Result<&'a Socket, RegistrationError>,
    /// It is registered with another port.
    pub(crate) elsewhere: bool,
    /// It was registered with this port before, and disabled.
    pub(crate) registered: bool,
}

/// The state of a registration, as its thread knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Absent,
    Registered,
    /// It is being removed; or the REMOVE was dequeued already, on any thread.
    Removing,
}

impl Contender<'_> {
    /// B7: the result of each request for this socket. Returns whether it is registered in the end.
    pub(crate) fn check_results(&self, calls: &[Call]) -> Result<bool, String> {
        use RegistrationError as Wrong;

        let refusal = [self.socket.map(drop)];
        let mut status = match self.registered {
            true => Status::Registered,
            false => Status::Absent,
        };
        for (request, result) in self.requests(calls) {
            let (allowed, next): (&[Result<(), Wrong>], _) =
                match (request.operation, self.socket, status) {
                    (_, Err(_), _) => (&refusal, status),
                    (Operation::ENABLE, _, _) if self.elsewhere => {
                        (&[Err(Wrong::OtherPort)], status)
                    }
                    (Operation::ENABLE, _, Status::Removing) => {
                        (&[Ok(()), Err(Wrong::RemovePending)], Status::Registered)
                    }
                    (Operation::ENABLE, _, _) => (&[Ok(())], Status::Registered),
                    (Operation::DISABLE, _, Status::Registered) => (&[Ok(())], status),
                    (_, _, Status::Registered) => (&[Ok(())], Status::Removing),
                    (Operation::DISABLE, _, _) => (&[Ok(())], status),
                    _ => (&[Err(Wrong::NotFound)], status),
                };
            if !allowed.contains(&result) {
                return Err(format!("B7: {request:?} gave {result:?} of {self:?}"));
            }
            if result.is_ok() {
                status = next;
            }
        }
        Ok(status == Status::Registered)
    }

    /// B4, C2, C4, C6, C8, D4, D7: the notifications of this socket, in these calls and after them.
    pub(crate) fn check_notifications(&self, calls: &[Call]) -> Check {
        let wrong = |clause: &str| Err(format!("{clause}: {self:?} in a race: {calls:#?}"));
        let came: Vec<(&Range<usize>, Events)> = calls
            .iter()
            .flat_map(|call| call.dequeued.iter().map(|entry| (&call.time, entry)))
            .filter(|(_, entry)| entry.completion_key == self.key)
            .map(|(time, entry)| (time, entry.events()))
            .collect();
        let Ok(socket) = self.socket else {
            return match came.is_empty() {
                true => Ok(()),
                false => wrong("B10"),
            };
        };
        let applied: Vec<(&Range<usize>, &Request)> = calls
            .iter()
            .filter_map(|call| match &call.registered {
                Some((request, Ok(()))) if self.is_mine(request) => Some((&call.time, request)),
                _ => None,
            })
            .collect();
        let enabled = |request: &Request| request.operation == Operation::ENABLE;
        let removed = |request: &Request| request.operation == Operation::REMOVE;

        let mut shown = Events::REMOVE;
        for (_, request) in applied.iter().filter(|(_, request)| enabled(request)) {
            shown |= wanted(request) & socket.may_hold();
        }
        if came
            .iter()
            .any(|(_, mask)| mask.is_empty() || !shown.contains(*mask))
        {
            return wrong("C2, D4, D7");
        }

        // B4: one REMOVE each, and nothing after it until the next registration.
        let removals = applied
            .iter()
            .filter(|(_, request)| removed(request))
            .count();
        let last_ones: Vec<_> = came
            .iter()
            .filter(|(_, mask)| mask.contains(Events::REMOVE))
            .collect();
        if last_ones.len() != removals {
            return wrong("B4");
        }
        for (time, _) in &last_ones {
            let is_late = |(other, _): &(&Range<usize>, Events)| {
                let after = other.start > time.end;
                let mut between = applied.iter().filter(|(enable, request)| {
                    enabled(request) && enable.end > time.start && enable.start < other.end
                });
                after && between.next().is_none()
            };
            if came.iter().any(is_late) {
                return wrong("B4");
            }
        }

        // C6, C8: a one-shot comes once each time that it is enabled.
        let enables = applied.iter().filter(|(_, request)| enabled(request));
        let others = came.len() - last_ones.len();
        if enables.clone().all(|(_, request)| is_oneshot(request)) && others > enables.count() {
            return wrong("C6, C8");
        }

        // C4: what was enabled last, and holds, is notified after that.
        if let Some((time, request)) = applied.last() {
            let holds = socket.holds() & wanted(request);
            if enabled(request)
                && !is_edge(request)
                && !holds.is_empty()
                && !came.iter().any(|(other, _)| other.end > time.start)
            {
                return wrong("C4");
            }
        }
        Ok(())
    }

    fn is_mine(&self, request: &Request) -> bool {
        request.key == self.key
    }

    fn requests(
        &self,
        calls: &[Call],
    ) -> impl Iterator<Item = (Request, Result<(), RegistrationError>)> {
        let registered = calls.iter().filter_map(|call| call.registered);
        registered.filter(|(request, _)| self.is_mine(request))
    }
}

fn wanted(request: &Request) -> Events {
    Events::from_bits_truncate(request.filter.bits().into()) | Events::ERR
}

fn is_oneshot(request: &Request) -> bool {
    request.trigger.contains(socknotify::Trigger::ONESHOT)
}

fn is_edge(request: &Request) -> bool {
    request.trigger.contains(socknotify::Trigger::EDGE)
}

/// Whatever came has to belong to one of them (G6), and in one call to each but once (C3): more only if another thread enabled or
/// removed it meanwhile, and nothing behind a REMOVE unless it was enabled.
pub(crate) fn check_keys(contenders: &[Contender<'_>], calls: &[Call]) -> Check {
    for call in calls {
        for (index, entry) in call.dequeued.iter().enumerate() {
            let key = entry.completion_key;
            let is_known = contenders.iter().any(|contender| contender.key == key);
            let before = call.dequeued[..index].iter();
            let before: Vec<_> = before.filter(|it| it.completion_key == key).collect();
            let during = |operation| asked_during(call, key, operation, calls);
            let enabled = during(Operation::ENABLE);
            let was_removed = before.iter().any(|it| it.events().contains(Events::REMOVE));
            let is_explained = before.len() <= enabled + during(Operation::REMOVE)
                && (!was_removed || enabled > 0);
            if !is_known || !is_explained || entry.overlapped != 0 {
                return Err(format!("C3, G6: {entry:?} came in a race: {calls:#?}"));
            }
        }
    }
    Ok(())
}

/// How often other calls did this to a registration while a call was under way.
fn asked_during(call: &Call, key: usize, operation: Operation, calls: &[Call]) -> usize {
    let others = calls.iter().filter(|other| {
        let asks = |&(request, result): &(Request, _)| {
            request.key == key && request.operation == operation && result == Ok(())
        };
        let overlaps = other.time.start < call.time.end && other.time.end > call.time.start;
        let is_other = !std::ptr::eq(*other, call);
        is_other && overlaps && other.registered.as_ref().is_some_and(asks)
    });
    others.count()
}
