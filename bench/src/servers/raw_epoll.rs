//! `epoll`, edge-triggered: a set for each thread, with its share of the connections.

use std::io;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::retry_on_intr;

use super::{Connection, Outcome, ROOM, Session, Until, on_threads};

/// A thread ends with the last of its connections.
pub(super) fn serve<S: Session>(
    threads: usize,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let serve = |mut connections: Vec<Connection<S>>| -> io::Result<()> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventFlags::IN | EventFlags::ET;
        for (key, connection) in (0..).zip(&connections) {
            epoll::add(&set, connection, EventData::new_u64(key), flags)?;
        }
        let mut open = connections.len();
        let mut events = Vec::with_capacity(ROOM);
        while open > 0 {
            events.clear();
            retry_on_intr(|| epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None))?;
            for event in &events {
                let data = event.data;
                let connection = &mut connections[data.u64() as usize];
                // Until nothing is left, as one has to after an edge.
                let outcome = loop {
                    match connection.session.serve(&connection.stream)? {
                        Outcome::More => {}
                        outcome => break outcome,
                    }
                };
                if outcome == Outcome::Ended {
                    epoll::delete(&set, connection)?;
                    open -= 1;
                }
            }
        }
        Ok(())
    };
    let mut hands: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, connection) in connections.into_iter().enumerate() {
        hands[index % threads].push(connection);
    }
    let threads = hands.into_iter();
    let threads = threads.map(|connections| move || serve(connections));
    on_threads(threads, until, || Ok(()))
}
