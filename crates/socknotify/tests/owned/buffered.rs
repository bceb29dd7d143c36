//! Connections that have read ahead: what is in their buffers is not in their sockets.

use std::io::{self, BufRead, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::Socket;
use socknotify::owned::{BorrowedSocket, Buffered, Event, Held, Interest, Port, Serving, Source};
use socknotify::{Backend, Error, Events};

use crate::support::{PATIENCE, Pair, port_with};

type BufferedPort = Port<Buffered<Socket>>;

fn buffered_port(backend: Backend) -> io::Result<BufferedPort> {
    Ok(Port::from(port_with(backend, 1)?))
}

/// A connection that has read "one\ntwo\n" ahead, and taken the first line; and its peer.
fn read_ahead(port: &BufferedPort) -> io::Result<(Held<Buffered<Socket>>, Socket)> {
    let Pair { ours, theirs } = Pair::unix()?;
    theirs.set_nonblocking(false)?;
    theirs.set_read_timeout(Some(PATIENCE))?;
    (&theirs).write_all(b"one\ntwo\n")?;
    let mut connection = port.adopt(Buffered::new(ours))?;
    assert_eq!(line(&mut connection)?, "one\n");
    assert_eq!(connection.buffer(), b"two\n");
    Ok((connection, theirs))
}

fn line(connection: &mut Buffered<Socket>) -> io::Result<String> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    Ok(line)
}

#[for_every_backend]
fn what_was_read_ahead_is_ready_at_once(backend: Backend) -> io::Result<()> {
    let port = buffered_port(backend)?;
    for by_worker in [true, false] {
        let (connection, _theirs) = read_ahead(&port)?;
        let mut worker = port.worker(4);
        match by_worker {
            true => worker.arm(connection, Interest::IN),
            false => port.arm(connection, Interest::IN),
        }
        assert_eq!(worker.process(Some(PATIENCE))?, 1);
        let Some(Event::Ready(mut connection, Events::IN)) = worker.take() else {
            panic!()
        };
        assert_eq!(line(&mut connection)?, "two\n");
        // Once that is taken, it is armed as any other.
        let id = connection.id();
        worker.arm(connection, Interest::IN);
        assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
        assert!(port.cancel(id));
        assert_eq!(worker.process(Some(PATIENCE))?, 1);
        assert!(matches!(worker.take(), Some(Event::Cancelled(_))));
    }
    Ok(())
}

/// What is to be sent is not waited for by what was received.
#[for_every_backend]
fn without_in_it_waits_for_its_socket(backend: Backend) -> io::Result<()> {
    let port = buffered_port(backend)?;
    let (connection, _theirs) = read_ahead(&port)?;
    let mut worker = port.worker(4);
    worker.arm(connection, Interest::NOTHING);
    assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
    Ok(())
}

/// A deadline that passes meanwhile does not take its place, and it does not keep an end from being told.
#[for_every_backend]
fn it_comes_before_a_deadline_and_behind_what_ends_it(backend: Backend) -> io::Result<()> {
    let port = buffered_port(backend)?;
    let mut worker = port.worker(1);
    let (connection, _theirs) = read_ahead(&port)?;
    worker.arm(connection, Interest::IN.within(Duration::ZERO));
    worker.process(Some(PATIENCE))?;
    let Some(Event::Ready(mut connection, Events::IN)) = worker.take() else {
        panic!()
    };
    port.cancel(connection.id());
    worker.arm(connection, Interest::IN);
    worker.process(Some(PATIENCE))?;
    let Some(Event::Cancelled(held)) = worker.take() else {
        panic!()
    };
    connection = held;
    worker.arm(connection, Interest::IN);
    worker.process(Some(PATIENCE))?;
    let Some(Event::Ready(mut connection, Events::IN)) = worker.take() else {
        panic!()
    };
    assert_eq!(line(&mut connection)?, "two\n");
    // What was to be told is not told later.
    worker.arm(connection, Interest::IN);
    assert_eq!(worker.process(Some(Duration::ZERO))?, 0);
    Ok(())
}

