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

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{ERROR_NOT_ENOUGH_MEMORY, HANDLE};
use windows_sys::Win32::Networking::WinSock::{
    SIO_BASE_HANDLE, SO_ACCEPTCONN, SO_TYPE, SOCK_DGRAM, SOCK_STREAM, SOCKET, SOL_SOCKET,
    WSAENOTSOCK, WSAEOPNOTSUPP, WSAGetLastError, WSAIoctl, getsockopt,
};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::SystemServices::MAXIMUM_WAIT_OBJECTS;
use windows_sys::Win32::System::Threading::WaitForMultipleObjects;

use super::alarm::Alarm;
use super::closings;
use super::device::{self, Begun, Device, Devices, LOOK, Outcome, Poll, PolledSocket};
use super::edges::Edges;
use super::port::{self, KernelPort};
use crate::engine::{
    Identity, Kind, Mode, Poller, Report, ReportBuffer, Standing, Watch, WatchError,
};
use crate::{Entry, Error, Events, RegistrationError, sys};

/// The keys of this poller's own packets. Those of others are addresses, and no address is as low.
const POLL: usize = 1;
const EDGE: usize = 2;
const WAKE: usize = 3;
const ALARM: usize = 4;

/// A completion port of the kernel, and the socket driver polled on it.
pub(crate) struct Afd {
    // In this order they go: the timer posts to the port.
    alarm: Alarm,
    state: Mutex<State>,
    looker: Device,
    port: KernelPort,
}

struct State {
    devices: Devices,
    records: HashMap<u32, Record>,
    /// What was found without waiting.
    found: Vec<Report>,
    /// Polls that were over when they had begun.
    over: Vec<*mut Poll>,
    /// Level-triggered sockets whose notification was delivered, and that are to be polled again. Not
    /// before somebody waits: what is found until then may hold no longer when it is told.
    due: VecDeque<u32>,
    /// The sockets whose edges are watched, and what is signalled when there are some.
    edges: Vec<u32>,
    signals: Vec<HANDLE>,
    /// Threads that wait for packets, and do not only look for some.
    waiting: usize,
    /// Wake-ups that nobody has taken.
    wakes: usize,
    /// Whether there ever was an alarm.
    has_alarm: bool,
    /// The callers' keys for what else completes on the port. They stay where they are.
    #[allow(clippy::vec_box, reason = "packets carry their addresses")]
    foreign: Vec<Box<usize>>,
}

/// What is known of a socket that is watched.
struct Record {
    /// Which socket it is.
    id: u64,
    watch: Watch,
    armed: bool,
    /// The poll that counts.
    poll: Option<Current>,
    /// Among those that are due.
    is_due: bool,
    edge: Option<Edge>,
    /// What has begun to hold since it was observed.
    risen: Events,
}

/// A poll that is under way.
#[derive(Clone, Copy)]
struct Current {
    poll: *mut Poll,
    /// What it is for.
    events: u32,
    /// The socket was armed again since. What this finds may have been dealt with before that.
    is_older: bool,
}

/// What is known of a socket whose edges are watched.
struct Edge {
    edges: Edges,
    /// The poll for what never falls, but for what was reported of that.
    lasting: Option<*mut Poll>,
    told: u32,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under
// the lock.
unsafe impl Send for State {}

impl Afd {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::open().map_err(|error| call_error(&error))
    }

