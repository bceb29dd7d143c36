//! A base for your own runtime: what it has `epoll` for, over a port. Here it serves echoes, from one thread.
//!
//! `.ci/suites` puts the same `selector.rs` beneath mio and polling, and runs their own tests, async-io's and tokio's.
//!
//! Run it with `cargo run -p socknotify-examples --bin selector 127.0.0.1:7007`, and talk to it with `nc 127.0.0.1 7007`. It ends
//! when its standard input does.
//!
//! It is for Unix.

#[cfg(unix)]
mod selector;

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    echo::serve()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("only a socket can be watched here");
    std::process::exit(1);
}

#[cfg(unix)]
mod echo {
    use std::collections::HashMap;
    use std::io::{self, ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use socknotify::{EventFilter, Events};

    use super::selector::{EDGES, Selector};

    const LISTENER: usize = 0;
    const INPUT: usize = 1;
    const ROOM: usize = 64;
    const RETRY: Duration = Duration::from_millis(100);
    /// How often one connection is read from, before others get their turn.
    const TURN: usize = 16;

    struct Connection {
        stream: TcpStream,
        /// What was received, and not sent back yet.
        left: Vec<u8>,
        /// What it waits for.
        filter: EventFilter,
    }

    pub(super) fn serve() -> io::Result<()> {
        let selector = Selector::new()?;
        let address = std::env::args().nth(1);
        let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
        listener.set_nonblocking(true)?;
        selector.add(listener.as_fd(), LISTENER, EventFilter::IN, EDGES)?;
        // Any descriptor. A file has no end to wait for.
        let input = io::stdin();
        if let Err(error) = selector.add(input.as_fd(), INPUT, EventFilter::HANGUP, EDGES) {
            eprintln!("standard input: {error}");
        }
        println!("listening on {}", listener.local_addr()?);

        let mut connections = HashMap::new();
        let mut latest = INPUT;
        let mut ready = Vec::new();
        let mut retry = None;
        loop {
            selector.wait(&mut ready, ROOM, retry)?;
            let mut is_due = retry.take().is_some();
            for ready in ready.drain(..) {
                if ready.token == INPUT {
                    return Ok(());
                }
                if ready.token == LISTENER {
                    is_due = true;
                } else if let Some(connection) = connections.get_mut(&ready.token) {
                    let wanted = match ready.events.contains(Events::ERR) {
                        true => None,
                        false => echo(connection).unwrap_or(None),
                    };
                    let stream = connection.stream.as_fd();
                    match wanted {
                        None => {
                            selector.remove(stream)?;
                            connections.remove(&ready.token);
                        }
                        // What holds already is notified, too.
                        Some(filter) if filter != connection.filter => {
                            selector.change(stream, ready.token, filter, EDGES)?;
                            connection.filter = filter;
                        }
                        Some(_) => {}
                    }
                }
            }
            // Edges: all that there is, since only the next one is notified.
            while is_due {
                match unless_blocked(listener.accept()) {
                    Ok(Some((stream, _))) => {
                        latest += 1;
                        let added = Connection::add(stream, &selector, latest);
                        connections.extend(added.map(|connection| (latest, connection)));
                    }
                    Ok(None) => is_due = false,
                    // There may be room for it later.
                    Err(error) => {
                        eprintln!("accept: {error}");
                        retry = Some(RETRY);
                        is_due = false;
                    }
                }
            }
        }
    }

    impl Connection {
        /// If that fails, it is closed.
        fn add(stream: TcpStream, selector: &Selector, token: usize) -> io::Result<Self> {
            let filter = EventFilter::IN;
            stream.set_nonblocking(true)?;
            selector.add(stream.as_fd(), token, filter, EDGES)?;
            let left = Vec::new();
            Ok(Connection {
                stream,
                left,
                filter,
            })
        }
    }

    /// As far as it goes in a turn. Returns what to wait for then; nothing at the end of the stream.
    fn echo(connection: &mut Connection) -> io::Result<Option<EventFilter>> {
        let Connection {
            stream,
            left,
            filter,
        } = connection;
        for _ in 0..TURN {
            while !left.is_empty() {
                match unless_blocked(stream.write(left))? {
                    Some(sent) => drop(left.drain(..sent)),
                    None => return Ok(Some(EventFilter::OUT)),
                }
            }
            let mut buffer = [0; 4096];
            match unless_blocked(stream.read(&mut buffer))? {
                Some(0) => return Ok(None),
                Some(received) => left.extend(&buffer[..received]),
                None => return Ok(Some(EventFilter::IN)),
            }
        }
        // Something is left to send, and perhaps to read. No edge comes a second time; to ask anew has it notified, and others
        // get their turn before.
        *filter = EventFilter::NONE;
        Ok(Some(EventFilter::OUT))
    }

    fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}
