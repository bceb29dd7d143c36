//! Reports: from the poller to the table and the queue.

use std::collections::HashMap;
use std::time::Duration;

use super::table::{Slot, State};
use super::{Core, Engine, Mode, Poller, Report, ReportBuffer, Standing, Watch};
use crate::Events;

/// How many reports a thread takes from the poller at once, at the most.
pub(super) const BATCH: usize = 256;

/// How often a registration that is over may be reported before something is done about it. A few
/// such reports are in order: other threads had them in hand when it ended.
const PATIENCE: usize = 8;

/// How often registrations are looked at whose sockets may become ready without a report.
pub(super) const DORMANT_LOOK: Duration = Duration::from_millis(10);

/// The number and the turn that something is reported under.
type Name = (u32, u32);

/// Registrations that are over, and whose sockets the poller goes on reporting.
///
/// That is what becomes of a socket that was closed under its registered number and lives on under
/// another one, or in a child process: the poller cannot be told to let go of it.
#[derive(Debug, Default)]
pub(super) struct Zombies {
    reports: HashMap<Name, usize>,
    /// Something is being done about them.
    in_hand: bool,
    /// How often in a row nothing could be done.
    failures: u32,
}

impl Zombies {
    /// Note a report of a registration that is over. True when it is one too many.
    fn seen(&mut self, name: Name, patience: usize) -> bool {
        if self.in_hand {
            return false;
        }
        if self.reports.len() >= BATCH {
            self.reports.clear();
        }
        let count = self.reports.entry(name).or_default();
        *count += 1;
        *count >= patience << self.failures
    }

    /// Nothing can be done about them for now. The next time, there have to be twice as many reports.
    fn put_off(&mut self) {
        let failures = (self.failures + 1).min(16);
        *self = Zombies {
            failures,
            ..Zombies::default()
        };
    }
}

impl<P: Poller> Engine<P> {
    /// Take everything that the poller has to report now, without waiting. The lock stays held.
    pub(super) fn fetch(&self, core: &mut Core<P::Buffer>) {
        let mut buffer = core.buffers.pop().unwrap_or_default();
        // A level-triggered socket is reported over and over, after all others had their turn.
        let mut turns = core.table.len();
        loop {
            let count = self.fetch_into(core, &mut buffer);
            turns = turns.saturating_sub(count);
            if count < BATCH || turns == 0 {
                break;
            }
        }
        core.buffers.push(buffer);
    }

    /// Take one batch of reports, without waiting. Returns how many there were.
    fn fetch_into(&self, core: &mut Core<P::Buffer>, buffer: &mut P::Buffer) -> usize {
        let began = core.begin_look();
        self.poller.wait(buffer, BATCH, Some(Duration::ZERO));
        self.poller.check(buffer, |_| false);
        self.take_reports(core, buffer, began);
        // A wake-up is meant for a thread that waits; pass it on.
        if buffer.woken() {
            self.poller.wake();
        }
        buffer.reports().len()
    }

    /// What the system knew before a packet is queued comes out before it. Threads in the poller see
    /// to that themselves.
    ///
    /// Level-triggered sockets that wait in the queue are reported all the time. Where a whole batch of
    /// reports is of those, this is enough, and does not go through all of them for each packet.
    pub(super) fn fetch_before_packet(&self, core: &mut Core<P::Buffer>) {
        if core.table.len() == 0 || core.scheduler.is_anyone_polling() {
            return;
        }
        let mut buffer = core.buffers.pop().unwrap_or_default();
        loop {
            let queued = core.queue.len();
            let count = self.fetch_into(core, &mut buffer);
            if count < BATCH || core.queue.len() == queued {
                break;
            }
        }
        core.buffers.push(buffer);
    }

    /// Merge into the notifications that wait at the head of the queue what has become true since they
    /// were queued.
    pub(super) fn refresh(&self, core: &mut Core<P::Buffer>, room: usize) {
        if core.queue.len() == 0 || !core.scheduler.has_place() {
            return;
        }
        let mut edges = false;
        let Core {
            queue,
            table,
            watches,
            ..
        } = core;
        watches.clear();
        watches.extend(queue.notifications(room).filter_map(|token| {
            let slot = table
                .peek(token)
                .filter(|slot| slot.state == State::Enabled)?;
            edges |= slot.mode() == Mode::Edge;
            (slot.mode() != Mode::Edge).then(|| slot.watch(token.socket, slot.mode()))
        }));
        self.look_at_watches(core, |slot, events| !slot.pending.contains(events));
        if edges {
            let mut buffer = core.buffers.pop().unwrap_or_default();
            self.fetch_into(core, &mut buffer);
            core.buffers.push(buffer);
        }
    }

