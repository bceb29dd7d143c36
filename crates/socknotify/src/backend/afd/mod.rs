//! Windows before build 20348, and Wine: polls of the socket driver.
//!
//! - A one-shot registration is one poll for each time that it is armed, and nothing in between.
//! - A level-triggered one is polled again when what was reported of it has been delivered.
//! - An edge-triggered one has its [`Edges`], and a poll for what never falls.
//! - A wake-up is a packet; and so is whatever else completes on the port.
//!
//! A poll of a socket that is ready is over when it has begun, and gives no packet. The thread that began
//! it takes what it has found along when it goes to wait. If it does not, it posts the packet itself.
//!
//! Polls are of sockets, not of handles. What a handle's value stands for is the matter of
//! [`closings`].

mod closings;
mod conditions;
mod device;
mod edges;
mod looker;
mod state;
mod winsock;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, HANDLE};
use windows_sys::Win32::Networking::WinSock::{SO_TYPE, SOCK_STREAM, WSAEOPNOTSUPP};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::device::{LOOK, Poll, PolledSocket};
use self::looker::Looker;
use self::state::{ALARM, POLL, State, WAKE};
use super::alarm::Alarm;
use super::codes;
use super::port::{self, KernelPort};
use crate::engine::{
    Identity, Kind, Mode, Poller, Report, ReportBuffer, Standing, Watch, WatchError,
};
use crate::{Entry, Error, Events, RegistrationError, sys};

/// A completion port of the kernel, and the socket driver polled on it.
pub(crate) struct Afd {
    // In this order they go: the timer posts to the port.
    alarm: Alarm,
    state: Mutex<State>,
    looker: Looker,
    port: KernelPort,
}

