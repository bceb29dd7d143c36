//! `CompletionPort`: few packets, and threads that wait for ever, for moments, or not at all: none waits beside a thread that waits
//! (F5), also where nothing else happens afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use simulated_std::simulation;
use simulated_std::thread;
use simulated_std::time::Instant;
use socknotify_simulation::{CompletionPort, Entry, Error, WakePolicy};

use crate::{explore, microseconds, one_in, pick, random};

fn dequeue(port: &CompletionPort, dequeued: &AtomicUsize) {
    let timeouts = pick(&[
        [None, None, None],
        [None, Some(10), Some(100)],
        [Some(0), Some(20), Some(1000)],
    ]);
    loop {
        let timeout = pick(&timeouts).map(Duration::from_micros);
        let mut entries = [Entry::default(); 2];
        let room = 1 + random(2);
        match port.dequeue(&mut entries[..room], timeout) {
            Ok(found) => {
                dequeued.fetch_add(found.len(), Relaxed);
                match random(8) {
                    0 => simulation::compute(microseconds(100)),
                    1 => thread::sleep(microseconds(1000)),
                    2 => port.blocking(|| thread::sleep(microseconds(200))),
                    3 => port.release(),
                    _ => {}
                }
            }
            Err(Error::Closed) => return,
            Err(error) => {
                assert_eq!(error, Error::TimedOut);
                thread::sleep(Duration::from_micros(1) + microseconds(30));
            }
        }
    }
}

fn scenario() {
    let mut builder = CompletionPort::builder()
        .concurrency(1 + random(2))
        .wake_policy(pick(&[WakePolicy::Eager, WakePolicy::BOUNDED]));
    if one_in(2) {
        builder = builder.strict();
    }
    let port = Arc::new(builder.build().expect("a port"));
    let dequeued = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..1 + random(3))
        .map(|_| {
            let (port, dequeued) = (Arc::clone(&port), Arc::clone(&dequeued));
            thread::spawn(move || dequeue(&port, &dequeued))
        })
        .collect();
    let counts = [random(4), 1 + random(4)];
    let post = |count| {
        let port = Arc::clone(&port);
        move || {
            for _ in 0..count {
                port.post(Entry::default()).expect("it is open");
                if one_in(2) {
                    thread::sleep(microseconds(60));
                }
            }
        }
    };
    let posting = thread::spawn(post(counts[0]));
    post(counts[1])();
    posting.join().expect("no panic");
    let begin = Instant::now();
    while dequeued.load(Relaxed) < counts[0] + counts[1] {
        let time = begin.elapsed();
        assert!(time < Duration::from_millis(100), "a packet never comes");
        thread::sleep(Duration::from_millis(1));
    }
    port.close();
    for thread in threads {
        thread.join().expect("no panic");
    }
    let snapshot = port.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting), (Some(0), 0));
}

#[test]
fn packets() {
    explore("packets", 3000, false, scenario);
}
