//! The sockets that are watched, and their polls.

use std::collections::{HashMap, VecDeque};
use std::io;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::SO_ACCEPTCONN;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::SystemServices::MAXIMUM_WAIT_OBJECTS;
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::conditions::{FAILED, Kind, LASTING, conditions, polled};
use super::device::{self, Begun, Devices, Outcome, Poll};
use super::edges::Edges;
use super::{Afd, closes, refusal, winsock};
use crate::engine::{ArmError, Interest, Mode, Report, Reports, Validity};
use crate::windows::port::KernelPort;
use crate::{Entry, Events, RegistrationError, sys};

/// The keys of this backend's own packets. Those of others are addresses, and no address is as low.
pub(super) const POLL: usize = 1;
pub(super) const EDGE: usize = 2;
pub(super) const WAKE: usize = 3;
pub(super) const ALARM: usize = 4;

/// The state of a port on the driver, under its lock.
pub(super) struct State {
    pub(super) devices: Devices,
    pub(super) records: HashMap<u32, Record>,
    /// Reports that need no packet.
    pub(super) found: Vec<Report>,
    /// Polls that have completed immediately.
    pub(super) over: Vec<*mut Poll>,
    /// Level-triggered sockets whose notification was delivered, to poll again when a thread waits. What an earlier
    /// poll finds may not hold any more when it is dequeued.
    pub(super) due: VecDeque<u32>,
    /// The sockets whose edges are recorded, and the events that are signalled if there are some.
    pub(super) edges: Vec<u32>,
    pub(super) signals: Vec<HANDLE>,
    /// Threads that wait for packets, rather than only polling.
    pub(super) waiting: usize,
    /// Wake-ups that no thread has taken.
    pub(super) wakes: usize,
    /// Whether there ever was an alarm.
    pub(super) has_alarm: bool,
    /// The callers' keys for what else completes on the port. They stay where they are.
    #[allow(clippy::vec_box, reason = "packets carry their addresses")]
    pub(super) foreign: Vec<Box<usize>>,
}

/// The record of a watched socket.
pub(super) struct Record {
    /// Which socket it is.
    pub(super) id: u64,
    pub(super) kind: Kind,
    /// As it was armed last.
    pub(super) interest: Interest,
    /// The next result is to be reported.
    pub(super) armed: bool,
    /// The poll that counts.
    pub(super) poll: Option<Current>,
    /// Among those that are due.
    pub(super) is_due: bool,
    pub(super) edge: Option<Edge>,
}

/// A poll in progress.
#[derive(Clone, Copy)]
pub(super) struct Current {
    poll: *mut Poll,
    /// What it is for.
    events: u32,
    /// The socket was armed again since. The result may have been handled before that.
    is_older: bool,
}

/// The record of a socket whose edges are recorded.
pub(super) struct Edge {
    /// For a stream, only from its first condition on. Before that a poll is enough, and the selection would make the
    /// socket non-blocking under Wine, also for `connect`.
    edges: Option<Edges>,
    /// The poll for conditions that never fall and were not seen yet; or for the first condition to hold.
    lasting: Option<*mut Poll>,
    seen: u32,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under
// the lock.
unsafe impl Send for State {}

impl State {
    pub(super) fn new() -> Self {
        State {
            devices: Devices::new(POLL),
            records: HashMap::new(),
            found: Vec::new(),
            over: Vec::new(),
            due: VecDeque::new(),
            edges: Vec::new(),
            signals: Vec::new(),
            waiting: 0,
            wakes: 0,
            has_alarm: false,
            foreign: Vec::new(),
        }
    }

