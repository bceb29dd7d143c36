//! Every interleaving of a few threads in one port, on a [backend](model) that exists in memory only.
//!
//! ```text
//! RUSTFLAGS="--cfg interleavings" cargo test --release -p socknotify --lib interleavings
//! ```
//!
//! A wake-up that is lost shows as a deadlock, which the checker reports.

mod memory;
mod model;
mod registrations;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread;

use super::Engine;
use super::owned::{Caller, Left, Polls, Taking};
use crate::values::entry::Arming;
use crate::values::registration::Extra;
use crate::{
    Entry, Error, EventFilter, Events, Registration, RegistrationError, Trigger, WakePolicy,
};
use model::{KINDS, Kind, Model};

const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
const EDGE: Trigger = Trigger::PERSISTENT.union(Trigger::EDGE);

pub(crate) type Port = Arc<Engine<Model>>;

/// How many threads may wait in the backend of the model that is explored.
static WAITERS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Explore with at most this many involuntary switches in one run: where any number of threads may wait in the
/// backend, and, as with kqueue, one.
///
/// One model at a time: which port has a socket is known to the whole process, and the models all use
/// the same numbers.
pub(crate) fn explore(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    // With fewer it is quicker.
    let limit = std::env::var("SOCKNOTIFY_PREEMPTIONS").ok();
    let limit = limit
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let run = Arc::new(run);
    for waiters in [usize::MAX, 1] {
        WAITERS.store(waiters, Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions.min(limit));
        let run = Arc::clone(&run);
        builder.check(move || run());
    }
}

fn port(places: usize) -> Port {
    port_with(places, WakePolicy::Eager)
}

fn port_with(places: usize, policy: WakePolicy) -> Port {
    Arc::new(Engine::new(
        Model::new(Kind::Sockets),
        places,
        policy,
        false,
    ))
}

/// Explore with sockets and with other descriptors.
fn explore_kinds(preemptions: usize, run: impl Fn(Port) + Copy + Sync + Send + 'static) {
    for kind in KINDS {
        explore(preemptions, move || {
            run(Arc::new(Engine::new(
                Model::new(kind),
                2,
                WakePolicy::Eager,
                false,
            )));
        });
    }
}

/// Explore with each way to wake threads.
fn explore_waking(
    places: usize,
    preemptions: usize,
    run: impl Fn(Port) + Copy + Sync + Send + 'static,
) {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(preemptions, move || run(port_with(places, policy)));
    }
}

/// Explore with sockets that the port owns, and with other descriptors.
pub(crate) fn explore_owning(
    preemptions: usize,
    run: impl Fn(&Port) + Copy + Sync + Send + 'static,
) {
    explore_kinds(preemptions, move |port| run(&port));
}

fn dequeue(port: &Port, timeout: Option<Duration>) -> Result<Entry, Error> {
    let mut entries = [Entry::default()];
    port.process(&mut [], &mut entries, timeout, None)?;
    Ok(entries[0])
}

fn apply(port: &Port, registration: Registration<'_>) -> Result<(), RegistrationError> {
    let mut batch = [registration];
    let applied = port.process(&mut batch, &mut [], Some(Duration::ZERO), None);
    assert!(applied.is_ok());
    batch[0].result()
}

fn raw(socket: i32) -> Registration<'static> {
    // SAFETY: the number goes to the model of a backend, and never to a system call.
    #[allow(unsafe_code)]
    unsafe {
        Registration::from_raw(socket)
    }
}

fn enable(socket: i32, trigger: Trigger) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::ENABLE;
    registration.completion_key = 10 + socket as usize;
    registration.event_filter = EventFilter::IN;
    registration.trigger = trigger;
    registration.extra = Extra::Descriptor;
    registration
}

fn remove(socket: i32) -> Registration<'static> {
    let mut registration = raw(socket);
    registration.operation = crate::Operation::REMOVE;
    registration
}

fn deregister(socket: i32) -> Registration<'static> {
    crate::interface::silent(remove(socket))
}

/// A thread that waits for one notification.
fn waiter(port: &Port) -> thread::JoinHandle<Result<Entry, Error>> {
    let port = Arc::clone(port);
    thread::spawn(move || dequeue(&port, None))
}

/// Enable an adopted socket. Returns what is left to do.
fn enable_owned(port: &Port, is_drained: bool) -> Left {
    let arming = Arming::default();
    let enabled = port.enable_owned(0, 10, EventFilter::IN, arming, is_drained);
    enabled.expect("it was adopted")
}

/// Do what is left to do for the socket 0, which was enabled under this key, and dequeue.
pub(crate) fn do_and_dequeue(
    port: &Port,
    key: usize,
    left: Left,
    entries: &mut [Entry],
) -> Result<usize, Error> {
    let mut batch = Vec::new();
    let mut polls = Polls::default();
    match left {
        Left::Nothing => {}
        Left::Poll(interest) => polls.add(interest),
        Left::Arm => batch.push(Registration::arm(0, key, EventFilter::IN)),
    }
    let caller = Caller {
        polls: &mut polls,
        taking: &Arc::new(Taking::default()),
    };
    port.process(&mut batch, entries, None, Some(caller))
}

/// Arm an adopted socket, and wait for what comes.
fn arm(port: &Port) -> u32 {
    enable_owned(port, false);
    let mut batch = [Registration::arm(0, 10, EventFilter::IN)];
    let mut entries = [Entry::default()];
    assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
    assert_eq!((batch[0].result(), entries[0].completion_key), (Ok(()), 10));
    assert_eq!(Arming::of(&entries[0]), Some(Arming::default()));
    entries[0].transferred
}

/// A socket that was adopted, was ready once, and is held by this thread now.
fn adopted(port: &Port) {
    assert_eq!(port.adopt(0, 10, true), Ok(Ok(())));
    port.backend.become_readable(0);
    assert_eq!(arm(port), Events::IN.bits());
    port.backend.drain(0);
}
