//! E1: what is due comes with the next call, however much is ready. Calls are counted, and clocks are compared.

use std::io;
use std::time::{Duration, Instant};

use socknotify::{Backend, Entry, EventFilter, Registration};

use crate::support::trigger::ONCE;
use crate::support::{PATIENCE, Pair, PortExt, port_with};

const ALARM: usize = 1000;

/// Sockets that are writable, whenever they are enabled.
fn ready(count: usize) -> io::Result<Vec<Pair>> {
    (0..count).map(|_| Pair::unix()).collect()
}

/// Compute for so long: the port's clock counts, and others run meanwhile.
fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// (d) The first call that begins after the alarm's time returns its packet, and with room for one the second one does.
#[for_every_backend]
fn e1_an_alarm_is_late_by_one_batch_at_most(backend: Backend) -> io::Result<()> {
    // Windows' own kernel queues the packets of its timers itself.
    if backend.name() == "native" {
        return Ok(());
    }
    let pairs = ready(300)?;
    for room in [1, 8] {
        let port = port_with(backend, 2)?;
        for (key, pair) in pairs.iter().enumerate() {
            port.enable(&pair.ours, key, EventFilter::OUT, ONCE)?;
        }
        for _ in 0..5 {
            const DELAY: Duration = Duration::from_millis(3);
            let due = Instant::now() + DELAY + Duration::from_micros(1);
            port.set_alarm(DELAY, ALARM)?;
            // That it was set later than that counts, too.
            let set = Instant::now() + DELAY;
            let (mut batch, mut late, mut has_come) = (Vec::new(), 0, false);
            while !has_come {
                let begin = Instant::now();
                let mut entries = [Entry::default(); 8];
                let found = port.process(&mut batch, &mut entries[..room], Some(PATIENCE))?;
                batch.clear();
                for entry in found {
                    if entry.completion_key == ALARM {
                        assert!(
                            Instant::now() >= due - Duration::from_micros(1),
                            "too early"
                        );
                        has_come = true;
                        continue;
                    }
                    let socket = &pairs[entry.completion_key].ours;
                    let (key, filter) = (entry.completion_key, EventFilter::OUT);
                    batch.push(Registration::enable(socket, key, filter, ONCE));
                }
                late += usize::from(!has_come && begin > set + Duration::from_micros(2));
            }
            assert!(late <= usize::from(room == 1), "late by {late} calls");
            port.register_all(&mut batch)?;
        }
    }
    Ok(())
}

/// (a) Beside a queue that is never empty, a socket that is ready waits for eight packets at most before the kernel is asked.
#[for_every_backend(with_permits)]
fn e1_after_eight_packets_the_kernel_is_asked(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    for (room, most) in [(16, 1), (8, 1), (3, 3), (1, 10)] {
        for _ in 0..100 {
            port.post_all(&[Entry::new(7, 0, 0); 200])?;
            port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
            let mut entries = [Entry::default(); 16];
            let mut has_come = || -> io::Result<bool> {
                let found = port.dequeue(&mut entries[..room], Some(PATIENCE))?;
                Ok(found.iter().any(|it| it.completion_key == 1))
            };
            // This asks, and finds nothing.
            assert!(!has_come()?);
            pair.send()?;
            let mut calls = 1;
            while !has_come()? {
                calls += 1;
            }
            assert!(calls <= most, "room {room}: after {calls} calls");
            pair.drain()?;
            while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
        }
    }
    Ok(())
}

/// (a) Beside a queue that is never empty, a socket waits for one packet that takes long to handle, or two.
#[for_every_backend(with_permits)]
fn e1_packets_that_take_long_keep_no_socket_waiting(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    let pair = Pair::unix()?;
    for _ in 0..5 {
        port.post_all(&[Entry::new(7, 0, 0); 60])?;
        port.enable(&pair.ours, 1, EventFilter::IN, ONCE)?;
        let mut since = None;
        for packet in 0.. {
            if port.dequeue_one(Some(PATIENCE))?.completion_key == 1 {
                break;
            }
            compute(Duration::from_micros(200));
            if packet == 20 {
                pair.send()?;
                since = Some(packet);
            }
            assert!(since.is_none_or(|since| packet <= since + 2), "it waits");
        }
        pair.drain()?;
        while port.dequeue_one(Some(Duration::ZERO)).is_ok() {}
    }
    Ok(())
}