    /// Arm a socket: the one that has this number now.
    pub(super) fn arm(
        &mut self,
        afd: &Afd,
        interest: &Interest,
        id: u64,
        is_new: bool,
    ) -> Result<(), ArmError> {
        let number = interest.socket;
        if is_new {
            // Polls that were begun before are of no use.
            self.drop_record(number);
            let record = Record {
                id,
                kind: winsock::kind(number).map_err(|error| arm_error(&error))?,
                interest: *interest,
                armed: false,
                poll: None,
                is_due: false,
                edge: None,
            };
            self.records.insert(number, record);
        }
        let Some(record) = self.records.get_mut(&number) else {
            return Err(ArmError::Stale);
        };
        if record.id != id {
            return Err(ArmError::Stale);
        }
        let before = record.armed.then_some(record.interest);
        record.interest = *interest;
        record.armed = true;
        if let Some(current) = &mut record.poll {
            current.is_older = true;
        }
        let begun = match interest.mode() {
            Mode::Edge => self.begin_edges(afd, number, before),
            _ => {
                if let Some(edge) = record.edge.take() {
                    self.drop_edge(number, id, edge);
                }
                Ok(())
            }
        };
        let armed = begun.and_then(|()| self.poll(&afd.port, number));
        armed.map_err(|error| {
            if is_new {
                self.drop_record(number);
            } else if let Some(record) = self.records.get_mut(&number) {
                record.armed = false;
            }
            arm_error(&error)
        })
    }

    /// Let the edges of a socket begin now, or carry them from `before` if they were armed already.
    ///
    /// When the selection begins, the driver records what holds already as if it had just begun to hold. This is
    /// dropped here, except for conditions that were wanted before: these have begun to hold since.
    fn begin_edges(&mut self, afd: &Afd, number: u32, before: Option<Interest>) -> io::Result<()> {
        let Some(record) = self.records.get_mut(&number) else {
            return Ok(());
        };
        let edge = record
            .edge
            .get_or_insert_with(|| Edge::new(record.kind, number));
        let sees =
            || record.kind == Kind::Datagram || afd.poll_now.one(number, FIRST | LASTING) != 0;
        if edge.edges.is_none() && sees() {
            if let Some(poll) = edge.lasting.take() {
                // SAFETY: as long as it was noted here, it has not ended.
                unsafe { self.devices.cancel(poll) };
            }
            let signal = edge.see(&afd.port, number)?;
            self.edges.push(number);
            self.signals.push(signal);
        }
        let mut risen = edge.take();
        let unseen = LASTING & !edge.seen;
        if unseen != 0 {
            let found = afd.poll_now.one(number, unseen) & unseen;
            edge.seen |= found;
            risen |= conditions(found, record.kind);
        }
        let before = before.filter(|before| {
            before.mode() == Mode::Edge && before.generation() == record.interest.generation()
        });
        let carried = before.map_or(Events::empty(), |before| {
            risen & before.filter().wanted() & record.interest.filter().wanted()
        });
        if !carried.is_empty() {
            self.found.push(report(&record.interest, carried));
        }
        Ok(())
    }

    /// Poll a socket that the port owns again, if it was reported and the report was dropped.
    pub(super) fn keep_armed(&mut self, port: &KernelPort, interest: &Interest) {
        let record = self.records.get_mut(&interest.socket);
        if let Some(record) = record.filter(|record| record.interest == *interest && !record.armed)
        {
            record.armed = true;
            // If it cannot be polled again, it is closed.
            let _ = self.poll(port, interest.socket);
        }
    }

    /// Make sure that a socket is polled for what is wanted.
    fn poll(&mut self, port: &KernelPort, number: u32) -> io::Result<()> {
        let State {
            devices,
            records,
            over,
            ..
        } = self;
        let mut begin = |events| {
            let begun = devices.begin(port, number, sys::handle(number), events);
            begun.map(|Begun { poll, is_over }| {
                over.extend(is_over.then_some(poll));
                poll
            })
        };
        let Some(record) = records.get_mut(&number) else {
            return Ok(());
        };
        let wanted = match &mut record.edge {
            None => polled(&record.interest),
            Some(edge) => {
                if edge.lasting.is_none() {
                    let first = if edge.edges.is_none() { FIRST } else { 0 };
                    let events = first | LASTING & !edge.seen | device::LOCAL_CLOSE;
                    edge.lasting = Some(begin(events)?);
                }
                0
            }
        };
        let current = record.poll;
        if current.is_some_and(|current| wanted & !current.events == 0) {
            return Ok(());
        }
        record.poll = match wanted {
            0 => None,
            events => Some(Current {
                poll: begin(events)?,
                events,
                is_older: false,
            }),
        };
        if let Some(Current { poll, .. }) = current {
            // SAFETY: as long as it was noted here, it has not ended.
            unsafe { devices.cancel(poll) };
        }
        Ok(())
    }

