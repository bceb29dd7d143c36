//! Deadlines.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(unix)]
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Interest};
use socknotify::{Backend, Events};

#[cfg(unix)]
use crate::TestPort;
use crate::support::{PATIENCE, SHORT};
#[cfg(unix)]
use crate::support::{asleep, this_thread, voluntary_switches};
use crate::{connect, next, nothing, owning_port, ready};

const LONG: Duration = Duration::from_secs(3600);

#[for_every_backend]
fn a_deadline_passes_and_never_early(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    let id = connection.id();
    let mut connection = Some(connection);
    for time in [1, 2, 5, 17, 63, 64, 65, 130] {
        let begin = Instant::now();
        let time = Duration::from_millis(time);
        worker.arm(
            connection.take().expect("it came back"),
            Interest::IN.until(begin + time),
        );
        match next(&mut worker) {
            Event::TimedOut(it) => {
                assert!(begin.elapsed() >= time, "{:?}", begin.elapsed());
                assert_eq!(it.id(), id);
                connection = Some(it);
            }
            other => panic!("{other:?}"),
        }
    }
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn what_comes_in_time_ends_the_deadline(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    let begin = Instant::now();
    worker.arm(connection, Interest::IN.until(begin + SHORT));
    peer.write_all(b"x")?;
    let connection = match next(&mut worker) {
        Event::Ready(connection, _) => connection,
        // The machine was too slow for this.
        Event::TimedOut(_) => return Ok(()),
        other => panic!("{other:?}"),
    };
    // Held, it has none.
    assert_eq!(worker.process(Some(2 * SHORT)), Ok(0));
    assert_eq!((&connection.socket).read(&mut [0; 8])?, 1);
    // Armed without one, it has none.
    worker.arm(connection, Interest::IN);
    assert_eq!(worker.process(Some(2 * SHORT)), Ok(0));
    Ok(())
}

#[for_every_backend]
fn a_deadline_that_has_passed_is_over_at_once(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.until(Instant::now()));
    let Event::TimedOut(connection) = next(&mut worker) else {
        panic!("not timed out");
    };
    worker.arm(connection, Interest::NOTHING.within(Duration::ZERO));
    assert!(matches!(next(&mut worker), Event::TimedOut(_)));
    Ok(())
}

#[for_every_backend]
fn deadlines_come_in_their_order(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(1);
    let begin = Instant::now();
    let mut peers = Vec::new();
    let mut expected = Vec::new();
    for time in [50, 10, 90, 30, 70] {
        let (connection, peer) = connect(&port)?;
        let time = Duration::from_millis(time);
        expected.push((time, connection.id()));
        worker.arm(connection, Interest::IN.until(begin + time));
        peers.push(peer);
    }
    expected.sort();
    let mut came = Vec::new();
    for &(time, _) in &expected {
        let Event::TimedOut(connection) = next(&mut worker) else {
            panic!("not timed out");
        };
        assert!(begin.elapsed() >= time);
        came.push(connection.id());
    }
    // Those that pass in the same moment come in any order; these are far apart, unless the machine
    // stood still.
    if begin.elapsed() < Duration::from_millis(100) {
        let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
        assert_eq!(came, expected);
    }
    Ok(())
}

/// All threads are busy until the deadline is over, and then another one is reported first.
#[for_every_backend]
fn an_end_or_an_error_before_the_deadline_is_reported(backend: Backend) -> io::Result<()> {
    for (interest, expected) in [
        (Interest::HANGUP, Events::HANGUP),
        (Interest::NOTHING, Events::ERR),
    ] {
        let port = owning_port(backend, 2)?;
        let mut worker = port.worker(1);
        let (idle, _peer) = connect(&port)?;
        let id = idle.id();
        port.arm(idle, Interest::IN.within(Duration::from_millis(1)));
        thread::sleep(SHORT);
        let (connection, peer) = connect(&port)?;
        if expected == Events::ERR {
            // What the peer does not read resets the connection.
            (&connection.socket).write_all(b"x")?;
        }
        port.arm(connection, interest.within(SHORT));
        match expected {
            Events::ERR => drop(peer),
            _ => peer.shutdown(Shutdown::Write)?,
        }
        thread::sleep(2 * SHORT);
        loop {
            match next(&mut worker) {
                Event::TimedOut(it) if it.id() == id => {}
                Event::Ready(_, events) => break assert_eq!(events, expected),
                event => panic!("{event:?}, in place of {expected:?}"),
            }
        }
    }
    Ok(())
}

#[for_every_backend]
fn a_deadline_can_move_to_earlier_and_to_later(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.within(LONG));
    peer.write_all(b"x")?;
    let connection = ready(next(&mut worker));
    assert_eq!((&connection.socket).read(&mut [0; 8])?, 1);
    let begin = Instant::now();
    worker.arm(connection, Interest::IN.until(begin + SHORT));
    let Event::TimedOut(connection) = next(&mut worker) else {
        panic!("not timed out");
    };
    assert!(begin.elapsed() >= SHORT);
    // Pushed back again and again, as an idle time is.
    let mut connection = Some(connection);
    let begin = Instant::now();
    while begin.elapsed() < 4 * SHORT {
        let it = connection.take().expect("it came back");
        worker.arm(it, Interest::IN.within(LONG));
        peer.write_all(b"x")?;
        let it = ready(next(&mut worker));
        assert_eq!((&it.socket).read(&mut [0; 8])?, 1);
        connection = Some(it);
    }
    Ok(())
}

