//! Reports: from the backend to the table and the queue.

use super::backend::{BATCH, Backend, Readiness, Report, Validity, Wait};
use super::interest::{GENERATIONS, Mode};
use super::table::State;
use super::{Core, Engine, Scratch};
use crate::Entry;

/// Whether a generation is newer than another.
pub(crate) fn is_newer(generation: u32, than: u32) -> bool {
    let age = generation.wrapping_sub(than) & GENERATIONS;
    age != 0 && age <= GENERATIONS / 2
}

impl<B: Backend> Engine<B> {
    /// Take all present reports of the backend, without waiting. The lock stays held.
    pub(super) fn fetch(&self, core: &mut Core<B>) {
        let mut scratch = core.take_scratch();
        // A level-triggered socket is reported again and again, after all others.
        let mut left = core.table.len();
        loop {
            let count = self.fetch_into(core, &mut scratch);
            left = left.saturating_sub(count);
            if count < BATCH || left == 0 {
                break;
            }
        }
        core.scratch.push(scratch);
    }

    /// Take one batch of reports, without waiting. Returns how many there were.
    fn fetch_into(&self, core: &mut Core<B>, scratch: &mut Scratch<B>) -> usize {
        let began = core.generation;
        let Scratch {
            memory, reports, ..
        } = scratch;
        self.backend
            .wait(&self.wanted, memory, &mut [], reports, &Wait::NOW);
        let count = reports.reports.len();
        self.take_reports(core, scratch, began);
        // A wake-up is for a waiting thread; pass it on.
        if scratch.reports.woken {
            let _ = self.backend.wake(None);
        }
        count
    }

    /// Queue what the system reports before a packet is queued. If a thread waits in the backend, it does that itself.
    ///
    /// Level-triggered sockets that wait in the queue are reported again and again. If a whole batch of reports has
    /// nothing else, this stops, so that not each packet walks over all of them.
    pub(super) fn fetch_before_packet(&self, core: &mut Core<B>) {
        let is_silent = core.table.len() == 0 && !self.backend.has_packets();
        if is_silent || core.scheduler.is_anyone_polling() {
            return;
        }
        let mut scratch = core.take_scratch();
        loop {
            let queued = core.queue.len();
            let count = self.fetch_into(core, &mut scratch);
            if count < BATCH || core.queue.len() == queued {
                break;
            }
        }
        core.scratch.push(scratch);
    }

    /// Merge into the notifications at the head of the queue which conditions have become true since they were queued.
    #[inline]
    pub(super) fn refresh(&self, core: &mut Core<B>, scratch: &mut Scratch<B>, room: usize) {
        if core.queue.len() > 0 && core.scheduler.has_place() {
            self.refresh_head(core, scratch, room);
        }
    }

    fn refresh_head(&self, core: &mut Core<B>, scratch: &mut Scratch<B>, room: usize) {
        let interests = &mut scratch.interests;
        let mut has_edges = false;
        interests.clear();
        core.queue.notified(&mut core.table, room, |slot, socket| {
            if let (State::Enabled, Some(mode)) = (slot.state, slot.armed) {
                match mode {
                    Mode::Edge => has_edges = true,
                    mode => interests.push(slot.interest(socket, mode)),
                }
            }
        });
        if !interests.is_empty() {
            self.merge_what_holds(core, scratch);
        }
        if has_edges || B::REPORTS_POLLED && !scratch.interests.is_empty() {
            self.fetch(core);
        }
    }

    /// Notify the conditions that hold for these sockets, if they are still enabled.
    pub(super) fn merge_what_holds(&self, core: &mut Core<B>, scratch: &mut Scratch<B>) {
        let Scratch {
            memory,
            interests,
            readiness,
            ..
        } = scratch;
        self.backend.poll_now(memory, interests, readiness);
        let Core { table, queue, .. } = core;
        for (interest, readiness) in interests.iter().zip(readiness) {
            let events = match *readiness {
                Readiness::Ready(events) => events,
                Readiness::NotReady => continue,
                Readiness::Unknown => {
                    if interest.mode() == Mode::Kept {
                        // This has it reported once more. If it cannot be armed, it is not in the set.
                        let _ = self.backend.arm(interest, false);
                    }
                    continue;
                }
            };
            let slot = table.slot(interest.socket);
            if let Some(slot) = slot.filter(|slot| slot.state == State::Enabled) {
                slot.note(events);
                let events = events & slot.wanted();
                if !events.is_empty() {
                    queue.notify(slot, interest.socket, events);
                }
            }
        }
    }

    /// Turn reports into notifications. `began` is the port's generation when the thread began to wait. Returns whether
    /// a report was of a connection that a thread holds.
    pub(super) fn take_reports(
        &self,
        core: &mut Core<B>,
        scratch: &mut Scratch<B>,
        began: u32,
    ) -> bool {
        let Scratch {
            reports, interests, ..
        } = scratch;
        let mut is_stray = false;
        interests.clear();
        if reports.alarmed {
            let alarm = core.alarm;
            core.queue.extend([alarm.posted()]);
        }
        if !reports.packets.is_empty() {
            let packets = reports.packets.iter().copied();
            core.queue.extend(packets.map(Entry::completion));
        }
        for report in &reports.reports {
            if report.validity != Validity::Valid && !self.is_valid(core, report) {
                continue;
            }
            let Core { table, queue, .. } = core;
            let Some(slot) = table.slot(report.socket).filter(|it| it.is_of(report)) else {
                continue;
            };
            slot.note(report.events);
            if slot.state != State::Enabled {
                slot.has_risen = true;
                is_stray |= slot.is_owned;
                continue;
            }
            if slot.armed == Some(Mode::Kept) && is_newer(slot.generation, began) {
                // It was armed after that: what was reported may have been dealt with.
                interests.push(slot.interest(report.socket, Mode::Kept));
                continue;
            }
            let events = report.events & slot.wanted();
            if !events.is_empty() {
                queue.notify(slot, report.socket, events);
            }
        }
        if !scratch.interests.is_empty() {
            self.merge_what_holds(core, scratch);
        }
        is_stray
    }

    /// Whether the number of a report stands for the socket that was registered. If not, and that is registered
    /// still, its registration ends.
    #[cold]
    fn is_valid(&self, core: &mut Core<B>, report: &Report) -> bool {
        let slot = core.table.slot(report.socket);
        if !slot.is_some_and(|slot| slot.is_of(report)) {
            return false;
        }
        let is_valid = report.validity == Validity::Doubtful
            && self.is_same_socket(report.socket, true) == Ok(true);
        if !is_valid {
            self.forget(core, report.socket);
        }
        is_valid
    }
}
