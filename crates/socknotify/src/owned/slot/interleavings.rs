//! Every interleaving of a few threads that arm, interrupt and take one connection. See `.ci/interleavings`.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::engine::interleavings::{Port, do_and_dequeue, explore_owning};
use crate::engine::owned::Left;
use crate::owned::slot::connections::Wish;
use crate::owned::slot::packet::{Packet, is_to_take};
use crate::owned::slot::record::{Put, Reasons, Record, Seen};
use crate::values::entry::Arming;
use crate::{Entry, Error, EventFilter, Events};

const KEY: usize = 10;

/// A slot of a port. What is in it is a number.
struct Slot {
    port: Port,
    record: Mutex<Record<u32>>,
}

/// What was taken.
type Taken = (u32, Option<Reasons>, Events);

impl Slot {
    fn new(port: &Port) -> Arc<Self> {
        assert_eq!(port.adopt(0, KEY, true), Ok(Ok(())));
        Arc::new(Slot {
            port: Arc::clone(port),
            record: Mutex::new(Record::default()),
        })
    }

    /// As `Connections::put` does. Returns what is left to do.
    fn put(&self, value: u32, is_drained: bool) -> Left {
        let wish = Wish {
            is_drained,
            ..Wish::of(EventFilter::IN)
        };
        let mut record = self.record.lock().unwrap();
        let put = record.put(value, &wish, |arming, is_drained| {
            self.port
                .enable_owned(0, KEY, wish.filter, arming, is_drained)
        });
        match put {
            Ok(Put::Armed { left, .. }) => left,
            Ok(Put::Report(arming)) => {
                if self.post_report(arming) {
                    record.posted();
                }
                Left::Nothing
            }
            // The port is closed.
            Err(_) => Left::Nothing,
        }
    }

    /// As `Connections::post_report` does.
    fn post_report(&self, arming: Arming) -> bool {
        let packet = Packet::Reported(arming, Events::empty());
        self.port.post_ahead(packet.of_slot(KEY)).is_ok()
    }

    /// As `Connections::interrupt` does, with the slot locked.
    fn interrupt(&self, record: &mut Record<u32>, reason: Reasons) {
        let Some(arming) = record.interrupt(reason) else {
            return;
        };
        if self.port.is_dequeued(0, KEY, arming) {
            return;
        }
        if self.post_report(arming) && self.claim(arming) {
            record.posted();
        }
    }

    fn cancel(&self) {
        self.interrupt(&mut self.record.lock().unwrap(), Reasons::CANCELLED);
    }

    fn claim(&self, arming: Arming) -> bool {
        self.port.claim_owned(0, KEY, arming)
    }

    /// As a worker does: arm what is to be armed, and dequeue until there is something to take.
    fn serve(&self, mut left: Left) -> Result<Taken, Error> {
        let mut entries = [Entry::default()];
        loop {
            do_and_dequeue(&self.port, KEY, left, &mut entries)?;
            left = Left::Nothing;
            let event = &mut entries[0];
            if !is_to_take(event) {
                let mut record = self.record.lock().unwrap();
                match record.look(event, |_| true) {
                    Seen::Nothing => continue,
                    Seen::Arm(arming, filter) => {
                        let enabled = self.port.enable_owned(0, KEY, filter, arming, false);
                        left = enabled.unwrap_or(Left::Nothing);
                        continue;
                    }
                    Seen::Event => {}
                }
            }
            // Whoever has dequeued it has it.
            let taken = self.record.lock().unwrap().take(event);
            let (value, reason) = taken.expect("it is there");
            return Ok((value, reason, event.events()));
        }
    }

    /// Serve until it was cancelled once, and read once.
    fn serve_until_both(&self, mut left: Left, seen: &Mutex<(u32, u32)>) {
        let model = self.port.backend();
        while let Ok((value, reason, _)) = self.serve(left) {
            let mut seen = seen.lock().unwrap();
            match reason {
                Some(Reasons::CANCELLED) => seen.0 += 1,
                None if model.is_readable(0) => {
                    model.drain(0);
                    seen.1 += 1;
                }
                // An event that is out of date.
                None => {}
                other => panic!("{other:?}"),
            }
            if *seen == (1, 1) {
                self.port.close();
                return;
            }
            drop(seen);
            let is_drained = !model.is_readable(0);
            left = self.put(value, is_drained);
        }
    }
}

