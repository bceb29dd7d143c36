//! Arming, removing and adopting sockets: nothing is lost, or comes under another key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loom::thread;

use super::*;
use crate::engine::table::interest::Flag;
use crate::os::Fd;

#[test]
fn c5_what_held_at_enable_hides_no_edge() {
    explore(3, || {
        let port = port(2);
        port.backend.become_readable(0);
        let waiter = waiter(&port);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        port.backend.drain(0);
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
    });
}

#[test]
fn c5_a_change_of_the_filter_hides_no_edge() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                for filter in [EventFilter::ALL, EventFilter::IN] {
                    let mut again = enable(0, EDGE);
                    again.event_filter = filter;
                    assert_eq!(apply(&port, again), Ok(()));
                }
            })
        };
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        other.join().unwrap();
    });
}

/// One thread has the notification, and the other waits. The level comes again when the first one dequeues, gives its
/// place back or ends.
fn a_level_comes_again(places: usize, then: fn(&Port)) {
    explore(3, move || {
        let port = port(places);
        let level = Trigger::PERSISTENT | Trigger::LEVEL;
        assert_eq!(apply(&port, enable(0, level)), Ok(()));
        let other = waiter(&port);
        let this = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                assert_eq!(dequeue(&port, None).unwrap().completion_key, 10);
                then(&port);
            })
        };
        port.backend.become_readable(0);
        this.join().unwrap();
        let entry = other.join().unwrap().unwrap();
        assert_eq!((entry.completion_key, entry.events()), (10, Events::IN));
    });
}

#[test]
fn c4_a_level_comes_again_when_its_thread_ends() {
    a_level_comes_again(1, |_| ());
    a_level_comes_again(2, |_| ());
}

#[test]
fn c4_a_level_comes_again_when_its_permit_is_given_back() {
    a_level_comes_again(1, |port| port.give_permit_back());
}

#[test]
fn c4_a_level_comes_again_when_its_thread_dequeues() {
    a_level_comes_again(2, |port| {
        let _ = dequeue(port, Some(Duration::ZERO));
    });
}

#[test]
fn c8_two_threads_that_arm_a_one_shot_do_not_silence_it() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let waiter = waiter(&port);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || apply(&port, enable(0, ONESHOT)))
        };
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        port.backend.become_readable(0);
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

/// Two threads enable a registration with different filters. The backend ends up with the later one.
#[test]
fn a3_the_later_filter_is_watched() {
    for waits in [false, true] {
        explore(3, move || {
            let port = port(2);
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            let other = {
                let port = Arc::clone(&port);
                thread::spawn(move || {
                    let mut batch = [enable(0, ONESHOT)];
                    batch[0].event_filter = EventFilter::HANGUP;
                    let mut entries = [Entry::default()];
                    let room = usize::from(waits);
                    let outcome = port.process(&mut batch, &mut entries[..room], None, None);
                    assert_eq!((outcome, batch[0].result()), (Ok(room), Ok(())));
                })
            };
            assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            if waits {
                let packet = Entry::new(99, 0, 0);
                assert_eq!(port.post(&[packet], || {}), Ok(()));
            }
            other.join().unwrap();
            let wanted = port
                .table
                .interest(Fd(0))
                .map(|interest| interest.word.filter());
            let armed = port.backend.kernel().sockets[0].interest;
            assert_eq!(armed.map(|interest| interest.word.filter()), wanted);
        });
    }
}

#[test]
fn c8_a_one_shot_has_one_holder() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let held = Arc::new(AtomicBool::new(false));
        let consumer = {
            let port = Arc::clone(&port);
            move || {
                let mut batch = [];
                let mut entries = [Entry::default(); 2];
                assert_eq!(port.process(&mut batch, &mut entries, None, None), Ok(1));
                assert!(!held.swap(true, Ordering::SeqCst));
                thread::yield_now();
                held.store(false, Ordering::SeqCst);
                // The socket is still readable: this brings it to the other thread.
                assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
            }
        };
        let other = thread::spawn(consumer.clone());
        port.backend.become_readable(0);
        consumer();
        other.join().unwrap();
    });
}