    /// Look at the sockets in `core.watches`, and take for reported what holds, where that is news.
    fn look_at_watches(
        &self,
        core: &mut Core<P::Buffer>,
        mut is_news: impl FnMut(&mut Slot, Events) -> bool,
    ) {
        if core.watches.is_empty() {
            return;
        }
        let mut buffer = core.buffers.pop().unwrap_or_default();
        self.poller.probe(&mut buffer, core.watches.iter().copied());
        for (index, &events) in buffer.seen().iter().enumerate() {
            let watch = core.watches[index];
            if events.is_empty() {
                continue;
            }
            let slot = core.table.of_turn(watch.socket, watch.turn);
            if slot.is_some_and(|slot| is_news(slot, events & slot.wanted())) {
                let report = Report {
                    socket: watch.socket,
                    turn: watch.turn,
                    kind: watch.kind,
                    events,
                    // A look goes by the number alone.
                    standing: Standing::Doubtful,
                    mode: Mode::Once,
                    dormant: false,
                };
                self.take_report(core, &report);
            }
        }
        core.buffers.push(buffer);
    }

    /// Notify what holds now of the conditions that are watched for.
    pub(super) fn look_at(&self, core: &mut Core<P::Buffer>, watch: &Watch) {
        let mut buffer = core.buffers.pop().unwrap_or_default();
        self.poller.probe(&mut buffer, std::iter::once(*watch));
        let live = core
            .table
            .of_turn(watch.socket, watch.turn)
            .filter(|slot| slot.is_live());
        if let (Some(&events), Some(slot)) = (buffer.seen().first(), live) {
            let events = events & watch.filter.wanted();
            core.queue.notify_slot(slot, watch.socket, events);
        }
        core.buffers.push(buffer);
    }

    /// Look at the sockets that may have become ready without a report. True if one has.
    pub(super) fn look_at_dormant(&self, core: &mut Core<P::Buffer>) -> bool {
        if core.dormant.is_empty() {
            return false;
        }
        let Core {
            table,
            dormant,
            watches,
            ..
        } = core;
        dormant.retain(|&token| table.peek(token).is_some_and(|slot| slot.is_live()));
        watches.clear();
        watches.extend(dormant.iter().filter_map(|&token| {
            let slot = table.peek(token)?;
            Some(slot.watch(token.socket, Mode::Once))
        }));
        let mut any = false;
        self.look_at_watches(core, |slot, _| {
            slot.dormant = false;
            any = true;
            true
        });
        let Core { table, dormant, .. } = core;
        dormant.retain(|&token| table.peek(token).is_some_and(|slot| slot.dormant));
        any
    }

    /// Turn reports into notifications. They are what a thread saw that began to look at this time.
    pub(super) fn take_reports(&self, core: &mut Core<P::Buffer>, buffer: &P::Buffer, began: u64) {
        if buffer.alarmed() {
            let alarm = core.alarm;
            core.queue.post(&[alarm]);
        }
        core.queue.post(buffer.packets());
        for report in buffer.reports() {
            let Some(slot) = core.table.of_turn(report.socket, report.turn) else {
                self.take_report(core, report);
                continue;
            };
            if slot.takes(report, began) {
                if report.mode == Mode::Request {
                    slot.watched = None;
                }
                let events = report.events & slot.wanted();
                core.queue.notify_slot(slot, report.socket, events);
                continue;
            }
            if report.dormant && !slot.dormant {
                slot.dormant = true;
                core.dormant.push(slot.token(report.socket));
            }
            if report.mode == Mode::Request {
                self.take_answer(core, report);
                continue;
            }
            let is_current = report.turn == slot.turn;
            if report.mode == Mode::Kept && is_current && slot.armed >= began {
                // It was armed after that: what was seen may have been dealt with.
                let watch = slot.watch(report.socket, Mode::Kept);
                if slot.state == State::Enabled {
                    self.look_at(core, &watch);
                }
                continue;
            }
            if let Some(events) = slot.news(report) {
                self.take_report(core, &Report { events, ..*report });
            } else if !is_current && report.mode != Mode::Edge {
                // A thread that armed the registration can have come late with its word to the
                // poller, after that of another one.
                self.watch_anew(core, report.socket);
            }
        }
    }