    /// Forget a socket. True if it had a poll in progress.
    pub(super) fn drop_record(&mut self, number: u32) -> bool {
        let Some(record) = self.records.remove(&number) else {
            return false;
        };
        let poll = record.poll.map(|current| current.poll);
        // SAFETY: as above.
        let was_polled = poll.is_some_and(|poll| unsafe { self.devices.cancel(poll) });
        if let Some(edge) = record.edge {
            self.drop_edge(number, record.id, edge);
        }
        was_polled
    }

    /// Forget all sockets.
    pub(super) fn drop_all(&mut self) {
        let numbers: Vec<u32> = self.records.keys().copied().collect();
        closes::catch_up();
        for number in numbers {
            self.drop_record(number);
        }
    }

    /// Stop recording the edges of a socket.
    fn drop_edge(&mut self, number: u32, id: u64, edge: Edge) {
        if let Some(poll) = edge.lasting {
            // SAFETY: as above.
            unsafe { self.devices.cancel(poll) };
        }
        if let Some(index) = self.edges.iter().position(|&other| other == number) {
            self.edges.swap_remove(index);
            self.signals.swap_remove(index);
        }
        closes::catch_up();
        if let Some(edges) = edge.edges {
            if closes::known(number) != Some(id) {
                edges.end_of_closed();
            }
        }
    }

    /// A poll has completed.
    ///
    /// # Safety
    ///
    /// As for [`Devices::end`].
    pub(super) unsafe fn end_poll(&mut self, afd: &Afd, poll: *mut Poll) -> Option<Report> {
        // SAFETY: the caller's promise.
        let Outcome { number, mut found } = unsafe { self.devices.end(poll) };
        let record = self.records.get_mut(&number)?;
        let current = record.poll.take_if(|current| current.poll == poll);
        if current.is_none() {
            let edge = record.edge.as_mut()?;
            edge.lasting.take_if(|lasting| *lasting == poll)?;
        }
        if found & device::LOCAL_CLOSE != 0 {
            record.armed = false;
            if let Some(edge) = record.edge.take() {
                let id = record.id;
                self.drop_edge(number, id, edge);
            }
            return None;
        }
        if record.edge.is_some() {
            return self.end_edge_poll(&afd.port, number, found);
        }
        if !record.armed {
            return None;
        }
        if current.is_some_and(|current| current.is_older) {
            found = afd.poll_now.one(number, polled(&record.interest));
        }
        let events = conditions(found, record.kind);
        if events.intersects(record.interest.filter().wanted()) {
            record.armed = record.interest.mode() == Mode::Level;
            return Some(report(&record.interest, events));
        }
        // If it cannot be polled again, it is closed, which will be detected.
        let _ = self.poll(&afd.port, number);
        None
    }

    /// Poll the sockets that are due, unless they were closed and their numbers may be others'. Stop when this many are
    /// ready.
    pub(super) fn poll_due(&mut self, port: &KernelPort, enough: usize) {
        if self.due.is_empty() {
            return;
        }
        closes::catch_up();
        while self.over.len() < enough {
            let Some(number) = self.due.pop_front() else {
                return;
            };
            let Some(record) = self.records.get_mut(&number) else {
                continue;
            };
            record.is_due = false;
            if record.armed && closes::known(number) == Some(record.id) {
                // As above.
                let _ = self.poll(port, number);
            }
        }
    }

    /// Whether there may be a packet in the port.
    pub(super) fn may_have_packets(&self) -> bool {
        self.devices.pending() > self.over.len()
            || self.wakes > 0
            || self.has_alarm
            || !self.edges.is_empty()
            || !self.foreign.is_empty()
    }

    /// A poll has found a condition that never falls, or the first condition to hold.
    fn end_edge_poll(&mut self, port: &KernelPort, number: u32, found: u32) -> Option<Report> {
        closes::catch_up();
        let record = self.records.get_mut(&number)?;
        let edge = record.edge.as_mut()?;
        let mut unseen = found & LASTING & !edge.seen;
        edge.seen |= unseen;
        let mut taken = Events::empty();
        if edge.edges.is_none() && found & FIRST != 0 && closes::known(number) == Some(record.id) {
            unseen |= found & FIRST;
            // If that fails, it is polled again, and may succeed the next time.
            if let Ok(signal) = edge.see(port, number) {
                taken = edge.take();
                self.edges.push(number);
                self.signals.push(signal);
            }
        }
        let events = conditions(unseen, record.kind) | taken;
        let report = self.edge(number, events);
        // As above.
        let _ = self.poll(port, number);
        report
    }

