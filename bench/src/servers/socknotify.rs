//! Ours: one port for all threads, with keys or with connections that it owns.

use std::io;

use socknotify::owned::{Builder, Event, Interest, Port, Source, Worker};
use socknotify::{Backend, CompletionPort, Entry, Error, EventFilter, Registration, Trigger};

use super::{Connection, Outcome, Session, Shape, Shared, Until, on_threads};

pub(super) fn serve<S: Session>(
    backend: Backend,
    shape: Shape,
    connections: Vec<Shared<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    let enable = |key: usize| {
        let stream = &connections[key].stream;
        Registration::enable(stream, key, EventFilter::IN, ONESHOT)
    };
    let port = CompletionPort::builder().backend(backend).build()?;
    for key in 0..connections.len() {
        port.register(enable(key))?;
    }
    let serve = || -> io::Result<()> {
        let mut entries = vec![Entry::default(); shape.room];
        let mut batch = Vec::with_capacity(shape.room);
        loop {
            let taken = match port.process(&mut batch, &mut entries, None) {
                Ok(taken) => taken,
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            batch.clear();
            for entry in taken {
                let key = entry.completion_key;
                if connections[key].serve()? {
                    batch.push(enable(key));
                }
            }
        }
    };
    let threads = std::iter::repeat_n(serve, shape.threads);
    on_threads(threads, until, || {
        port.close();
        Ok(())
    })
}

pub(super) fn serve_owned<S: Session>(
    builder: Builder<Connection<S>>,
    shape: Shape,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let port = builder.build()?;
    for connection in connections {
        let connection = port.adopt(connection)?;
        port.arm(connection, Interest::IN);
    }
    let serve = || {
        take_events(&port, shape.room, |event, worker| {
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
    let threads = std::iter::repeat_n(serve, shape.threads);
    on_threads(threads, until, || {
        port.close();
        Ok(())
    })
}

/// Take events on this thread, until the port is closed.
pub(super) fn take_events<T: Source, M>(
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
