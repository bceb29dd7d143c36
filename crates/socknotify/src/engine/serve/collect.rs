//! Collect packets: from the backend's reports and from the queue, into the caller's entries.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::backend::{Backend, Reports, Wait, Waited};
use crate::engine::table::interest::{ArmError, Flag, Interest, Mode, State, Word};
use crate::engine::table::{Delivery, Outcome, Report, Slot, Undelivered};
use crate::engine::threads::Levels;
use crate::engine::{Core, Engine, Packet, Scratch};
use crate::os::Fd;
use crate::support::burst;
use crate::support::deadline::Deadline;
use crate::support::sync::lock;
use crate::{Entry, Events};

/// How many packets and reports may come out, over all threads, before the backend is asked again.
const SKIPS: u32 = 8;

/// For so long they may, in microseconds.
const SKIPPED_FOR: u64 = 100;

/// No alarm is set.
pub(in crate::engine) const NEVER: u64 = u64::MAX;

/// In place of their number: the last call that asked had no room for all that is ready, but for more than one.
const FULL: u32 = u32::MAX;

/// With this many notifications of a persistent registration, its number is checked to refer to the same file.
/// The contract allows 64 false ones.
const CHECKED: u32 = 60;

/// What a wait reports, straight into the caller's entries.
struct Deliveries<'call, B: Backend> {
    engine: &'call Engine<B>,
    /// Level-triggered registrations that are delivered.
    levels: &'call mut Levels,
    /// Those that are free.
    entries: std::slice::IterMut<'call, Entry>,
}

impl<B: Backend> Reports for Deliveries<'_, B> {
    // A call for each report costs a third of what it takes.
    #[inline(always)]
    fn add(&mut self, report: Report) {
        let Some(slot) = self.engine.table.slot(report.fd) else {
            return;
        };
        let delivered = slot.deliver(&report);
        let Some(delivery) = delivered.or_else(|| self.engine.deliver_any(&report, slot)) else {
            return;
        };
        match delivery.word.mode() {
            Mode::Once | Mode::Kept => {}
            // Where a level is armed again each time, that shows whether its number refers to the same file.
            Mode::Level if B::KEEPS && !self.engine.is_valid(&report, slot) => return,
            Mode::Level => self.levels.push((report.fd, report.generation)),
            Mode::Edge if !self.engine.is_valid(&report, slot) => return,
            Mode::Edge => {}
        }
        if let Some(entry) = self.entries.next() {
            let overlapped = delivery.word.overlapped();
            *entry = Entry::notification(delivery.key, delivery.events).with_overlapped(overlapped);
        }
    }
}

impl<B: Backend> Engine<B> {
    /// Whether what is known to be ready may be delivered without asking the backend for more.
    #[inline]
    pub(in crate::engine) fn may_skip(&self) -> bool {
        // The model checker knows no time.
        let passed = || {
            self.now()
                .saturating_sub(self.asked.load(Ordering::Relaxed))
        };
        let has_asked_lately = || cfg!(interleavings) || passed() < SKIPPED_FOR;
        (1..=SKIPS).contains(&self.skips.load(Ordering::Relaxed)) && has_asked_lately()
    }

    fn now(&self) -> u64 {
        self.micros(Instant::now())
    }