#[test]
fn b4_the_removal_is_the_last_notification() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let consumer = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                let mut masks = Vec::new();
                while masks
                    .last()
                    .is_none_or(|last: &Events| !last.contains(Events::REMOVE))
                {
                    masks.push(dequeue(&port, None).unwrap().events());
                }
                assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
                masks
            })
        };
        port.backend.become_readable(0);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let masks = consumer.join().unwrap();
        let may_be = [vec![Events::IN, Events::REMOVE], vec![Events::REMOVE]];
        assert!(may_be.contains(&masks), "{masks:?}");
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

/// A thread that waits all the time may have been notified before; nobody is after it.
#[test]
fn x1_what_was_deregistered_is_not_notified() {
    for trigger in [ONESHOT, EDGE] {
        explore_kinds(3, move |port| {
            assert_eq!(apply(&port, enable(0, trigger)), Ok(()));
            let is_over = Arc::new(AtomicBool::new(false));
            let consumer = {
                let (port, is_over) = (Arc::clone(&port), Arc::clone(&is_over));
                thread::spawn(move || {
                    loop {
                        let was_over = is_over.load(Ordering::SeqCst);
                        match dequeue(&port, None).unwrap().completion_key {
                            99 => return,
                            key => assert!(key == 10 && !was_over),
                        }
                    }
                })
            };
            let peer = {
                let port = Arc::clone(&port);
                thread::spawn(move || port.backend.become_readable(0))
            };
            assert_eq!(apply(&port, deregister(0)), Ok(()));
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
            assert_eq!(port.snapshot().registrations, Some(0));
            assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            consumer.join().unwrap();
            peer.join().unwrap();
            assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
        });
    }
}

/// Registered anew with another key, while a thread has a report of the old registration in hand.
#[test]
fn x1_nothing_of_the_old_registration_comes_with_the_new_one() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let peer = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        let other = waiter(&port);
        assert_eq!(apply(&port, deregister(0)), Ok(()));
        let mut again = enable(0, ONESHOT);
        again.completion_key = 20;
        assert_eq!(apply(&port, again), Ok(()));
        // It is readable in the end, and so the new one is notified, too.
        let first = other.join().unwrap().unwrap().completion_key;
        if first == 10 {
            assert_eq!(dequeue(&port, None).unwrap().completion_key, 20);
        } else {
            assert_eq!(first, 20);
        }
        peer.join().unwrap();
        assert_eq!(dequeue(&port, Some(Duration::ZERO)), Err(Error::TimedOut));
    });
}

#[test]
fn x2_what_holds_or_begins_to_hold_at_enable_is_notified() {
    explore(3, || {
        let port = port(2);
        let waiter = waiter(&port);
        let peer = {
            let port = Arc::clone(&port);
            thread::spawn(move || port.backend.become_readable(0))
        };
        assert_eq!(apply(&port, enable(0, EDGE | Trigger::INITIAL)), Ok(()));
        assert_eq!(waiter.join().unwrap().unwrap().events(), Events::IN);
        peer.join().unwrap();
    });
}

/// Enable the adopted socket, and arm it, if that is to be done, in the call that dequeues. Returns the key of what comes.
fn arm_and_dequeue(port: &Port, is_drained: bool) -> usize {
    let left = enable_owned(port, is_drained);
    let mut entries = [Entry::default()];
    assert_eq!(do_and_dequeue(port, 10, left, &mut entries), Ok(1));
    entries[0].completion_key
}

/// This thread arms an adopted socket and dequeues, while it becomes readable, a packet is posted, and another dequeues.
fn an_adopted_socket_is_heard(arm_and_dequeue: fn(&Port) -> usize) {
    explore_owning(3, move |port| {
        adopted(port);
        let other = {
            let port = Arc::clone(port);
            thread::spawn(move || dequeue(&port, None).unwrap().completion_key)
        };
        let peer = {
            let port = Arc::clone(port);
            thread::spawn(move || {
                port.backend.become_readable(0);
                assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
            })
        };
        let keys = [arm_and_dequeue(port), other.join().unwrap()];
        assert!(keys == [10, 99] || keys == [99, 10]);
        peer.join().unwrap();
    });
}

#[test]
fn f5_an_adopted_socket_is_heard_however_it_meets_arming() {
    an_adopted_socket_is_heard(|port| arm_and_dequeue(port, false));
}

