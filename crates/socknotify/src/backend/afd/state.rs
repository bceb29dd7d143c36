//! [`State`]: the watched sockets and their polls, under the backend's lock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use windows_sys::Win32::Foundation::ERROR_TOO_MANY_OPEN_FILES;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::conditions::{FIRST, Kind, conditions, polled};
use super::device::{self, Devices, Poll};
use super::edge::{Current, Edge, Polled};
use super::edges::Edges;
use super::packets::{POLL, WAKE};
use super::{closes, refusal, winsock};
use crate::engine::{ArmError, Interest, Mode, Report, Table};
use crate::os::Fd;
use crate::os::windows::port::KernelPort;
use crate::{Events, RegistrationError};

/// The state of a port on the driver, under its lock.
pub(super) struct State {
    pub(super) port: Arc<KernelPort>,
    pub(super) devices: Devices,
    records: HashMap<Fd, Record>,
    /// Polls that have completed immediately, and have no packet. Who holds the lock reports them, or
    /// [posts](Self::post_ready) their packets.
    pub(super) ready: Vec<*mut Poll>,
    /// Sockets to be polled before a thread waits: with edges that were reported, or which could not be polled.
    again: Vec<Fd>,
    /// Some could not be.
    must_retry: bool,
    /// How many threads wait for packets.
    pub(super) waiting: usize,
    /// Packets that were taken from the port by others.
    pub(super) fed: VecDeque<OVERLAPPED_ENTRY>,
    closed: bool,
}