    /// Microseconds since the port was made.
    fn micros(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.made).as_micros() as u64
    }

    /// The next call asks the backend.
    pub(crate) fn ask_next(&self) {
        if self.may_skip() {
            self.skips.store(0, Ordering::Relaxed);
        }
    }

    /// Count what came out of a call without asking the backend.
    fn on_skipped(&self, count: usize) {
        let order = Ordering::Relaxed;
        let _ = self.skips.fetch_update(order, order, |left| {
            let is_due = (1..=SKIPS).contains(&left);
            is_due.then(|| left.saturating_sub(count as u32))
        });
    }

    /// Count a call that did. If it came back with as many reports as it had room for, the next one has to ask too.
    #[inline]
    fn on_asked(&self, waited: &Waited, room: usize) {
        let left = match waited.is_full {
            true if room > 1 => FULL,
            true => 0,
            false => SKIPS,
        };
        if left == SKIPS {
            self.asked.store(self.now(), Ordering::Relaxed);
        }
        if self.skips.load(Ordering::Relaxed) != left {
            self.skips.store(left, Ordering::Relaxed);
        }
    }

    /// Arm the batch of the call, wait in the backend, and deliver what it reports. Returns how many entries were
    /// filled.
    #[inline(never)]
    pub(in crate::engine) fn ask(
        &self,
        scratch: &mut Scratch<B::Memory>,
        entries: &mut [Entry],
        timeout: Option<Duration>,
    ) -> (usize, Waited) {
        let wait = Wait {
            room: entries.len(),
            timeout,
            may_skip: self.may_skip(),
            has_more: self.skips.load(Ordering::Relaxed) == FULL,
        };
        let Scratch {
            memory,
            batch,
            packets,
            levels,
            ..
        } = scratch;
        let mut deliveries = Deliveries {
            engine: self,
            levels,
            entries: entries.iter_mut(),
        };
        let waited = self
            .backend
            .wait(&self.table, memory, batch, &wait, packets, &mut deliveries);
        let count = wait.room - deliveries.entries.len();
        match waited.asked {
            true => self.on_asked(&waited, wait.room),
            false if count > 0 => self.on_skipped(count),
            false => {}
        }
        if waited.alarmed || !scratch.packets.is_empty() {
            self.queue_others(scratch, waited.alarmed);
        }
        (count, waited)
    }

    #[cold]
    fn queue_others(&self, scratch: &mut Scratch<B::Memory>, alarmed: bool) {
        let mut core = lock(&self.core);
        if !core.closed {
            if alarmed {
                self.queue_alarm(&mut core);
            }
            let packets = scratch.packets.iter();
            let packets = packets.map(|entry| Packet::from(entry.completion()));
            core.queue.extend(packets);
            self.publish_queued(&core);
        }
        scratch.packets.clear();
    }

    /// Set the packet that is queued at a time. `None`: never.
    pub(in crate::engine) fn set_alarm(&self, core: &mut Core, at: Option<Instant>, packet: Entry) {
        let due = at.map(|at| at.saturating_duration_since(self.made));
        // No earlier than asked for.
        let due = due.map_or(NEVER, |due| due.as_nanos().div_ceil(1000) as u64);
        self.due.store(due, Ordering::Relaxed);
        core.alarm = packet;
    }

    /// The backend reports an alarm behind all that is ready. So who dequeues looks whether it is due.
    #[inline]
    pub(in crate::engine) fn queue_alarm_if_due(
        &self,
        scratch: &mut Scratch<B::Memory>,
        wait: &Deadline,
    ) {
        let due = self.due.load(Ordering::Relaxed);
        // The model checker knows no time.
        if due != NEVER && !cfg!(interleavings) && self.micros(wait.began()) >= due {
            self.queue_others(scratch, true);
        }
    }

    /// The alarm may have gone off. It may have been set to another time meanwhile.
    fn queue_alarm(&self, core: &mut Core) {
        let due = self.due.load(Ordering::Relaxed);
        if due == NEVER {
            return;
        }
        let left = due.saturating_sub(self.now());
        // The model checker knows no time: it is over.
        if left == 0 || cfg!(interleavings) {
            self.due.store(NEVER, Ordering::Relaxed);
            // Behind no wake-ups, of which there may be as many as connections.
            core.ahead.push_front(core.alarm.posted().into());
        } else {
            // If it cannot be set, there is no memory for it; the next alarm tries again.
            let _ = self.backend.set_alarm(Duration::from_micros(left));
        }
    }

    /// A persistent registration is notified. Whether its number refers to the same file, if it is time to find out.
    #[inline]
    fn is_valid(&self, report: &Report, slot: &Slot) -> bool {
        let count = slot.count_delivery();
        if count < CHECKED {
            return true;
        }
        let is_valid = self.is_still_registered(report.fd, report.generation, slot);
        if is_valid {
            slot.on_checked(count);
        }
        is_valid
    }

    /// Deliver a report that is not of the usual kind, if it is a notification.
    #[cold]
    fn deliver_any(&self, report: &Report, slot: &Slot) -> Option<Delivery> {
        match slot.deliver_any(report) {
            Ok(delivery) => return Some(delivery),
            Err(Undelivered::Unwanted(word)) => self.quiet(report.fd, slot, word),
            Err(Undelivered::Stale(word)) if !word.is_live() => {
                self.stale.fetch_add(1, Ordering::Relaxed);
            }
            // What was wanted earlier. If it is closed by now, there is nothing to do; if the system has no memory, whoever
            // has armed that late tries again.
            Err(Undelivered::Stale(word)) if B::IS_SILENT_BEHIND && word.is_due() => {
                let mut interest = Interest {
                    fd: report.fd,
                    word,
                };
                let arm = |interest: &Interest| self.backend.arm(interest, false);
                self.table.arm_latest(&mut interest, arm);
            }
            Err(Undelivered::Stale(_) | Undelivered::Held) => {}
        }
        None
    }

    /// Nothing wanted was reported: hang-ups and errors cannot be masked out. It would be reported again whenever it is
    /// armed. So until something wanted is delivered, it is armed as an edge, once.
    fn quiet(&self, fd: Fd, slot: &Slot, word: Word) {
        let quieted = slot.change(|current| {
            let is_same = current.generation() == word.generation() && current.is_enabled();
            let is_due = matches!(current.mode(), Mode::Once | Mode::Level)
                && !current.has(Flag::QUIET)
                && !current.has(Flag::DELIVERED);
            (is_same && is_due).then(|| current.with(Flag::QUIET))
        });
        if let Ok((_, word)) = quieted {
            // If it is closed, that is found out when the number is registered again.
            let mut interest = Interest { fd, word };
            let arm = |interest: &Interest| self.backend.arm(interest, false);
            let outcome = slot.arm_latest(&mut interest, arm);
            if let Outcome::Failed(ArmError::Refused(_)) | Outcome::Overtaken = outcome {
                self.postpone(&mut lock(&self.core), &interest);
            }
        }
    }

    /// Move queued packets to the caller. Returns how many.
    ///
    /// Those that do not wait behind others, and the others, have half of the room each, or what the other half has no use for.
    /// With an odd room they take turns.
    pub(in crate::engine) fn take_packets(&self, entries: &mut [Entry]) -> usize {
        let mut core = lock(&self.core);
        let (room, ahead, behind) = (entries.len(), core.ahead.len(), core.queue.len());
        let half = match core.is_queue_due {
            true => room / 2,
            false => room.div_ceil(2),
        };
        if room % 2 == 1 && behind > 0 {
            core.is_queue_due = !core.is_queue_due && ahead > 0;
        }
        let ahead = ahead.min(half.max(room.saturating_sub(behind)));
        let mut count = 0;
        while count < room {
            let packet = match count < ahead {
                true => core.ahead.pop_front(),
                false => core.queue.pop_front(),
            };
            let Some(packet) = packet else { break };
            if let Some((fd, generation)) = packet.notified {
                self.on_notified(&mut core, fd, generation);
            }
            entries[count] = packet.entry;
            count += 1;
        }
        burst::shrink(&mut core.queue);
        burst::shrink(&mut core.ahead);
        self.publish_queued(&core);
        self.on_skipped(count);
        // This thread was on its way. Others are, if its call finds that something is left.
        self.gate.lower_waking();
        count
    }

    /// Queue the last notification of a registration.
    pub(in crate::engine) fn queue_removal(&self, core: &mut Core, fd: Fd, slot: &Slot) {
        core.queue.push_back(Packet {
            entry: Entry::notification(slot.key(), Events::REMOVE),
            notified: Some((fd, slot.word().generation())),
        });
        self.publish_queued(core);
    }

    /// The last notification of a registration is dequeued.
    fn on_notified(&self, core: &mut Core, fd: Fd, generation: u32) {
        let removed = self.table.entry(fd).change(|word| {
            let is_this = word.generation() == generation && word.state() == State::Removing;
            is_this.then(|| word.with_state(State::Removed))
        });
        if removed.is_ok() {
            core.registered -= 1;
            self.owner.release(fd);
        }
    }
}