/// Its thread has drained it, and arms it without a call if it can.
#[test]
fn f5_a_drained_socket_is_heard_however_it_is_armed() {
    an_adopted_socket_is_heard(|port| arm_and_dequeue(port, true));
}

/// A registration is armed twice in one call, notified, and removed before the call arms it
/// for the second time. Its socket may be closed then.
#[test]
fn g5_what_is_told_too_late_does_not_reach_the_next_socket() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        port.backend.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        port.backend.drain(0);
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || {
                let mut batch = [enable(0, ONESHOT), enable(0, ONESHOT)];
                assert_eq!(port.process(&mut batch, &mut [], None, None), Ok(0));
                // The second one may come between the removal and its notification (A5), or while the number changes
                // hands, and so is no open socket for a moment (B10).
                for entry in &batch {
                    let may_be = [
                        Ok(()),
                        Err(RegistrationError::RemovePending),
                        Err(RegistrationError::NotASocket),
                    ];
                    let result = entry.result();
                    assert!(may_be.contains(&result), "{result:?}");
                }
            })
        };
        port.backend.become_readable(0);
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::IN);
        assert_eq!(apply(&port, remove(0)), Ok(()));
        assert_eq!(dequeue(&port, None).unwrap().events(), Events::REMOVE);
        port.backend.replace(0);
        other.join().unwrap();
        // The second entry may come after the removal, and is a registration of its own.
        assert!(port.snapshot().registrations <= Some(1));
        port.backend.become_readable(0);
        let found = dequeue(&port, Some(Duration::ZERO));
        assert!(found.is_err() || port.snapshot().registrations == Some(1));
    });
}

/// A thread waits, and perhaps has a report in hand, while what was registered is closed, and something else that is
/// ready has its number and is registered.
#[test]
fn x5_a_reused_descriptor_is_notified_under_its_own_key() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let other = waiter(&port);
        port.backend.become_readable(0);
        port.backend.replace(0);
        let mut next = enable(0, ONESHOT);
        next.completion_key = 20;
        assert_eq!(apply(&port, next), Ok(()));
        port.backend.become_readable(0);
        if other.join().unwrap().unwrap().completion_key == 10 {
            assert_eq!(dequeue(&port, None).unwrap().completion_key, 20);
        }
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let entry = dequeue(&port, None).unwrap();
        assert_eq!((entry.completion_key, entry.events()), (20, Events::REMOVE));
        assert_eq!(port.snapshot().registrations, Some(0));
    });
}

#[test]
fn g6_a_removal_races_with_arming() {
    explore_kinds(3, |port| {
        assert_eq!(apply(&port, enable(0, ONESHOT)), Ok(()));
        let other = {
            let port = Arc::clone(&port);
            thread::spawn(move || apply(&port, enable(0, ONESHOT)))
        };
        assert_eq!(apply(&port, remove(0)), Ok(()));
        let entry = dequeue(&port, None).unwrap();
        assert_eq!((entry.completion_key, entry.events()), (10, Events::REMOVE));
        match other.join().unwrap() {
            // Armed before the removal, or too late for the old registration: then there is a new one.
            Ok(()) | Err(RegistrationError::RemovePending) => {}
            Err(other) => panic!("unexpected: {other}"),
        }
        assert!(port.snapshot().registrations <= Some(1));
    });
}

/// Reports of a registration go to its own key, whatever is registered under its number next.
#[test]
fn g6_a_delivery_reads_the_key_of_its_own_registration() {
    explore(3, || {
        let port = port(2);
        assert_eq!(apply(&port, enable(0, EDGE)), Ok(()));
        let other = waiter(&port);
        port.backend.become_readable(0);
        assert_eq!(apply(&port, deregister(0)), Ok(()));
        port.backend.drain(0);
        let mut next = enable(0, EDGE);
        next.completion_key = 20;
        assert_eq!(apply(&port, next), Ok(()));
        let word = port.table.interest(Fd(0)).map(|interest| interest.word);
        assert!(word.is_some_and(|word| word.has(Flag::KNOWN)));
        assert!(port.post(&[Entry::new(99, 0, 0)], || {}).is_ok());
        let key = other.join().unwrap().unwrap().completion_key;
        assert!(key == 10 || key == 99, "{key}");
    });
}