    fn take_report(&self, core: &mut Core<P::Buffer>, report: &Report) {
        let socket = report.socket;
        let live = core
            .table
            .of_turn(report.socket, report.turn)
            .filter(|slot| slot.is_live());
        let Some(slot) = live else {
            return self.meet_zombie(core, report);
        };
        let is_another = match report.standing {
            Standing::Good => false,
            Standing::Doubtful => !self.is_same_socket(socket).unwrap_or(false),
            Standing::Gone => true,
        };
        if is_another {
            self.forget(core, socket);
            return self.meet_zombie(core, report);
        }
        if slot.state != State::Enabled {
            return;
        }
        let events = report.events & slot.wanted();
        if events.is_empty() {
            // Something that nobody asked for, and that would be reported over and over. Wait for it
            // to change. A socket that is gone will be found out when it is used again.
            if matches!(slot.watched, Some(Mode::Once | Mode::Level)) {
                let _ = self
                    .poller
                    .watch(&slot.watch_anew(socket, Mode::Edge), true);
            }
            return;
        }
        if slot.watched == Some(Mode::Edge) && slot.mode() == Mode::Level {
            let _ = self
                .poller
                .watch(&slot.watch_anew(socket, Mode::Level), true);
        }
        let token = slot.token(socket);
        core.queue.notify(&mut core.table, token, events);
    }

    /// A report came under an old token or an old turn. It may have been meant for what is registered
    /// under that number now: a thread that armed the old one can have come late with its word to the
    /// poller, which now keeps silent, or goes on under the old name.
    pub(super) fn watch_anew(&self, core: &mut Core<P::Buffer>, socket: u32) {
        if let Some(slot) = core.table.slot(socket) {
            if slot.state == State::Enabled || slot.watched == Some(Mode::Kept) {
                // A request takes nothing back, and nothing takes back a request.
                if let Some(mode) = slot.watched.filter(|&mode| mode != Mode::Request) {
                    let _ = self.poller.watch(&slot.watch(socket, mode), true);
                }
            }
        }
    }

    /// Something is reported for a registration that is over.
    fn meet_zombie(&self, core: &mut Core<P::Buffer>, report: &Report) {
        if report.mode == Mode::Request {
            return;
        }
        if report.mode == Mode::Once {
            return self.watch_anew(core, report.socket);
        }
        let patience = PATIENCE + core.scheduler.places();
        if !core.zombies.seen((report.socket, report.turn), patience) {
            return;
        }
        core.zombies.in_hand = true;
        self.fetch(core);
        let mut watches = Vec::with_capacity(core.table.len());
        for (socket, slot) in core.table.iter_mut() {
            match slot.watched {
                Some(Mode::Request) => {}
                Some(mode) if slot.state == State::Enabled => {
                    watches.push(slot.watch(socket, mode))
                }
                _ => slot.watched = None,
            }
        }
        // What the old one reports from here on of earlier turns, the new one reports too.
        let mut fetch_edges = || self.fetch(core);
        let Some(lost) = self.poller.rebuild(&watches, &mut fetch_edges) else {
            return core.zombies.put_off();
        };
        for socket in lost {
            self.forget(core, socket);
        }
        for watch in &watches {
            self.confirm(core, watch);
        }
        core.zombies = Zombies::default();
    }

    /// The poller was told to watch this anew, by the number alone. See that it is the socket that was
    /// registered, and watched as is wanted by now.
    fn confirm(&self, core: &mut Core<P::Buffer>, watch: &Watch) {
        let socket = watch.socket;
        if !self.is_same_socket(socket).unwrap_or(false) {
            let _ = self.poller.unwatch(socket);
            return self.forget(core, socket);
        }
        let slot = core.table.slot(socket);
        if slot.is_some_and(|slot| slot.turn != watch.turn) {
            self.watch_anew(core, socket);
        }
    }
}

/// A thread was woken for nothing.
pub(super) fn note_disturbance<B: ReportBuffer>(core: &mut Core<B>, buffer: &B) {
    for report in buffer.reports() {
        if let Some(slot) = core.table.of_turn(report.socket, report.turn) {
            if let (Some(unrest), State::Disabled) = (&mut slot.owned, slot.state) {
                unrest.disturb();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_found_out_among_others() {
        let name = |socket| (socket, 0);
        let mut zombies = Zombies::default();
        for _ in 1..PATIENCE {
            assert!(!zombies.seen(name(1), PATIENCE));
            assert!(!zombies.seen(name(2), PATIENCE));
        }
        assert!(zombies.seen(name(1), PATIENCE));
    }

    #[test]
    fn what_cannot_be_done_is_tried_less_and_less_often() {
        let mut zombies = Zombies::default();
        for wait in [PATIENCE, PATIENCE * 2, PATIENCE * 4] {
            for _ in 1..wait {
                assert!(!zombies.seen((1, 0), PATIENCE));
            }
            assert!(zombies.seen((1, 0), PATIENCE));
            zombies.put_off();
        }
    }
}
