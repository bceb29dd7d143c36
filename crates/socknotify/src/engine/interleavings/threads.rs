//! Who runs, waits, is woken and watches: nobody waits for ever, and no more run than may.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

/// Counts threads with packets in hand, and fails when there are more than places.
struct Running {
    now: AtomicUsize,
    places: usize,
}

impl Running {
    fn new(places: usize) -> Arc<Self> {
        Arc::new(Running {
            now: AtomicUsize::new(0),
            places,
        })
    }

    fn with_packet(&self, work: impl FnOnce()) {
        assert!(self.now.fetch_add(1, Ordering::SeqCst) < self.places);
        work();
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Two threads that each want one packet; the test supplies two.
fn two_consumers(places: usize, preemptions: usize, supply: fn(&Port)) {
    explore_waking(places, preemptions, move |port| {
        let running = Running::new(places);
        for socket in 0..2 {
            assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
        }
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (port, running) = (Arc::clone(&port), Arc::clone(&running));
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    running.with_packet(thread::yield_now);
                })
            })
            .collect();
        supply(&port);
        for consumer in consumers {
            consumer.join().unwrap();
        }
        assert_eq!(port.snapshot().queued, 0);
        assert_eq!(port.snapshot().waiting, 0);
    });
}

fn two_posts(port: &Port) {
    for key in 0..2 {
        assert!(port.post(&[Entry::new(key, 0, 0)], || {}).is_ok());
    }
}

fn two_sockets(port: &Port) {
    port.backend.become_readable(0);
    port.backend.become_readable(1);
}

fn a_socket_and_a_post(port: &Port) {
    port.backend.become_readable(0);
    assert!(port.post(&[Entry::new(1, 0, 0)], || {}).is_ok());
}

#[test]
fn f5_no_post_is_lost_with_one_permit() {
    two_consumers(1, 3, two_posts);
}

#[test]
fn f5_no_post_is_lost_with_two_permits() {
    two_consumers(2, 3, two_posts);
}

#[test]
fn f5_no_socket_is_lost_with_one_permit() {
    two_consumers(1, 3, two_sockets);
}

#[test]
fn f5_no_socket_is_lost_with_two_permits() {
    two_consumers(2, 3, two_sockets);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_one_permit() {
    two_consumers(1, 3, a_socket_and_a_post);
}

#[test]
fn f5_a_socket_and_a_post_are_not_lost_with_two_permits() {
    two_consumers(2, 3, a_socket_and_a_post);
}

#[test]
fn f5_three_threads_two_permits_three_posts() {
    explore_waking(2, 1, |port| {
        let running = Running::new(2);
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let (port, running) = (Arc::clone(&port), Arc::clone(&running));
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    running.with_packet(|| ());
                })
            })
            .collect();
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

#[test]
fn f5_three_threads_serve_two_sockets_over_and_over() {
    explore_waking(2, 2, |port| {
        let running = Running::new(2);
        for socket in 0..2 {
            assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
        }
        let serve = {
            let (port, running) = (Arc::clone(&port), Arc::clone(&running));
            move || {
                let mut batch = [raw(0)];
                for _ in 0..2 {
                    let mut entries = [Entry::default()];
                    assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
                    assert_eq!(batch[0].result(), Ok(()));
                    running.with_packet(|| ());
                    // It stays readable, so that there is always something for somebody.
                    batch = [enable(entries[0].completion_key as i32 - 10, ONESHOT)];
                }
                assert_eq!(port.process(&mut batch, &mut [], None, None), Ok(0));
            }
        };
        let others: Vec<_> = (0..2).map(|_| thread::spawn(serve.clone())).collect();
        two_sockets(&port);
        serve();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(port.snapshot().waiting, 0);
    });
}

#[test]
fn f4_a_lent_permit_lets_another_thread_go() {
    explore(3, || {
        let port = port(1);
        assert!(port.post(&[Entry::default(); 2], || {}).is_ok());
        assert!(dequeue(&port, None).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || dequeue(&port, None).map(drop))
        };
        let lent = port.lend_permit();
        other.join().unwrap().unwrap();
        drop(lent);
    });
}

