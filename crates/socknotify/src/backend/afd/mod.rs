//! Windows before build 20348, and Wine: polls of the socket driver.
//!
//! - A one-shot registration is one poll each time that it is armed, and nothing in between. So is a
//!   connection that the port owns.
//! - A level-triggered one is polled again when its report has been delivered.
//! - An edge-triggered one has its [`Edges`](edges::Edges), and a poll for conditions that never fall.
//! - A wake-up is a packet, and so is whatever else completes on the port.
//!
//! A poll of a ready socket completes immediately, without a packet. The thread that began it takes the result
//! when it waits. If it does not wait, it [posts](Backend::flush) the packet itself.
//!
//! Polls refer to sockets, not to handles. [`closes`] knows which socket a handle's value stands for.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

mod closes;
mod conditions;
mod device;
mod edges;
mod poll_now;
mod state;
mod winsock;

use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, HANDLE};
use windows_sys::Win32::Networking::WinSock::WSAEOPNOTSUPP;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::conditions::{conditions, polled};
use self::device::{Poll, PolledSocket};
use self::poll_now::PollNow;
use self::state::{ALARM, POLL, Record, State, WAKE};
use crate::engine::{
    ArmError, Backend, Followed, Interest, Kept, Mode, Outcome, Readiness, Rearm, Report, Reports,
    Validity, Wait, Wanted,
};
use crate::lock::lock;
use crate::windows::alarm::Alarm;
use crate::windows::codes;
use crate::windows::port::{self, KernelPort};
use crate::{Error, EventFilter, Events, RegistrationError, sys};

/// A completion port of the kernel, and the socket driver polled on it.
pub(crate) struct Afd {
    // They are dropped in this order: the timer posts to the port.
    alarm: Alarm,
    state: Mutex<State>,
    poll_now: PollNow,
    port: KernelPort,
}

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    packets: Vec<OVERLAPPED_ENTRY>,
    /// Polls that have completed immediately.
    over: Vec<*mut Poll>,
    interests: Vec<Interest>,
    sockets: Vec<PolledSocket>,
    /// The conditions of each socket, if the driver reports them.
    found: Vec<Option<u32>>,
}

// SAFETY: packets, polls and sockets are pointers and handles, which belong to the process.
unsafe impl Send for Memory {}

