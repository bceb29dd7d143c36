//! The sockets that are watched, and their polls.

use std::collections::{HashMap, VecDeque};
use std::io;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::SO_ACCEPTCONN;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::SystemServices::MAXIMUM_WAIT_OBJECTS;
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::conditions::{FAILED, LASTING, conditions, polled};
use super::device::{self, Begun, Devices, Outcome, Poll};
use super::edges::Edges;
use super::{Afd, Buffer, closings, refusal, winsock};
use crate::engine::{Kind, Mode, Report, Standing, Watch, WatchError};
use crate::windows::port::KernelPort;
use crate::{Entry, Events, RegistrationError, sys};

/// The keys of this poller's own packets. Those of others are addresses, and no address is as low.
pub(super) const POLL: usize = 1;
pub(super) const EDGE: usize = 2;
pub(super) const WAKE: usize = 3;
pub(super) const ALARM: usize = 4;

/// What a port on the driver knows, under its lock.
pub(super) struct State {
    pub(super) devices: Devices,
    pub(super) records: HashMap<u32, Record>,
    /// What was found without waiting.
    pub(super) found: Vec<Report>,
    /// Polls that were over when they had begun.
    pub(super) over: Vec<*mut Poll>,
    /// Level-triggered sockets whose notification was delivered, and that are to be polled again. Not
    /// before somebody waits: what is found until then may hold no longer when it is told.
    pub(super) due: VecDeque<u32>,
    /// The sockets whose edges are watched, and what is signalled when there are some.
    pub(super) edges: Vec<u32>,
    pub(super) signals: Vec<HANDLE>,
    /// Threads that wait for packets, and do not only look for some.
    pub(super) waiting: usize,
    /// Wake-ups that nobody has taken.
    pub(super) wakes: usize,
    /// Whether there ever was an alarm.
    pub(super) has_alarm: bool,
    /// The callers' keys for what else completes on the port. They stay where they are.
    #[allow(clippy::vec_box, reason = "packets carry their addresses")]
    pub(super) foreign: Vec<Box<usize>>,
}

/// What is known of a socket that is watched.
pub(super) struct Record {
    /// Which socket it is.
    pub(super) id: u64,
    pub(super) watch: Watch,
    pub(super) armed: bool,
    /// The poll that counts.
    pub(super) poll: Option<Current>,
    /// Among those that are due.
    pub(super) is_due: bool,
    pub(super) edge: Option<Edge>,
    /// What has begun to hold since it was observed.
    pub(super) risen: Events,
}

/// A poll that is under way.
#[derive(Clone, Copy)]
pub(super) struct Current {
    poll: *mut Poll,
    /// What it is for.
    events: u32,
    /// The socket was armed again since. What this finds may have been dealt with before that.
    is_older: bool,
}

/// What is known of a socket whose edges are watched.
pub(super) struct Edge {
    edges: Edges,
    /// The poll for what never falls, but for what was reported of that.
    lasting: Option<*mut Poll>,
    told: u32,
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

    /// Watch a socket, which is the one that has this number now.
    pub(super) fn watch(
        &mut self,
        port: &KernelPort,
        watch: &Watch,
        id: u64,
    ) -> Result<(), WatchError> {
        let number = watch.socket;
        let record = self.records.entry(number).or_insert_with(|| Record {
            id,
            watch: *watch,
            armed: false,
            poll: None,
            is_due: false,
            edge: None,
            risen: Events::empty(),
        });
        let lasting = record.watch.filter & watch.filter;
        record.watch = *watch;
        record.armed = true;
        if let Some(current) = &mut record.poll {
            current.is_older = true;
        }
        if watch.mode == Mode::Edge {
            let edge = match &mut record.edge {
                Some(edge) => edge,
                None => {
                    let edge = Edge::new(port, watch)?;
                    self.edges.push(number);
                    self.signals.push(edge.edges.signal());
                    record.edge.insert(edge)
                }
            };
            // What was there at the beginning is reported once; and what has risen before the change
            // of a filter that wanted it, so has to be noted.
            let risen = edge.edges.take();
            record.risen |= risen & lasting.wanted();
            let events = risen & watch.filter.wanted();
            if !events.is_empty() {
                self.found.push(report(watch, events));
            }
        } else if let Some(edge) = record.edge.take() {
            self.drop_edge(number, id, edge);
        }
        self.poll(port, number).map_err(|error| {
            self.drop_record(number);
            watch_error(&error)
        })
    }