    /// There may be an edge.
    fn end_edge(&mut self, number: u32) -> Option<Report> {
        // The events of another socket must not be taken.
        closes::catch_up();
        let record = self.records.get_mut(&number)?;
        if closes::known(number) != Some(record.id) {
            return None;
        }
        let events = record.edge.as_mut()?.take();
        self.edge(number, events)
    }

    /// Report the edges that are wanted.
    fn edge(&mut self, number: u32, events: Events) -> Option<Report> {
        let record = self.records.get_mut(&number)?;
        let events = events & record.interest.filter().wanted();
        (record.armed && !events.is_empty()).then(|| report(&record.interest, events))
    }

    /// Take the edges whose packet was not queued yet.
    pub(super) fn find_edges(&mut self) {
        let mut first = 0;
        while first < self.signals.len() {
            let end = self
                .signals
                .len()
                .min(first + MAXIMUM_WAIT_OBJECTS as usize);
            let signals = &self.signals[first..end];
            // SAFETY: there are this many handles, and their owners live.
            let index =
                unsafe { WaitForMultipleObjects(signals.len() as u32, signals.as_ptr(), 0, 0) };
            if (index as usize) < signals.len() {
                first += index as usize;
                let report = self.end_edge(self.edges[first]);
                self.found.extend(report);
                first += 1;
            } else {
                first = end;
            }
        }
    }

    /// A packet was dequeued.
    pub(super) fn sort(&mut self, afd: &Afd, packet: &OVERLAPPED_ENTRY, reports: &mut Reports) {
        let report = match packet.lpCompletionKey {
            // SAFETY: under this key there are polls, and each packet is taken once.
            POLL => unsafe { self.end_poll(afd, packet.lpOverlapped.cast::<Poll>()) },
            EDGE => self.end_edge(packet.lpOverlapped.addr() as u32),
            WAKE => {
                self.wakes -= 1;
                reports.woken = true;
                None
            }
            ALARM => {
                reports.alarmed = true;
                None
            }
            key => {
                let key = std::ptr::with_exposed_provenance::<usize>(key);
                // SAFETY: keys of others are addresses in `foreign`.
                let key = unsafe { key.read() };
                let transferred = packet.dwNumberOfBytesTransferred;
                let overlapped = packet.lpOverlapped.expose_provenance();
                let entry = Entry::new(key, transferred, overlapped);
                reports.packets.push(entry);
                None
            }
        };
        reports.reports.extend(report);
    }
}

/// The conditions of the driver that rise and fall.
const FIRST: u32 = device::RECEIVE | device::RECEIVE_EXPEDITED | device::SEND | device::ACCEPT;

impl Edge {
    fn new(kind: Kind, number: u32) -> Self {
        // A listener, and a socket without connections, has no end.
        let is_endless = kind == Kind::Datagram
            || winsock::option(number, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
        Edge {
            edges: None,
            lasting: None,
            seen: if is_endless { LASTING } else { 0 },
        }
    }

    /// Begin to record edges. Returns the event that is signalled if there are some.
    fn see(&mut self, port: &KernelPort, number: u32) -> io::Result<HANDLE> {
        let edges = Edges::new(port, EDGE, number)?;
        let signal = edges.signal();
        self.edges = Some(edges);
        Ok(signal)
    }

    /// The conditions that have begun to hold since the last call.
    fn take(&mut self) -> Events {
        let mut events = self.edges.as_mut().map_or(Events::empty(), Edges::take);
        if self.seen & LASTING != LASTING && self.seen & FAILED != 0 {
            events.remove(Events::OUT);
        }
        events
    }
}

fn report(interest: &Interest, events: Events) -> Report {
    Report {
        socket: interest.socket,
        generation: interest.generation(),
        events,
        validity: Validity::Valid,
    }
}

fn arm_error(error: &io::Error) -> ArmError {
    match refusal(error) {
        // It was closed, and its number stands for something else.
        RegistrationError::NotASocket => ArmError::Stale,
        other => ArmError::Refused(other),
    }
}