#[test]
fn a_time_that_is_over_is_told_once_whoever_waits() {
    explore(3, || {
        let port = port(1);
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok()))
        };
        let time = Entry::new(77, 0, 0);
        assert!(port.post_after(Duration::ZERO, time).is_ok());
        let mut keys = [
            waiter.join().unwrap().unwrap().completion_key,
            dequeue(&port, None).unwrap().completion_key,
        ];
        keys.sort_unstable();
        assert_eq!(keys, [77, 99]);
        other.join().unwrap();
        assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
    });
}

#[test]
fn g4_closing_releases_everyone() {
    explore(3, || {
        let port = port(1);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || dequeue(&port, None))
            })
            .collect();
        port.close();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Err(Error::Closed));
        }
    });
}

/// A port whose limit rises whenever the watcher has nothing better to do.
fn adaptive_port(policy: WakePolicy) -> Port {
    Arc::new(Engine::new(Model::new(Kind::Sockets), 1, policy, true))
}

/// Each thread waits, with what it has dequeued, until all have dequeued: the limit rises by more than one, and whoever is released
/// has others released. One of them has dequeued before, and so may poll while another one watches.
fn all_wait_for_all(threads: usize, preemptions: usize, supply: fn(&Port)) {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(preemptions, move || {
            let port = adaptive_port(policy);
            for socket in 0..2 {
                assert_eq!(apply(&port, enable(socket, ONESHOT)), Ok(()));
            }
            assert!(port.post(&[Entry::default()], || {}).is_ok());
            assert!(dequeue(&port, None).is_ok());
            let met = Arc::new((Mutex::new(0), Condvar::new()));
            let serve = || {
                let (port, met) = (Arc::clone(&port), Arc::clone(&met));
                move || {
                    assert!(dequeue(&port, None).is_ok());
                    let (count, changed) = &*met;
                    let mut count = count.lock().unwrap();
                    *count += 1;
                    changed.notify_all();
                    while *count < threads {
                        count = changed.wait(count).unwrap();
                    }
                }
            };
            let others: Vec<_> = (1..threads).map(|_| thread::spawn(serve())).collect();
            let peer = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    // Also once all others wait.
                    thread::yield_now();
                    supply(&port);
                })
            };
            serve()();
            for other in others.into_iter().chain([peer]) {
                other.join().unwrap();
            }
            assert_eq!(port.snapshot().queued, 0);
        });
    }
}

#[test]
fn f4_a_thread_that_waits_for_the_next_packet_keeps_nobody_waiting() {
    all_wait_for_all(2, 3, two_posts);
}

/// Nothing but the watcher sees that the second socket is ready.
#[test]
fn f4_a_watcher_that_ends_watching_sees_who_polls_no_more() {
    all_wait_for_all(2, 3, two_sockets);
}

#[test]
fn f4_threads_that_wait_for_all_packets_keep_nobody_waiting() {
    all_wait_for_all(3, 1, |port| {
        two_sockets(port);
        assert!(port.post(&[Entry::default()], || {}).is_ok());
    });
}

/// Whoever watches gives up: another one watches. Nothing else sees that the socket is ready.
#[test]
fn f4_a_watcher_that_gives_up_has_another_one_watch() {
    for policy in [WakePolicy::Eager, WakePolicy::BOUNDED] {
        explore(2, move || {
            let port = adaptive_port(policy);
            assert!(port.post(&[Entry::default()], || {}).is_ok());
            assert!(dequeue(&port, None).is_ok());
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            let impatient = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    // It is over once it has slept.
                    let found = dequeue(&port, Some(Duration::from_nanos(2)));
                    port.give_permit_back();
                    found.is_ok()
                })
            };
            let patient = waiter(&port);
            port.backend.become_readable(0);
            if impatient.join().unwrap() {
                assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            }
            assert!(patient.join().unwrap().is_ok());
        });
    }
}