    /// See to it that a socket is polled for what it is to be polled for.
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
            None => polled(&record.watch),
            Some(edge) => {
                if edge.lasting.is_none() {
                    let events = LASTING & !edge.told | device::LOCAL_CLOSE;
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

    /// Forget a socket.
    pub(super) fn drop_record(&mut self, number: u32) {
        let Some(record) = self.records.remove(&number) else {
            return;
        };
        if let Some(Current { poll, .. }) = record.poll {
            // SAFETY: as above.
            unsafe { self.devices.cancel(poll) };
        }
        if let Some(edge) = record.edge {
            self.drop_edge(number, record.id, edge);
        }
    }

    /// Forget all sockets.
    pub(super) fn drop_all(&mut self) {
        let numbers: Vec<u32> = self.records.keys().copied().collect();
        closings::catch_up();
        for number in numbers {
            self.drop_record(number);
        }
    }

    /// See the edges of a socket no longer.
    fn drop_edge(&mut self, number: u32, id: u64, edge: Edge) {
        if let Some(poll) = edge.lasting {
            // SAFETY: as above.
            unsafe { self.devices.cancel(poll) };
        }
        if let Some(index) = self.edges.iter().position(|&other| other == number) {
            self.edges.swap_remove(index);
            self.signals.swap_remove(index);
        }
        closings::catch_up();
        if closings::known(number) != Some(id) {
            edge.edges.end_of_closed();
        }
    }

    /// A poll is over.
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
            found = afd.looker.glance(&record.watch);
        }
        let events = conditions(found, record.watch.kind);
        if events.intersects(record.watch.filter.wanted()) {
            record.armed = record.watch.mode != Mode::Once;
            return Some(report(&record.watch, events));
        }
        // If it cannot be polled again, it is closed, and its closing will be learnt of.
        let _ = self.poll(&afd.port, number);
        None
    }

    /// Poll what is due, unless it was closed and its number may be another's. Stop when so many sockets
    /// are ready.
    pub(super) fn poll_due(&mut self, port: &KernelPort, enough: usize) {
        if self.due.is_empty() {
            return;
        }
        closings::catch_up();
        while self.over.len() < enough {
            let Some(number) = self.due.pop_front() else {
                return;
            };
            let Some(record) = self.records.get_mut(&number) else {
                continue;
            };
            record.is_due = false;
            if record.armed && closings::known(number) == Some(record.id) {
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

    /// A poll has found what does not fall again.
    fn end_edge_poll(&mut self, port: &KernelPort, number: u32, found: u32) -> Option<Report> {
        let record = self.records.get_mut(&number)?;
        record.edge.as_mut()?.told |= found & LASTING;
        let events = conditions(found, record.watch.kind);
        let report = self.edge(number, events);
        // As above.
        let _ = self.poll(port, number);
        report
    }

    /// There may be an edge.
    fn end_edge(&mut self, number: u32) -> Option<Report> {
        // The events of another socket are not ours to take.
        closings::catch_up();
        let record = self.records.get_mut(&number)?;
        if closings::known(number) != Some(record.id) {
            return None;
        }
        let edge = record.edge.as_mut()?;
        let mut events = edge.edges.take();
        if edge.told & LASTING != LASTING && edge.told & FAILED != 0 {
            events.remove(Events::OUT);
        }
        self.edge(number, events)
    }

    /// Report edges, as far as they are wanted.
    fn edge(&mut self, number: u32, events: Events) -> Option<Report> {
        let record = self.records.get_mut(&number)?;
        record.risen |= events;
        let events = events & record.watch.filter.wanted();
        (record.armed && !events.is_empty()).then(|| report(&record.watch, events))
    }

    /// Take the edges whose word is on its way.
    pub(super) fn find_edges(&mut self) {
        let mut first = 0;
        while first < self.signals.len() {
            let end = self
                .signals
                .len()
                .min(first + MAXIMUM_WAIT_OBJECTS as usize);
            let signals = &self.signals[first..end];
            // SAFETY: as many handles are there, and their owners live.
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

    /// A packet has come out of the port.
    pub(super) fn sort(&mut self, afd: &Afd, packet: &OVERLAPPED_ENTRY, buffer: &mut Buffer) {
        let report = match packet.lpCompletionKey {
            // SAFETY: under this key there are polls, and each packet is taken once.
            POLL => unsafe { self.end_poll(afd, packet.lpOverlapped.cast::<Poll>()) },
            EDGE => self.end_edge(packet.lpOverlapped.addr() as u32),
            WAKE => {
                self.wakes -= 1;
                buffer.woken = true;
                None
            }
            ALARM => {
                buffer.alarmed = true;
                None
            }
            key => {
                let key = std::ptr::with_exposed_provenance::<usize>(key);
                // SAFETY: keys of others are addresses of what is kept in `foreign`.
                let key = unsafe { key.read() };
                let transferred = packet.dwNumberOfBytesTransferred;
                let overlapped = packet.lpOverlapped.expose_provenance();
                buffer.others.push(Entry::new(key, transferred, overlapped));
                None
            }
        };
        buffer.reports.extend(report);
    }
}

impl Edge {
    fn new(port: &KernelPort, watch: &Watch) -> Result<Self, WatchError> {
        let edges = Edges::new(port, EDGE, watch.socket);
        let edges = edges.map_err(|error| WatchError::Refused(refusal(&error)))?;
        // What listens, and what does not connect, does not end.
        let is_endless = watch.kind == Kind::Datagram
            || winsock::option(watch.socket, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
        Ok(Edge {
            edges,
            lasting: None,
            told: if is_endless { LASTING } else { 0 },
        })
    }
}

fn report(watch: &Watch, events: Events) -> Report {
    Report {
        socket: watch.socket,
        turn: watch.turn,
        kind: watch.kind,
        events,
        standing: Standing::Good,
        mode: watch.mode,
        dormant: false,
    }
}

fn watch_error(error: &io::Error) -> WatchError {
    match refusal(error) {
        // It was closed, and its number is something else's.
        RegistrationError::NotASocket => WatchError::Unknown,
        other => WatchError::Refused(other),
    }
}