    fn open() -> io::Result<Self> {
        let port = KernelPort::new()?;
        Ok(Afd {
            alarm: Alarm::new(&port, ALARM)?,
            state: Mutex::new(State {
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
            }),
            looker: Device::for_looks()?,
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
            .map_err(|error| call_error(&error))?;
        state.foreign.push(key);
        Ok(())
    }
}

impl State {
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
    fn drop_record(&mut self, number: u32) {
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
    fn drop_all(&mut self) {
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
    unsafe fn end_poll(&mut self, afd: &Afd, poll: *mut Poll) -> Option<Report> {
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
            found = afd.glance(&record.watch);
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
    fn poll_due(&mut self, port: &KernelPort, enough: usize) {
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
    fn may_have_packets(&self) -> bool {
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
    fn find_edges(&mut self) {
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
}

impl Poller for Afd {
    type Buffer = Buffer;

    const MISSES_CLOSES: bool = true;

    fn belongs_here(&self) -> bool {
        true
    }

    fn identify(&self, socket: u32) -> Result<Identity, RegistrationError> {
        let kind = match option(socket, SO_TYPE).map_err(|error| refusal(&error))? {
            SOCK_STREAM => Kind::Stream,
            SOCK_DGRAM => Kind::Datagram,
            _ => Kind::Datagram,
        };
        if base(socket).map_err(|error| refusal(&error))? != sys::handle(socket).addr() {
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
        let State {
            records,
            edges: watched,
            signals,
            ..
        } = &mut *state;
        let record = records.entry(number).or_insert_with(|| Record {
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
                    let edges = Edges::new(&self.port, EDGE, number);
                    let edges = edges.map_err(|error| WatchError::Refused(refusal(&error)))?;
                    watched.push(number);
                    signals.push(edges.signal());
                    // What listens, and what does not connect, does not end.
                    let is_endless = watch.kind == Kind::Datagram
                        || option(number, SO_ACCEPTCONN).is_ok_and(|listens| listens != 0);
                    record.edge.insert(Edge {
                        edges,
                        lasting: None,
                        told: if is_endless { LASTING } else { 0 },
                    })
                }
            };
            // What was there at the beginning is reported once; and what has risen before the change
            // of a filter that wanted it, so has to be noted.
            let risen = edge.edges.take();
            record.risen |= risen & lasting.wanted();
            let events = risen & watch.filter.wanted();
            if !events.is_empty() {
                let report = report(watch, events);
                state.found.push(report);
            }
        } else if let Some(edge) = record.edge.take() {
            state.drop_edge(number, id, edge);
        }
        state.poll(&self.port, number).map_err(|error| {
            state.drop_record(number);
            watch_error(&error)
        })
    }

    fn unwatch(&self, socket: u32) -> Result<(), WatchError> {
        let mut state = self.state();
        let known = state.records.get(&socket).map(|record| record.id);
        let is_polled = |record: &Record| record.poll.is_some();
        let is_open = match closings::known(socket) {
            // It was closed, and another one was armed in its place: or else its poll would be over.
            None => state.records.get(&socket).is_some_and(is_polled),
            id => id == known,
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
            for packet in &buffer.packets {
                let report = match packet.lpCompletionKey {
                    // SAFETY: under this key there are polls, and each packet is taken once.
                    POLL => unsafe { state.end_poll(self, packet.lpOverlapped.cast::<Poll>()) },
                    EDGE => state.end_edge(packet.lpOverlapped.addr() as u32),
                    WAKE => {
                        state.wakes -= 1;
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
                None if self.holds(&record.watch, report.events) => {
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
        for watches in probes.chunks(LOOK) {
            let mut found = self.look(looks, watches).iter().peekable();
            seen.extend(watches.iter().map(|watch| {
                let handle = sys::handle(watch.socket);
                let found = found.next_if(|found| found.handle == handle);
                let events = found.map_or(Events::empty(), |found| {
                    conditions(found.events, watch.kind)
                });
                match events.intersects(watch.filter.wanted()) {
                    true => events,
                    false => Events::empty(),
                }
            }));
        }
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

    fn rebuild(&self, _watches: &[Watch], _fetch: &mut dyn FnMut()) -> Vec<u32> {
        // There is nothing that cannot be ended.
        Vec::new()
    }
}

impl Afd {
    /// What holds now, of what is watched.
    fn glance(&self, watch: &Watch) -> u32 {
        let mut one = [look(watch)];
        match self.looker.look(&mut one) {
            Ok(1) => one[0].events,
            _ => 0,
        }
    }

    /// Whether any of these holds for a socket now.
    fn holds(&self, watch: &Watch, events: Events) -> bool {
        conditions(self.glance(watch), watch.kind).intersects(events)
    }

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
        for watches in probes.chunks(LOOK) {
            let mut seen = self.look(looks, watches).iter().peekable();
            for watch in watches {
                let handle = sys::handle(watch.socket);
                let Some(seen) = seen.next_if(|seen| seen.handle == handle) else {
                    continue;
                };
                let report = reports
                    .iter_mut()
                    .find(|report| (report.socket, report.turn) == (watch.socket, watch.turn));
                if let Some(report) = report {
                    report.events |= conditions(seen.events, watch.kind);
                }
            }
        }
    }

    /// Look at some sockets, and say of which something holds, in order.
    fn look<'a>(&self, looks: &'a mut Vec<PolledSocket>, watches: &[Watch]) -> &'a [PolledSocket] {
        looks.clear();
        looks.extend(watches.iter().map(look));
        let found = match self.looker.look(looks) {
            Ok(found) => found,
            // One that is no socket spoils it for all.
            Err(_) => self.look_at_each(looks),
        };
        &looks[..found]
    }

    /// Look at sockets one by one. Moves those of which something holds to the front.
    fn look_at_each(&self, looks: &mut [PolledSocket]) -> usize {
        let mut found = 0;
        for index in 0..looks.len() {
            let mut one = [looks[index]];
            if self.looker.look(&mut one) == Ok(1) {
                looks[found] = one[0];
                found += 1;
            }
        }
        found
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

/// Conditions of the driver that never fall once they hold.
const LASTING: u32 = device::DISCONNECT | device::ABORT | device::CONNECT_FAIL;

/// Of these, those after which nothing can be sent.
const FAILED: u32 = device::ABORT | device::CONNECT_FAIL;

/// What a poll is for.
fn polled(watch: &Watch) -> u32 {
    let mut events = device::ABORT | device::CONNECT_FAIL | device::LOCAL_CLOSE;
    let wanted = watch.filter.wanted();
    if wanted.contains(Events::IN) {
        events |= device::RECEIVE | device::RECEIVE_EXPEDITED | device::ACCEPT | device::DISCONNECT;
    }
    if wanted.contains(Events::OUT) {
        events |= device::SEND;
    }
    if wanted.contains(Events::HANGUP) {
        events |= device::DISCONNECT;
    }
    events
}

/// A question for a look.
fn look(watch: &Watch) -> PolledSocket {
    PolledSocket::new(sys::handle(watch.socket), polled(watch))
}

/// The contract's conditions, out of what the driver says.
fn conditions(found: u32, kind: Kind) -> Events {
    let is = |events: u32| found & events != 0;
    let failed = is(device::CONNECT_FAIL);
    let reset = is(device::ABORT);
    let mut events = Events::empty();
    events.set(
        Events::IN,
        is(device::RECEIVE
            | device::RECEIVE_EXPEDITED
            | device::ACCEPT
            | device::DISCONNECT
            | device::ABORT),
    );
    // Sending to what was reset does not block either, and is of no use.
    events.set(Events::OUT, is(device::SEND) && !failed && !reset);
    events.set(Events::ERR, failed || reset);
    events.set(
        Events::HANGUP,
        kind != Kind::Datagram && is(device::DISCONNECT | device::ABORT),
    );
    events
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

/// `getsockopt` for a number.
fn option(socket: u32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as i32;
    // SAFETY: the value is there for the call, and as long as it says.
    let status = unsafe {
        let value = (&raw mut value).cast();
        let socket = sys::handle(socket).addr();
        getsockopt(socket, SOL_SOCKET, name, value, &mut length)
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(last_error())
    }
}

/// The socket beneath all layers of other providers.
fn base(socket: u32) -> io::Result<SOCKET> {
    let mut base: SOCKET = 0;
    let mut length = 0;
    // SAFETY: the result is there for the call, and as long as it says.
    let status = unsafe {
        WSAIoctl(
            sys::handle(socket).addr(),
            SIO_BASE_HANDLE,
            std::ptr::null(),
            0,
            (&raw mut base).cast(),
            size_of::<SOCKET>() as u32,
            &mut length,
            std::ptr::null_mut(),
            None,
        )
    };
    if status == 0 {
        Ok(base)
    } else {
        Err(last_error())
    }
}

fn last_error() -> io::Error {
    // SAFETY: it reads a value of this thread.
    io::Error::from_raw_os_error(unsafe { WSAGetLastError() })
}

fn call_error(error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(code) if code as u32 == ERROR_NOT_ENOUGH_MEMORY => Error::OutOfMemory,
        code => Error::Os(code.unwrap_or_default()),
    }
}

fn refusal(error: &io::Error) -> RegistrationError {
    match error.raw_os_error() {
        Some(WSAENOTSOCK | ERROR_INVALID_HANDLE | ERROR_INVALID_PARAMETER) => {
            RegistrationError::NotASocket
        }
        Some(code) if code as u32 == ERROR_NOT_ENOUGH_MEMORY => RegistrationError::OutOfMemory,
        code => RegistrationError::Os(code.unwrap_or_default()),
    }
}

const ERROR_INVALID_HANDLE: i32 = 6;
const ERROR_INVALID_PARAMETER: i32 = 87;

fn watch_error(error: &io::Error) -> WatchError {
    match refusal(error) {
        // It was closed, and its number is something else's.
        RegistrationError::NotASocket => WatchError::Unknown,
        other => WatchError::Refused(other),
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
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::super::calls;
    use super::*;
    use crate::{Backend, CompletionPort, EventFilter, Registration, Trigger};

    fn port() -> CompletionPort {
        let port = CompletionPort::builder().backend(Backend::Afd).build();
        port.expect("a port")
    }

    /// Connected sockets, each with data to be read.
    fn readable(count: usize) -> io::Result<Vec<(TcpStream, TcpStream)>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        (0..count)
            .map(|_| {
                let mut peer = TcpStream::connect(listener.local_addr()?)?;
                let (socket, _) = listener.accept()?;
                send(&mut peer, &socket)?;
                Ok((socket, peer))
            })
            .collect()
    }

    /// Send something, and see that it has come.
    fn send(peer: &mut TcpStream, socket: &TcpStream) -> io::Result<()> {
        peer.write_all(b"x")?;
        socket.peek(&mut [0]).map(drop)
    }

    /// How many calls of the kernel this takes.
    fn count(action: impl FnOnce()) -> usize {
        let before = calls::made();
        action();
        calls::made() - before
    }

    #[test]
    fn a_packet_takes_as_many_calls_however_many_sockets_are_ready() -> io::Result<()> {
        let pairs = readable(300)?;
        let counts = [10, 300].map(|ready| {
            let port = port();
            for (socket, _) in &pairs[..ready] {
                let level = Trigger::PERSISTENT | Trigger::LEVEL;
                let entry = Registration::enable(socket, 1, EventFilter::IN, level);
                assert_eq!(port.register(entry), Ok(Ok(())));
            }
            // Of those that come out here there is one more to come.
            let mut entries = [Entry::default(); 3];
            assert_eq!(
                port.dequeue(&mut entries, None).map(|found| found.len()),
                Ok(3)
            );
            port.post(Entry::default()).expect("it is posted");
            let post = count(|| port.post(Entry::default()).expect("it is posted"));
            let socket = &pairs[ready - 1].0;
            let remove =
                count(|| assert_eq!(port.register(Registration::remove(socket)), Ok(Ok(()))));
            (post, remove)
        });
        assert_eq!(counts[0], counts[1]);
        assert!(counts[0].0 <= 1 && counts[0].1 <= 3, "{counts:?}");
        Ok(())
    }

    #[test]
    fn what_is_ready_when_it_is_armed_takes_one_call() -> io::Result<()> {
        let port = port();
        let pairs = readable(1)?;
        for (mut socket, mut peer) in pairs {
            for turn in 0..3 {
                let mut entries = [Entry::default(); 2];
                let once = Trigger::ONESHOT | Trigger::LEVEL;
                let mut batch = [Registration::enable(&socket, 1, EventFilter::IN, once)];
                let calls = count(|| {
                    let found = port.process(&mut batch, &mut entries, None);
                    assert_eq!(found.map(|found| found.len()), Ok(1));
                });
                // The first time, the socket has to be identified.
                assert!(calls == 1 || turn == 0, "{calls}");
                socket.read_exact(&mut [0])?;
                send(&mut peer, &socket)?;
            }
        }
        Ok(())
    }
}