impl Afd {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(|error| codes::error(&error))
    }

    fn open() -> io::Result<Self> {
        let port = KernelPort::new()?;
        Ok(Afd {
            alarm: Alarm::new(&port, ALARM)?,
            state: Mutex::new(State::new()),
            poll_now: PollNow::new()?,
            port,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// `CreateIoCompletionPort` — Have operations on this handle complete on the port.
    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        let mut state = self.state();
        let known = state.foreign.iter().find(|known| ***known == key);
        if let Some(known) = known {
            let address = std::ptr::from_ref(&**known).expose_provenance();
            let associated = self.port.associate(handle, address);
            return associated.map_err(|error| codes::error(&error));
        }
        let key = Box::new(key);
        let address = std::ptr::from_ref(&*key).expose_provenance();
        self.port
            .associate(handle, address)
            .map_err(|error| codes::error(&error))?;
        state.foreign.push(key);
        Ok(())
    }

    /// Arm again, unless another thread has changed the interest: that must not be undone, because edges that start
    /// again are lost.
    fn arm_current(&self, wanted: &Wanted, interest: &Interest) -> Result<(), ArmError> {
        let id = closes::known(interest.socket).ok_or(ArmError::Stale)?;
        // The interest was changed before that thread takes this lock to arm it.
        let mut state = self.state();
        match wanted.get(interest.socket) {
            Some(current) if current == *interest => state.arm(self, interest, id, false),
            _ => Ok(()),
        }
    }

    /// A poll reports what held when it completed. Its packet may have waited since then, and a one-shot registration
    /// would get no other report. So poll again for the rest.
    fn complete(&self, state: &State, memory: &mut Memory, reports: &mut [Report]) {
        let Memory {
            interests, sockets, ..
        } = memory;
        interests.clear();
        for report in &*reports {
            let record = state.records.get(&report.socket);
            let interest = record.map(|record| record.interest);
            interests.extend(interest.filter(|interest| {
                let missing = interest.filter().wanted() - Events::ERR - report.events;
                matches!(interest.mode(), Mode::Once | Mode::Kept)
                    && interest.generation() == report.generation
                    && !missing.is_empty()
            }));
        }
        let mut reports = reports.iter_mut();
        self.poll_now.all(sockets, interests, |interest, found| {
            let report = reports.find(|report| {
                (report.socket, report.generation) == (interest.socket, interest.generation())
            });
            let record = state.records.get(&interest.socket);
            if let (Some(report), Some(record), Some(found)) = (report, record, found) {
                report.events |= conditions(found, record.kind);
            }
        });
    }

    /// Find out the validity of reports.
    fn check(&self, state: &mut State, wait: &Wait, reports: &mut [Report]) {
        let mut has_caught_up = false;
        for report in reports {
            // If there is none, it was disarmed, and no one wants this report.
            let Some(record) = state.records.get_mut(&report.socket) else {
                continue;
            };
            // Nobody closes a socket that the port owns, or that this call has borrowed.
            if record.interest.mode() == Mode::Kept || wait.borrows(report.generation) {
                continue;
            }
            if !std::mem::replace(&mut has_caught_up, true) {
                closes::catch_up();
            }
            match closes::known(report.socket) {
                Some(id) if id == record.id => {}
                None if port::is_wine() && self.is_successor(record, report) => {}
                _ => report.validity = Validity::Closed,
            }
        }
    }

    /// Whether to take the socket that now has the number of a closed one for the one that was armed.
    ///
    /// Under Wine, a close can become known a moment after another socket was armed in its place: then this
    /// may be a report of that one.
    fn is_successor(&self, record: &mut Record, report: &Report) -> bool {
        let found = self.poll_now.one(report.socket, polled(&record.interest));
        if !conditions(found, record.kind).intersects(report.events) {
            return false;
        }
        let id = closes::identify(report.socket);
        id.is_ok_and(|id| {
            record.id = id;
            true
        })
    }
}

impl Backend for Afd {
    type Memory = Memory;

    const KEPT: Kept = Kept::UntilReported;
    const CONDITIONS: EventFilter = EventFilter::ALL.union(EventFilter::PRIORITY);

    fn identify(&self, socket: u32) -> Result<u64, RegistrationError> {
        // A handle that is no socket has no kind.
        winsock::kind(socket).map_err(|error| refusal(&error))?;
        if winsock::base(socket).map_err(|error| refusal(&error))? != sys::handle(socket).addr() {
            return Err(RegistrationError::Os(WSAEOPNOTSUPP));
        }
        closes::identify(socket).map_err(|error| refusal(&error))
    }

    fn has_packets(&self) -> bool {
        !self.state().foreign.is_empty()
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        if !is_new {
            closes::catch_up();
        }
        let id = closes::known(interest.socket).ok_or(ArmError::Stale)?;
        self.state().arm(self, interest, id, is_new)
    }

    fn rearm(&self, wanted: &Wanted, _memory: &mut Memory, batch: &mut [Rearm]) {
        // From here on these sockets are borrowed.
        closes::catch_up();
        for rearm in batch {
            let arm = |interest: &Interest| self.arm_current(wanted, interest);
            rearm.outcome = match wanted.follow(&rearm.interest, arm) {
                Followed::Done(Ok(())) | Followed::Changed => Outcome::Armed,
                Followed::Done(Err(error)) => Outcome::Failed(error),
                Followed::Withdrawn => Outcome::Withdrawn,
            };
        }
    }

    fn disarm(&self, socket: u32) -> Result<(), ArmError> {
        closes::catch_up();
        let mut state = self.state();
        let id = state.records.get(&socket).map(|record| record.id);
        let known = closes::known(socket);
        let was_polled = state.drop_record(socket);
        // Under Wine, a close can become known a moment after another socket was armed in its place.
        let is_successor = known.is_none() && was_polled && port::is_wine();
        match id.is_some() && id == known || is_successor {
            true => Ok(()),
            false => Err(ArmError::Stale),
        }
    }

    fn poll_now(
        &self,
        memory: &mut Memory,
        interests: &[Interest],
        readiness: &mut Vec<Readiness>,
    ) {
        let Memory { sockets, found, .. } = memory;
        found.clear();
        self.poll_now
            .all(sockets, interests, |_, events| found.push(events));
        // A poll only knows the number. Nobody closes a socket that the port owns.
        let is_doubted = |(interest, found): (&Interest, &Option<u32>)| {
            interest.mode() != Mode::Kept && found.is_some_and(|found| found != 0)
        };
        if interests.iter().zip(&*found).any(is_doubted) {
            closes::catch_up();
        }
        let mut state = self.state();
        readiness.clear();
        for (interest, &found) in interests.iter().zip(&*found) {
            let record = state.records.get(&interest.socket);
            let record = record.filter(|it| closes::known(interest.socket) == Some(it.id));
            let found = record.zip(found);
            let found = found.map(|(record, found)| conditions(found, record.kind));
            let answer = match found {
                None => Readiness::Unknown,
                Some(events) if events.intersects(interest.filter().wanted()) => {
                    Readiness::Ready(events)
                }
                Some(_) => Readiness::NotReady,
            };
            if interest.mode() == Mode::Kept && !matches!(answer, Readiness::Ready(_)) {
                state.keep_armed(&self.port, interest);
            }
            readiness.push(answer);
        }
    }

    fn wait(
        &self,
        _wanted: &Wanted,
        memory: &mut Memory,
        _batch: &mut [Rearm],
        reports: &mut Reports,
        wait: &Wait,
    ) {
        reports.clear();
        let mut timeout = wait.timeout;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state();
        loop {
            state.poll_due(&self.port, wait.room);
            if timeout == Some(Duration::ZERO) {
                state.find_edges();
            }
            let waits =
                timeout != Some(Duration::ZERO) && state.over.is_empty() && state.found.is_empty();
            let asks = waits || state.may_have_packets();
            let Memory { packets, over, .. } = memory;
            over.append(&mut state.over);
            packets.clear();
            if asks {
                state.waiting += usize::from(waits);
                drop(state);
                let timeout = if waits { timeout } else { Some(Duration::ZERO) };
                // Room for a wake-up too.
                self.port.take(packets, wait.room + 1, timeout);
                state = self.state();
                state.waiting -= usize::from(waits);
            }
            for packet in &*packets {
                state.sort(self, packet, reports);
            }
            for poll in over.drain(..) {
                // SAFETY: these have no packets, and nobody else has taken them.
                let report = unsafe { state.end_poll(self, poll) };
                reports.reports.extend(report);
            }
            reports.reports.append(&mut state.found);
            if !reports.is_empty() {
                self.complete(&state, memory, &mut reports.reports);
                return self.check(&mut state, wait, &mut reports.reports);
            }
            // All packets were out of date. There may be more.
            let is_more = memory.packets.len() > wait.room;
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
        let record = record.filter(|record| record.armed && record.interest.mode() == Mode::Level);
        if let Some(record) = record.filter(|record| !record.is_due) {
            record.is_due = true;
            due.push_back(socket);
        }
    }

    fn flush(&self, _wanted: &Wanted) {
        let mut state = self.state();
        if state.waiting > 0 {
            state.poll_due(&self.port, usize::MAX);
        }
        // If it cannot be posted, the next waiting thread takes it.
        state.over.retain(|poll| {
            let posted = self.port.post(0, POLL, poll.expose_provenance());
            posted.is_err()
        });
    }

    fn wake(&self, after: Option<Duration>) -> Result<(), Error> {
        match after {
            None => {
                self.state().wakes += 1;
                let posted = self.port.post(0, WAKE, 0);
                posted.map_err(|error| codes::error(&error))
            }
            Some(delay) => {
                self.state().has_alarm = true;
                self.alarm.set(delay);
                Ok(())
            }
        }
    }

    fn close(&self) {
        // Only one port at a time can record the edges of a socket.
        self.state().drop_all();
    }

    fn wakes_newest(&self) -> bool {
        !port::is_wine()
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
        // The kernel uses the memory of the others until their packets were dequeued.
        let mut packets = Vec::new();
        let patience = Duration::from_secs(1);
        while state.devices.pending() > 0 {
            self.port.take(&mut packets, device::BATCH, Some(patience));
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
        // The driver's error for a handle that is no socket.
        ERROR_INVALID_PARAMETER => RegistrationError::NotASocket,
        code => codes::refusal(code),
    }
}

#[cfg(test)]
mod tests;