/// Each packet comes once the one before may have been taken: a wake-up that is over keeps no later one back.
#[test]
fn f5_posts_that_come_one_after_the_other_are_not_lost() {
    explore_waking(2, 2, |port| {
        let others: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    assert!(dequeue(&port, None).is_ok());
                    port.give_permit_back();
                })
            })
            .collect();
        for _ in 0..4 {
            assert!(port.post(&[Entry::default()], || {}).is_ok());
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

/// The limit falls while a thread is released.
#[test]
fn f2_a_limit_that_falls_under_a_thread_that_is_released_loses_nothing() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    assert!(dequeue(&port, None).is_ok());
                    port.give_permit_back();
                })
            })
            .collect();
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        port.limit.store(1, Ordering::Relaxed);
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        for other in others {
            other.join().unwrap();
        }
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// The limit falls under threads that hold permits, at any moment. Nothing is lost, and nobody holds one too many in the end.
#[test]
fn f2_a_limit_that_falls_under_its_holders_loses_nothing() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                assert!(dequeue(&port, None).is_ok());
                port.give_permit_back();
            })
        };
        assert!(dequeue(&port, None).is_ok());
        port.limit.store(1, Ordering::Relaxed);
        // The other one may wait for this permit.
        port.give_permit_back();
        other.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// The limit falls while all hold permits: whoever dequeues again then waits for one.
#[test]
fn f2_a_limit_that_falls_holds_back_who_dequeues_again() {
    explore_waking(1, 2, |port| {
        port.limit.store(2, Ordering::Relaxed);
        let running = Running::new(1);
        let fallen = Arc::new((Mutex::new(0), Condvar::new()));
        let serve = || {
            let (port, running, fallen) =
                (Arc::clone(&port), Arc::clone(&running), Arc::clone(&fallen));
            move || {
                assert!(dequeue(&port, None).is_ok());
                let mut holders = fallen.0.lock().unwrap();
                *holders += 1;
                if *holders == 2 {
                    port.limit.store(1, Ordering::Relaxed);
                    fallen.1.notify_one();
                }
                while *holders < 2 {
                    holders = fallen.1.wait(holders).unwrap();
                }
                drop(holders);
                assert!(dequeue(&port, None).is_ok());
                running.with_packet(thread::yield_now);
                port.give_permit_back();
            }
        };
        let other = thread::spawn(serve());
        assert!(port.post(&[Entry::default(); 4], || {}).is_ok());
        serve()();
        other.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// A thread gives up as it is released, or before: the packet goes to the other one.
#[test]
fn f5_a_thread_that_gives_up_loses_no_packet() {
    explore_waking(1, 3, |port| {
        let patient = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                port.give_permit_back();
            })
        };
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                // It is over once it was asked for.
                let found = dequeue(&port, Some(Duration::from_nanos(1)));
                port.give_permit_back();
                found.is_ok()
            })
        };
        assert!(port.post(&[Entry::default()], || {}).is_ok());
        if other.join().unwrap() {
            assert!(port.post(&[Entry::default()], || {}).is_ok());
        }
        patient.join().unwrap();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}

/// A permit is lent, given back and taken at any moment: none is lost, and no thread has two.
#[test]
fn f4_permits_are_counted_right_however_they_are_given_back() {
    explore(3, || {
        let port = port(2);
        assert!(port.post(&[Entry::default(); 3], || {}).is_ok());
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert!(dequeue(&port, None).is_ok());
                drop(port.lend_permit());
                let _ = dequeue(&port, Some(Duration::ZERO));
                // In the model, a thread's end is seen before its permit is given back.
                port.give_permit_back();
            })
        };
        assert!(dequeue(&port, None).is_ok());
        drop(port.lend_permit());
        other.join().unwrap();
        port.give_permit_back();
        let load = port.gate.load();
        assert_eq!((load.taken(), load.polling()), (0, 0));
    });
}
