//! Ours: one port for all threads, with keys or with connections that it owns.

use std::io;
use std::sync::{Mutex, PoisonError};

use socknotify::owned::{Event, Interest, Port, Source, Worker};
use socknotify::{CompletionPort, Entry, Error, EventFilter, Registration, Trigger};

use super::{Connection, Outcome, Session, Until, on_threads};

/// With keys: any thread serves any connection, one at a time, so that the lock is free.
pub(crate) fn serve_keys<S: Session>(
    threads: usize,
    room: usize,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    let share = |Connection { stream, session }| (stream, Mutex::new(session));
    let connections: Vec<_> = connections.into_iter().map(share).collect();
    let enable = |key: usize| {
        let (stream, _) = &connections[key];
        Registration::enable(stream, key, EventFilter::IN, ONESHOT)
    };
    let port = CompletionPort::builder().build()?;
    for key in 0..connections.len() {
        port.register(enable(key))?;
    }
    let serve = || -> io::Result<()> {
        let mut entries = vec![Entry::default(); room];
        let mut batch = Vec::with_capacity(room);
        loop {
            let taken = match port.process(&mut batch, &mut entries, None) {
                Ok(taken) => taken,
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            batch.clear();
            for entry in taken {
                let key = entry.completion_key;
                let (stream, session) = &connections[key];
                let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
                if session.serve(stream)? != Outcome::Ended {
                    batch.push(enable(key));
                }
            }
        }
    };
    let threads = std::iter::repeat_n(serve, threads);
    on_threads(threads, until, || {
        port.close();
        Ok(())
    })
}

pub(crate) fn serve_owned<S: Session>(
    threads: usize,
    room: usize,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let port = Port::<Connection<S>>::builder().build()?;
    for connection in connections {
        let connection = port.adopt(connection)?;
        port.arm(connection, Interest::IN);
    }
    let serve = || {
        take_events(&port, room, |event, worker| {
            if let Event::Ready(mut held, _) = event {
                let (connection, readiness) = held.split();
                let stream = readiness.io(&connection.stream);
                if connection.session.serve(stream)? != Outcome::Ended {
                    worker.arm(held, Interest::IN);
                }
            }
            Ok(())
        })
    };
    let threads = std::iter::repeat_n(serve, threads);
    on_threads(threads, until, || {
        port.close();
        Ok(())
    })
}

/// Takes events on this thread, until the port is closed.
pub(crate) fn take_events<T: Source, M>(
    port: &Port<T, M>,
    room: usize,
    mut handle: impl FnMut(Event<T, M>, &mut Worker<T, M>) -> io::Result<()>,
) -> io::Result<()> {
    let mut worker = port.worker(room);
    loop {
        match worker.process(None) {
            Ok(_) => {}
            Err(Error::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(event) = worker.take() {
            handle(event, &mut worker)?;
        }
    }
}