impl Afd {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(|error| codes::error(&error))
    }

    fn open() -> io::Result<Self> {
        let port = KernelPort::new()?;
        Ok(Afd {
            alarm: Alarm::new(&port, ALARM)?,
            state: Mutex::new(State::new()),
            looker: Looker::new()?,
            port,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `CreateIoCompletionPort` — Have what completes on this handle come out of the port.
    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        let key = Box::new(key);
        let address = std::ptr::from_ref(&*key).expose_provenance();
        let mut state = self.state();
        self.port
            .associate(handle, address)
            .map_err(|error| codes::error(&error))?;
        state.foreign.push(key);
        Ok(())
    }
}

impl Poller for Afd {
    type Buffer = Buffer;

    const MISSES_CLOSES: bool = true;

    fn belongs_here(&self) -> bool {
        true
    }

    fn identify(&self, socket: u32) -> Result<Identity, RegistrationError> {
        let kind = match winsock::option(socket, SO_TYPE).map_err(|error| refusal(&error))? {
            SOCK_STREAM => Kind::Stream,
            _ => Kind::Datagram,
        };
        if winsock::base(socket).map_err(|error| refusal(&error))? != sys::handle(socket).addr() {
            return Err(RegistrationError::Os(WSAEOPNOTSUPP));
        }
        let id = closings::identify(socket).map_err(|error| refusal(&error))?;
        Ok(Identity { kind, id })
    }

    fn adopted(&self) -> Mode {
        // To look takes as many calls as to be told.
        Mode::Once
    }

    fn catch_up(&self) {
        closings::catch_up();
    }

    fn watch(&self, watch: &Watch, again: bool) -> Result<(), WatchError> {
        let number = watch.socket;
        let id = closings::known(number).ok_or(WatchError::Unknown)?;
        let mut state = self.state();
        let known = state.records.get(&number).map(|record| record.id);
        match again {
            true if known != Some(id) => return Err(WatchError::Unknown),
            true => {}
            // Nothing that was begun before is of use, whatever it was begun for.
            false => state.drop_record(number),
        }
        state.watch(&self.port, watch, id)
    }

    fn unwatch(&self, socket: u32) -> Result<(), WatchError> {
        let mut state = self.state();
        let record = state.records.get(&socket);
        let is_open = match closings::known(socket) {
            // It was closed, and another one was armed in its place: or else its poll would be over.
            None => record.is_some_and(|record| record.poll.is_some()),
            id => id == record.map(|record| record.id),
        };
        state.drop_record(socket);
        if is_open {
            Ok(())
        } else {
            Err(WatchError::Unknown)
        }
    }

    fn wait(&self, buffer: &mut Buffer, room: usize, timeout: Option<Duration>) {
        buffer.reports.clear();
        buffer.others.clear();
        buffer.woken = false;
        buffer.alarmed = false;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut timeout = timeout;
        let mut state = self.state();
        loop {
            state.poll_due(&self.port, room);
            if timeout == Some(Duration::ZERO) {
                state.find_edges();
            }
            let waits =
                timeout != Some(Duration::ZERO) && state.over.is_empty() && state.found.is_empty();
            let asks = waits || state.may_have_packets();
            buffer.over.append(&mut state.over);
            buffer.packets.clear();
            if asks {
                state.waiting += usize::from(waits);
                drop(state);
                let timeout = if waits { timeout } else { Some(Duration::ZERO) };
                // Beside the reports there may be a wake-up.
                self.port.take(&mut buffer.packets, room + 1, timeout);
                state = self.state();
                state.waiting -= usize::from(waits);
            }
            for index in 0..buffer.packets.len() {
                let packet = buffer.packets[index];
                state.sort(self, &packet, buffer);
            }
            for poll in buffer.over.drain(..) {
                // SAFETY: these have no packets, and nobody else has taken them.
                buffer.reports.extend(unsafe { state.end_poll(self, poll) });
            }
            buffer.reports.append(&mut state.found);
            if !buffer.is_empty() {
                return self.complete(&state, buffer);
            }
            // All that came was out of date. There may be more behind it.
            let is_more = buffer.packets.len() > room;
            if timeout == Some(Duration::ZERO) && !is_more {
                return;
            }
            timeout = match timeout {
                Some(Duration::ZERO) => timeout,
                _ => end.map(|end| end.saturating_duration_since(Instant::now())),
            };
        }
    }

    fn delivered(&self, socket: u32) {
        let mut state = self.state();
        let State { records, due, .. } = &mut *state;
        let record = records.get_mut(&socket);
        let record = record.filter(|record| record.armed && record.watch.mode == Mode::Level);
        if let Some(record) = record.filter(|record| !record.is_due) {
            record.is_due = true;
            due.push_back(socket);
        }
    }

    fn submit(&self) {
        let mut state = self.state();
        if state.waiting > 0 {
            state.poll_due(&self.port, usize::MAX);
        }
        // What cannot be posted is left to the next thread that waits.
        state.over.retain(|poll| {
            let posted = self.port.post(0, POLL, poll.expose_provenance());
            posted.is_err()
        });
    }

    fn check(&self, buffer: &mut Buffer, is_good: impl Fn(u32) -> bool) {
        let doubted = |report: &&mut Report| !is_good(report.socket);
        let mut doubted = buffer.reports.iter_mut().filter(doubted).peekable();
        if doubted.peek().is_none() {
            return;
        }
        closings::catch_up();
        let mut state = self.state();
        for report in doubted {
            let Some(record) = state.records.get_mut(&report.socket) else {
                // It is not watched any more, and nobody waits for this.
                continue;
            };
            match closings::known(report.socket) {
                Some(id) if id == record.id => {}
                // It was closed. If another one was armed in its place, this may be a report of that.
                None if self.looker.holds(&record.watch, report.events) => {
                    match closings::identify(report.socket) {
                        Ok(id) => record.id = id,
                        Err(_) => report.standing = Standing::Gone,
                    }
                }
                _ => report.standing = Standing::Gone,
            }
        }
    }

    fn probe(&self, buffer: &mut Buffer, watches: impl Iterator<Item = Watch> + Clone) {
        let Buffer {
            probes,
            looks,
            seen,
            ..
        } = buffer;
        probes.clear();
        probes.extend(watches);
        seen.clear();
        self.looker.look(looks, probes, |watch, events| {
            seen.push(match events.intersects(watch.filter.wanted()) {
                true => events,
                false => Events::empty(),
            });
        });
    }

    fn observe(&self, watch: &Watch) {
        if let Some(record) = self.state().records.get_mut(&watch.socket) {
            record.risen = Events::empty();
        }
    }

    fn has_risen(&self, watch: &Watch) -> bool {
        let state = self.state();
        let record = state.records.get(&watch.socket);
        record.is_some_and(|record| record.risen.intersects(watch.filter.wanted()))
    }

    fn wakes_newest(&self) -> bool {
        !port::is_wine()
    }

    fn withdraw_all(&self) {
        // There are edges of a socket for one port at a time.
        self.state().drop_all();
    }

    fn wake(&self) {
        self.state().wakes += 1;
        let _ = self.port.post(0, WAKE, 0);
    }

    fn set_alarm(&self, delay: Duration) -> Result<(), Error> {
        self.state().has_alarm = true;
        self.alarm.set(delay);
        Ok(())
    }

    fn rebuild(&self, _watches: &[Watch], _fetch: &mut dyn FnMut()) -> Option<Vec<u32>> {
        // There is nothing that cannot be ended.
        Some(Vec::new())
    }
}

impl Afd {
    /// A poll tells what held at its end. Since then its packet may have waited; what it does not tell,
    /// and what a one-shot registration would not be told of any more, is looked for.
    fn complete(&self, state: &State, buffer: &mut Buffer) {
        let Buffer {
            reports,
            probes,
            looks,
            ..
        } = buffer;
        probes.clear();
        for report in reports.iter().filter(|report| report.mode == Mode::Once) {
            let record = state.records.get(&report.socket);
            let untold = |watch: &Watch| watch.filter.wanted() - Events::ERR - report.events;
            probes.extend(
                record
                    .map(|record| record.watch)
                    .filter(|watch| !untold(watch).is_empty()),
            );
        }
        let mut reports = reports.iter_mut();
        self.looker.look(looks, probes, |watch, events| {
            let its =
                |report: &&mut Report| (report.socket, report.turn) == (watch.socket, watch.turn);
            if let Some(report) = reports.find(its) {
                report.events |= events;
            }
        });
    }
}

impl Drop for Afd {
    fn drop(&mut self) {
        let mut state = self.state();
        state.drop_all();
        for poll in std::mem::take(&mut state.over) {
            // SAFETY: these have no packets.
            unsafe { state.devices.end(poll) };
        }
        // The kernel has the memory of the others until their packets have come.
        let mut packets = Vec::new();
        let patience = Duration::from_secs(1);
        while state.devices.pending() > 0 {
            self.port.take(&mut packets, LOOK, Some(patience));
            if packets.is_empty() {
                break;
            }
            for packet in packets
                .iter()
                .filter(|packet| packet.lpCompletionKey == POLL)
            {
                // SAFETY: under this key there are polls, and each packet is taken once.
                unsafe { state.devices.end(packet.lpOverlapped.cast::<Poll>()) };
            }
        }
    }
}

fn refusal(error: &io::Error) -> RegistrationError {
    match codes::code(error) {
        // The driver's word for a handle of something else.
        ERROR_INVALID_PARAMETER => RegistrationError::NotASocket,
        code => codes::refusal(code),
    }
}

/// Memory for the reports of one wait.
#[derive(Default)]
pub(crate) struct Buffer {
    packets: Vec<OVERLAPPED_ENTRY>,
    over: Vec<*mut Poll>,
    reports: Vec<Report>,
    others: Vec<Entry>,
    probes: Vec<Watch>,
    looks: Vec<PolledSocket>,
    seen: Vec<Events>,
    woken: bool,
    alarmed: bool,
}

// SAFETY: packets, polls and looks are pointers and handles, which belong to the process.
unsafe impl Send for Buffer {}

impl Buffer {
    fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.others.is_empty() && !self.woken && !self.alarmed
    }
}

impl ReportBuffer for Buffer {
    fn seen(&self) -> &[Events] {
        &self.seen
    }

    fn reports(&self) -> &[Report] {
        &self.reports
    }

    fn packets(&self) -> &[Entry] {
        &self.others
    }

    fn woken(&self) -> bool {
        self.woken
    }

    fn alarmed(&self) -> bool {
        self.alarmed
    }
}

#[cfg(test)]
mod tests;