/// Two threads serve a connection, which one of them arms late, while it becomes ready and is cancelled.
#[test]
fn f5_no_event_is_lost_when_a_wait_is_cancelled() {
    explore_owning(2, |port| {
        let slot = Slot::new(port);
        let seen = Arc::new(Mutex::new((0, 0)));
        let late = slot.put(7, false);
        let other = {
            let (slot, seen) = (Arc::clone(&slot), Arc::clone(&seen));
            thread::spawn(move || slot.serve_until_both(late, &seen))
        };
        let peer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.port.backend().become_readable(0))
        };
        slot.cancel();
        slot.serve_until_both(Left::Nothing, &seen);
        other.join().unwrap();
        peer.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), (1, 1));
    });
}

/// A thread that holds it arms it, while it is cancelled and its deadline passes: which may be too late.
#[test]
fn each_reason_is_reported_once() {
    explore_owning(3, |port| {
        let slot = Slot::new(port);
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let mut record = slot.record.lock().unwrap();
                if record.is_armed() {
                    slot.interrupt(&mut record, Reasons::TIMED_OUT);
                }
            })
        };
        let holder = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let mut reasons = Vec::new();
                while !reasons.contains(&Some(Reasons::CANCELLED)) {
                    let to_arm = slot.put(7, false);
                    reasons.push(slot.serve(to_arm).unwrap().1);
                }
                reasons
            })
        };
        slot.cancel();
        let reasons = holder.join().unwrap();
        other.join().unwrap();
        let timed_out = reasons.contains(&Some(Reasons::TIMED_OUT));
        assert_eq!(reasons.len(), 1 + usize::from(timed_out));
    });
}

/// As `Port::disarm` does, beside a thread that waits for it.
#[test]
fn what_is_taken_out_is_reported_to_nobody() {
    explore_owning(3, |port| {
        let slot = Slot::new(port);
        let to_arm = slot.put(7, false);
        let peer = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.port.backend().become_readable(0))
        };
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.serve(to_arm))
        };
        let claim = |arming| slot.claim(arming);
        let taken = slot.record.lock().unwrap().take_out(claim);
        if let Some(value) = taken {
            // It is armed again as if it were drained: what has become ready meanwhile is found all the same.
            assert_eq!(value, 7);
            let again = slot.put(value, true);
            assert_eq!(do_and_dequeue(&slot.port, KEY, again, &mut []), Ok(0));
        }
        assert_eq!(other.join().unwrap(), Ok((7, None, Events::IN)));
        peer.join().unwrap();
    });
}

/// As `Connections::put` and `Connections::end` do.
#[test]
fn nothing_is_put_into_a_closed_port() {
    explore_owning(3, |port| {
        let slot = Slot::new(port);
        let closed = Arc::new(AtomicBool::new(false));
        let other = {
            let (slot, closed) = (Arc::clone(&slot), Arc::clone(&closed));
            thread::spawn(move || {
                let mut record = slot.record.lock().unwrap();
                if closed.load(Ordering::Relaxed) {
                    return Some(7);
                }
                let put = record.put(7, &Wish::of(EventFilter::IN), |arming, is_drained| {
                    slot.port
                        .enable_owned(0, KEY, EventFilter::IN, arming, is_drained)
                });
                put.err().map(|it| it.0)
            })
        };
        closed.store(true, Ordering::Relaxed);
        slot.port.close();
        let left = slot.record.lock().unwrap().take_any();
        let back = other.join().unwrap();
        assert_eq!(left.iter().chain(&back).count(), 1);
        assert_eq!(slot.record.lock().unwrap().take_any(), None);
    });
}