/// The record of a watched socket.
struct Record {
    /// Which socket it is.
    id: u64,
    kind: Kind,
    /// As it was armed last.
    interest: Interest,
    /// The poll that counts.
    poll: Option<Current>,
    edge: Option<Edge>,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under
// the lock.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(port: Arc<KernelPort>) -> io::Result<Self> {
        Ok(State {
            devices: Devices::new(Arc::clone(&port), POLL.key())?,
            port,
            records: HashMap::new(),
            ready: Vec::new(),
            again: Vec::new(),
            must_retry: false,
            waiting: 0,
            fed: VecDeque::new(),
            closed: false,
        })
    }

    /// Arm a socket. If this does not [check](is_checked) whether it still is the one that was registered under this
    /// number, that is to be [checked](Self::check) afterwards.
    pub(super) fn arm(&mut self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let fd = interest.fd;
        if self.closed {
            return Err(ArmError::Stale);
        }
        if is_new {
            // Polls that were begun before are of no use.
            self.drop_record(fd);
            let record = Record {
                id: closes::known(fd).ok_or(ArmError::Stale)?,
                kind: winsock::kind(fd).map_err(|error| arm_error(&error))?,
                interest: *interest,
                poll: None,
                edge: None,
            };
            self.records.insert(fd, record);
        }
        let record = self.records.get_mut(&fd).ok_or(ArmError::Stale)?;
        let before = std::mem::replace(&mut record.interest, *interest);
        let is_edge = interest.word.mode() == Mode::Edge;
        if !is_edge {
            if let Some(edge) = record.edge.take() {
                drop_edge(fd, record.id, edge);
            }
        }
        let armed = match is_checked(interest) {
            true => self.arm_edges(fd, &before),
            false => self.poll(fd).map_err(|error| arm_error(&error)),
        };
        if !is_new && armed.is_err_and(is_passing) {
            self.poll_later(fd);
            return Ok(());
        }
        if armed.is_err() && is_new {
            self.drop_record(fd);
        }
        armed
    }

    /// Whether a number still refers to the socket that is watched under it, as of the last [`closes::catch_up`]. If
    /// not, it is not watched any more.
    pub(super) fn check(&mut self, fd: Fd) -> Result<(), ArmError> {
        let record = self.records.get(&fd).ok_or(ArmError::Stale)?;
        if closes::is_still(fd, record.id) {
            return Ok(());
        }
        self.drop_record(fd);
        Err(ArmError::Stale)
    }

    /// Whether a socket was closed, as of the last [`closes::catch_up`]. If so, it is not watched any more.
    pub(super) fn has_closed(&mut self, fd: Fd) -> bool {
        let id = self.records.get(&fd).map(|record| record.id);
        let is_open = id.is_some() && id == closes::known(fd);
        if !is_open {
            self.drop_record(fd);
        }
        !is_open
    }

    /// Record the edges of a socket from here on, and report what holds.
    fn arm_edges(&mut self, fd: Fd, before: &Interest) -> Result<(), ArmError> {
        // The events of another socket must not be taken.
        closes::catch_up();
        self.check(fd)?;
        let record = self.records.get_mut(&fd).ok_or(ArmError::Stale)?;
        if record.edge.is_some() && before.word.generation() == record.interest.word.generation() {
            // What is to be reported is on its way.
            return Ok(());
        }
        let edge = record
            .edge
            .get_or_insert_with(|| Edge::new(record.kind, fd));
        edge.start_over();
        self.poll(fd).map_err(|error| arm_error(&error))
    }

    /// Poll what is to be polled before a thread waits. True if something could not be, and is to be tried again.
    pub(super) fn poll_again(&mut self) -> bool {
        self.must_retry = false;
        if self.again.is_empty() {
            return false;
        }
        let mut again = std::mem::take(&mut self.again);
        // The number of a closed socket is not polled.
        closes::catch_up();
        for &fd in &again {
            if self.has_closed(fd) {
                continue;
            }
            let record = self.records.get_mut(&fd);
            if let Some(edge) = record.and_then(|record| record.edge.as_mut()) {
                edge.held &= !edge.reported;
            }
            self.poll_known(fd);
        }
        // A number may have been closed and used again until it was polled.
        closes::catch_up();
        for fd in again.drain(..) {
            // If it was, it is not watched any more.
            let _ = self.check(fd);
        }
        again.append(&mut self.again);
        self.again = again;
        self.must_retry
    }

    /// A socket could not be polled, or watched, for want of memory.
    fn poll_later(&mut self, fd: Fd) {
        self.again.push(fd);
        self.must_retry = true;
    }

    /// Watch conditions that hold.
    fn watch(&mut self, fd: Fd, conditions: u32) {
        let edge = self
            .records
            .get_mut(&fd)
            .and_then(|record| record.edge.as_mut());
        let Some(edge) = edge else {
            return;
        };
        let edges = edge.edges.as_mut();
        if edges.is_some_and(|edges| edges.watch().is_ok()) {
            edge.held |= conditions;
            self.poll_known(fd);
        } else {
            // There is no memory. They are found to hold when they are polled later.
            edge.reported |= conditions;
            self.poll_later(fd);
        }
    }

    /// Poll a socket that was registered before. What passes is tried again later; if it is closed, that will be
    /// detected.
    fn poll_known(&mut self, fd: Fd) {
        let polled = self.poll(fd);
        if polled.is_err_and(|error| is_passing(arm_error(&error))) {
            self.poll_later(fd);
        }
    }

    /// Poll a socket for what is wanted by now: a poll for something else has completed, and what it has found may be older. A
    /// thread that is about to arm that may be late each time.
    fn poll_latest(&mut self, latest: Interest) {
        let fd = latest.fd;
        if let Some(record) = self.records.get_mut(&fd) {
            let before = std::mem::replace(&mut record.interest, latest);
            if before.word.generation() != latest.word.generation() {
                record.edge.iter_mut().for_each(Edge::start_over);
            }
        }
        self.poll_known(fd);
        // What is wanted by now is wanted of this socket, if it is open even later.
        closes::catch_up();
        let _ = self.check(fd);
    }

    /// Poll a socket for what is wanted.
    fn poll(&mut self, fd: Fd) -> io::Result<()> {
        let State {
            devices,
            records,
            ready,
            ..
        } = self;
        let Some(record) = records.get_mut(&fd) else {
            return Ok(());
        };
        let wanted = match &record.edge {
            Some(edge) => edge.polled(&record.interest, record.kind),
            None if record.interest.is_enabled() => polled(&record.interest, record.kind),
            None => 0,
        };
        if let Some(current) = record.poll {
            // A cancelled poll leaves a packet: one that finds more than is wanted leaves none until it does. If it has
            // completed, the socket is polled again when its packet is dequeued.
            // SAFETY: as long as it was noted here, it has not ended.
            if current.covers(wanted) || unsafe { !devices.cancel(current.poll) } {
                return Ok(());
            }
        }
        record.poll = None;
        if wanted == 0 {
            return Ok(());
        }
        let (poll, is_over) = devices.begin(fd, wanted)?;
        if is_over {
            ready.push(poll);
        } else if let Some(edge) = &mut record.edge {
            edge.reported &= !wanted;
            edge.recorded &= !wanted;
        }
        record.poll = Some(Current {
            poll,
            events: wanted,
            generation: record.interest.word.generation(),
        });
        Ok(())
    }

    /// Stop watching a socket.
    pub(super) fn drop_record(&mut self, fd: Fd) {
        let Some(record) = self.records.remove(&fd) else {
            return;
        };
        if let Some(Current { poll, .. }) = record.poll {
            // SAFETY: as above.
            unsafe { self.devices.cancel(poll) };
        }
        if let Some(edge) = record.edge {
            drop_edge(fd, record.id, edge);
        }
    }

    /// The same for a socket that was closed, whether or not its number is another's by now.
    fn drop_closed(&mut self, fd: Fd) {
        let edges = self
            .records
            .get_mut(&fd)
            .and_then(|record| record.edge.as_mut()?.edges.take());
        if let Some(edges) = edges {
            edges.end_of_closed();
        }
        self.drop_record(fd);
    }

    /// Stop watching all sockets, for good.
    pub(super) fn close(&mut self) {
        self.closed = true;
        // All at once: one by one takes as many calls.
        self.devices.cancel_all();
        for (fd, record) in std::mem::take(&mut self.records) {
            if let Some(edge) = record.edge {
                drop_edge(fd, record.id, edge);
            }
        }
    }

    /// This thread does not wait. Leave to those that do what was not reported, and what could not be polled.
    pub(super) fn leave(&mut self) {
        self.post_ready();
        if self.must_retry && self.waiting > 0 {
            // Who begins to wait tries again.
            self.port.insist(WAKE.key(), 0);
        }
    }

    /// Post the packets of what was not reported.
    pub(super) fn post_ready(&mut self) {
        for poll in self.ready.drain(..) {
            self.port.insist(POLL.key(), poll.expose_provenance());
        }
    }

    /// A poll has completed.
    ///
    /// # Safety
    ///
    /// As for [`Devices::end`].
    pub(super) unsafe fn end_poll(&mut self, table: &Table, poll: *mut Poll) -> Option<Report> {
        // SAFETY: the caller's promise.
        let (fd, found) = unsafe { self.devices.end(poll) };
        let record = self.records.get_mut(&fd)?;
        let current = record.poll.take_if(|current| current.poll == poll);
        let Current { generation, .. } = current?;
        if found & device::LOCAL_CLOSE != 0 {
            closes::closed(fd, record.id);
            self.drop_closed(fd);
            return None;
        }
        let latest = table.interest(fd)?;
        let is_edge = record.edge.is_some();
        if latest.is_enabled() && is_edge != (latest.word.mode() == Mode::Edge) {
            // Whoever has changed it is about to arm that.
            return None;
        }
        if latest.word.generation() != generation {
            self.poll_latest(latest);
            return None;
        }
        if is_edge {
            return self.end_edge_poll(&latest, found);
        }
        let events = conditions(found, record.kind);
        if events.is_empty() {
            self.poll_known(fd);
            return None;
        }
        Some(Report::new(fd, generation, events))
    }

    /// A socket's poll for edges has completed: see the table in [`edge`](super::edge).
    fn end_edge_poll(&mut self, interest: &Interest, found: u32) -> Option<Report> {
        let fd = interest.fd;
        let is_waited_for = self.waiting > 0;
        let record = self.records.get_mut(&fd)?;
        // The events of another socket must not be taken.
        if !is_open(fd, record.id) {
            return None;
        }
        let edge = record.edge.as_mut()?;
        edge.read_record(&self.port, fd, found & FIRST);
        let Polled { begun, still } = edge.on_polled(found);
        let events = edge.without_out(conditions(begun, record.kind));
        let events = events & interest.word.filter().wanted();
        let first = found & FIRST;
        if !events.is_empty() {
            self.again.push(fd);
        }
        if still != 0 || first != 0 && is_waited_for {
            self.watch(fd, first);
        } else if first == 0 || events.is_empty() {
            self.poll_known(fd);
        }
        (!events.is_empty()).then(|| Report::new(fd, interest.word.generation(), events))
    }

    /// There may be edges of a socket that is watched.
    pub(super) fn end_edges(&mut self, table: &Table, fd: Fd) -> Option<Report> {
        let report = self.records.get_mut(&fd)?.take_edges(table)?;
        self.again.push(fd);
        Some(report)
    }
}