#[for_every_backend]
fn a_thread_that_waits_already_learns_of_a_deadline(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let waiting = thread::spawn(move || {
        let came = matches!(next(&mut worker), Event::TimedOut(_));
        (came, worker)
    });
    let (connection, _peer) = connect(&port)?;
    crate::support::wait_until("a thread waits", || port.snapshot().waiting == 1);
    port.arm(connection, Interest::IN.within(SHORT));
    assert!(waiting.join().expect("no panic").0);
    Ok(())
}

#[for_every_backend]
fn a_deadline_too_far_away_is_none(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.within(Duration::MAX));
    nothing(&mut worker);
    let (other, _other_peer) = connect(&port)?;
    // Some centuries.
    worker.arm(
        other,
        Interest::IN.within(Duration::from_secs(10_000_000_000)),
    );
    nothing(&mut worker);
    peer.write_all(b"x")?;
    drop(ready(next(&mut worker)));
    Ok(())
}

#[for_every_backend]
fn a_timeout_of_the_call_is_its_own(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.within(LONG));
    let begin = Instant::now();
    assert_eq!(worker.process(Some(SHORT)), Ok(0));
    assert!(begin.elapsed() >= SHORT);
    Ok(())
}

/// How often a thread that waits in the port wakes in 300 ms.
#[cfg(unix)]
fn wake_ups(port: &TestPort, before: impl FnOnce() -> io::Result<()>) -> io::Result<u64> {
    thread::scope(|scope| {
        let (tell, told) = channel();
        let mut idle = port.worker(4);
        let idle_thread = scope.spawn(move || {
            tell.send(this_thread()).expect("someone listens");
            idle.process(None)
        });
        let idle = told.recv().expect("a thread");
        asleep([idle]);
        before()?;
        thread::sleep(2 * SHORT);
        let first = voluntary_switches(idle);
        thread::sleep(Duration::from_millis(300));
        let last = voluntary_switches(idle);
        port.close();
        let outcome = idle_thread.join().expect("no panic");
        assert_eq!(outcome, Err(socknotify::Error::Closed));
        Ok(last.zip(first).map_or(0, |(last, first)| last - first))
    })
}

#[cfg(unix)]
#[for_every_backend]
fn a_deadline_that_passed_before_its_event_was_taken_wakes_no_other_thread(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, mut peer) = connect(&port)?;
    peer.write_all(b"x")?;
    port.arm(connection, Interest::IN.within(SHORT));
    worker.process(Some(PATIENCE))?;
    let times = wake_ups(&port, || Ok(()))?;
    assert!(times <= 3, "{times} times");
    Ok(())
}

#[for_every_backend]
fn a_deadline_that_passes_before_the_call_that_arms_is_reported_to_another_thread(
    backend: Backend,
) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    worker.arm(connection, Interest::IN.within(SHORT));
    let mut other = port.worker(4);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            other.process(Some(PATIENCE))?;
            Ok::<_, io::Error>(matches!(other.take(), Some(Event::TimedOut(_))))
        });
        assert!(other.join().expect("no panic")?);
        Ok(())
    })
}

/// The system's report may be on the way still when another thread finds that the deadline has passed.
#[for_every_backend]
fn a_deadline_that_has_passed_is_not_reported_while_a_condition_holds(
    backend: Backend,
) -> io::Result<()> {
    const LENGTH: usize = 16 * 1024;
    const AT_ONCE: Interest = Interest::IN.within(Duration::ZERO);
    for _ in 0..20 {
        let port = owning_port(backend, 2)?;
        let mut peers = Vec::new();
        for _ in 0..8 {
            let (connection, mut peer) = connect(&port)?;
            connection.socket.set_nonblocking(true)?;
            peer.write_all(&[7; LENGTH])?;
            port.arm(connection, AT_ONCE);
            peers.push(peer);
        }
        let left = AtomicUsize::new(peers.len());
        thread::scope(|scope| {
            for _ in 0..4 {
                let (port, left) = (&port, &left);
                scope.spawn(move || {
                    let mut worker = port.worker(4);
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            match event {
                                Event::Ready(mut connection, _) => {
                                    connection.served +=
                                        connection.socket.read(&mut [0; 512]).unwrap_or(0);
                                    worker.arm(connection, AT_ONCE);
                                }
                                Event::TimedOut(connection) => {
                                    let is_last = left.fetch_sub(1, Ordering::SeqCst) == 1;
                                    if is_last || connection.served < LENGTH {
                                        port.close();
                                    }
                                    assert_eq!(connection.served, LENGTH);
                                }
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                });
            }
        });
    }
    Ok(())
}