/// One that always has more keeps no other waiting, and a drain ends it.
#[for_every_backend]
fn one_that_has_much_keeps_no_other_waiting(backend: Backend) -> io::Result<()> {
    /// It never takes what it has.
    struct Greedy(Buffered<Socket>, bool);

    impl Source for Greedy {
        fn socket(&self) -> BorrowedSocket<'_> {
            self.0.socket()
        }

        fn has_buffered(&self) -> bool {
            self.1
        }
    }

    let port: Port<Greedy> = Port::from(port_with(backend, 1)?);
    let has_drained = AtomicBool::new(false);
    let connect = |is_greedy| -> io::Result<Socket> {
        let Pair { ours, theirs } = Pair::unix()?;
        theirs.set_nonblocking(false)?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        port.arm(
            port.adopt(Greedy(Buffered::new(ours), is_greedy))?,
            Interest::IN,
        );
        Ok(theirs)
    };
    let (_greedy, other) = (connect(true)?, connect(false)?);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            port.serve(Serving::default(), |worker, event| match event {
                Event::Ready(mut held, _) => {
                    if !held.1 {
                        let text = line(&mut held.0).unwrap_or_default();
                        let _ = held.0.write_all(text.as_bytes());
                    }
                    worker.arm(held, Interest::IN);
                }
                Event::Draining(held) => {
                    has_drained.fetch_or(held.1, Ordering::SeqCst);
                }
                _ => {}
            })
        });
        for _ in 0..100 {
            (&other).write_all(b"echo\n")?;
            (&other).read_exact(&mut [0; 5])?;
        }
        drop(other);
        port.drain(PATIENCE);
        serving.join().expect("no panic")?;
        assert!(has_drained.load(Ordering::SeqCst), "it was told");
        Ok(())
    })
}

/// For its socket when what has come is discarded, and for its bytes when it is armed.
#[for_every_backend]
fn one_that_panics_when_it_is_asked_is_closed(backend: Backend) -> io::Result<()> {
    struct Fragile {
        socket: Socket,
        panics: Arc<AtomicBool>,
        lingers: bool,
    }

    impl Fragile {
        fn is_asked(&self, lingers: bool) {
            if lingers == self.lingers && self.panics.load(Ordering::SeqCst) {
                resume_unwind(Box::new("a fault"));
            }
        }
    }

    impl Source for Fragile {
        fn socket(&self) -> BorrowedSocket<'_> {
            self.is_asked(true);
            self.socket.socket()
        }

        fn has_buffered(&self) -> bool {
            self.is_asked(false);
            false
        }
    }

    for lingers in [true, false] {
        let port: Port<Fragile> = Port::from(port_with(backend, 1)?);
        let mut worker = port.worker(1);
        let panics = Arc::new(AtomicBool::new(false));
        let Pair { ours, mut theirs } = Pair::unix()?;
        let held = port.adopt(Fragile {
            socket: ours,
            panics: Arc::clone(&panics),
            lingers,
        })?;
        let outcome = match lingers {
            true => {
                worker.linger(held, PATIENCE);
                theirs.write_all(&[1])?;
                assert_eq!(worker.process(Some(PATIENCE))?, 1);
                panics.store(true, Ordering::SeqCst);
                catch_unwind(AssertUnwindSafe(|| drop(worker.take())))
            }
            false => {
                panics.store(true, Ordering::SeqCst);
                catch_unwind(AssertUnwindSafe(|| worker.arm(held, Interest::IN)))
            }
        };
        assert!(outcome.is_err());
        assert_eq!(port.connections(), 0);
        // Nothing is left to wait for.
        port.drain(PATIENCE);
        assert_eq!(worker.process(Some(PATIENCE)), Err(Error::Closed));
    }
    Ok(())
}
