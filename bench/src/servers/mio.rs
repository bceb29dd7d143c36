//! The crate `mio`: a loop for each thread, which ends with the last of its connections.

use std::io;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::{Connection, Session, Shape, Until, deal, on_threads};

pub(super) fn serve<S: Session>(
    shape: Shape,
    connections: Vec<Connection<S>>,
    until: Until<'_>,
) -> io::Result<()> {
    let serve = |mut connections: Vec<Connection<S>>| -> io::Result<()> {
        let mut poll = Poll::new()?;
        for (key, connection) in connections.iter().enumerate() {
            let fd = connection.stream.as_raw_fd();
            let mut source = SourceFd(&fd);
            let registry = poll.registry();
            registry.register(&mut source, Token(key), Interest::READABLE)?;
        }
        let mut open = connections.len();
        let mut events = Events::with_capacity(shape.room);
        while open > 0 {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            for event in &events {
                let connection = &mut connections[event.token().0];
                if !connection.drain()? {
                    let fd = connection.stream.as_raw_fd();
                    let mut source = SourceFd(&fd);
                    poll.registry().deregister(&mut source)?;
                    open -= 1;
                }
            }
        }
        Ok(())
    };
    let hands = deal(connections, shape.threads).into_iter();
    let threads = hands.map(|connections| move || serve(connections));
    on_threads(threads, until, || Ok(()))
}