impl Record {
    /// Report the edges that are wanted now, and forget the others.
    fn take_edges(&mut self, table: &Table) -> Option<Report> {
        let fd = self.interest.fd;
        let mut latest = table.interest(fd)?;
        let mut events = Events::empty();
        // A thread that changes the filter all the time may have done so meanwhile. It waits for the lock by then, so
        // that this ends.
        loop {
            // The events of another socket must not be taken; and what is wanted by now is wanted of this socket, if it
            // is open even later.
            if !is_open(fd, self.id) {
                return None;
            }
            let edge = self.edge.as_mut()?;
            edge.recorded |= edge.edges.as_ref().map_or(0, Edges::take);
            // Polls report the others. If one of these were noted as reported while a poll for it is pending, the rise that
            // completes that poll would pass for this one.
            let begun = edge.held & edge.recorded;
            edge.recorded &= !begun;
            edge.reported |= begun;
            edge.repeated &= begun & device::ACCEPT == 0;
            events |= edge.without_out(conditions(begun, self.kind));
            let before = std::mem::replace(&mut latest, table.interest(fd)?);
            if latest.word.generation() == before.word.generation() {
                break;
            }
        }
        let events = events & latest.word.filter().wanted();
        let is_wanted =
            latest.is_enabled() && latest.word.mode() == Mode::Edge && !events.is_empty();
        is_wanted.then(|| Report::new(fd, latest.word.generation(), events))
    }
}

/// Stop recording the edges of a socket.
fn drop_edge(fd: Fd, id: u64, edge: Edge) {
    if let Some(edges) = edge.edges {
        if !is_open(fd, id) {
            edges.end_of_closed();
        }
    }
}

/// Whether the number still refers to this socket.
fn is_open(fd: Fd, id: u64) -> bool {
    closes::catch_up();
    closes::known(fd) == Some(id)
}

/// Whether [`State::arm`] checks which socket it is.
pub(super) fn is_checked(interest: &Interest) -> bool {
    interest.word.mode() == Mode::Edge && interest.is_enabled()
}

/// Whether the same may succeed later.
fn is_passing(error: ArmError) -> bool {
    const TOO_MANY_HANDLES: i32 = ERROR_TOO_MANY_OPEN_FILES as i32;
    matches!(
        error,
        ArmError::Refused(
            RegistrationError::OutOfMemory
                | RegistrationError::LimitReached
                | RegistrationError::Os(TOO_MANY_HANDLES)
        )
    )
}

fn arm_error(error: &io::Error) -> ArmError {
    match refusal(error) {
        // It was closed, and its number refers to something else.
        RegistrationError::NotASocket => ArmError::Stale,
        other => ArmError::Refused(other),
    }
}
