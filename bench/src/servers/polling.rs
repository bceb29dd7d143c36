//! The crate `polling`: all threads share a poller, and one of them at a time waits in it.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};

use polling::{Event, Events, Poller};

use super::{Session, Shape, Shared, Until, on_threads};

pub(super) fn serve<S: Session>(
    shape: Shape,
    connections: Vec<Shared<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let poller = Poller::new()?;
    for (key, connection) in connections.iter().enumerate() {
        // SAFETY: the connections outlive the poller's last use.
        unsafe { poller.add(&connection.stream, Event::readable(key))? };
    }
    let done = AtomicBool::new(false);
    let serve = || -> io::Result<()> {
        let room = NonZero::new(shape.room).expect("room for some");
        let mut events = Events::with_capacity(room);
        while !done.load(Ordering::Relaxed) {
            events.clear();
            poller.wait(&mut events, None)?;
            for event in events.iter() {
                let connection = &connections[event.key];
                if connection.serve()? {
                    poller.modify(&connection.stream, Event::readable(event.key))?;
                }
            }
        }
        // One after the other.
        poller.notify()
    };
    let threads = std::iter::repeat_n(serve, shape.threads);
    on_threads(threads, until, || {
        done.store(true, Ordering::Relaxed);
        poller.notify()
    })
}
