//! A port of the caller's, and the port of ours beneath it.
//!
//! Sockets are registered with a port of ours, and a thread of ours, the service thread, sends what is
//! dequeued from it to the caller's. A packet there cannot be changed any more. So there is one for each
//! registration at the most, as far as is known: what comes while it waits is kept until it is gone.
//!
//! - Who takes it by `ProcessSocketNotifications` has it completed here: with what was kept, with what
//!   holds by now, and with REMOVE. A level that holds no more is not told.
//! - When it is taken by the system's own calls, that is found out from the number of packets that wait:
//!   see [`Sent`]. Where packets of others hide it, what comes next is sent in another packet. If the first
//!   turns up after all, together with the other or of a one-shot registration, it is dropped, and the other
//!   one has what it told.
//!
//! A call that enables or dequeues waits until the service thread has sent all that was ready when it was
//! made. So whoever takes packets next finds them.
//!
//! A persistent level-triggered registration is one-shot beneath, and armed again when its packet was
//! taken. Whoever took it is about to deal with what it told; if it holds still a moment later, it is
//! told again.
//!
//! A registration beneath is disabled when the caller removes it, and removed when the caller has taken
//! the last notification. Until then it tells whether a socket is the one that was registered.
//!
//! The caller's port is held by a handle of ours, by which packets are taken too: its value is not given to
//! another port meanwhile. When it is the last one, the caller has closed the port.

use std::collections::HashMap;
use std::os::windows::io::{OwnedHandle, RawSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use port::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Operation, RegisterError,
    Registration, RegistrationError, Trigger,
};
use windows_sys::Win32::Foundation::{
    ERROR_INVALID_HANDLE, ERROR_NOT_ENOUGH_MEMORY, ERROR_SUCCESS, HANDLE,
};
use windows_sys::Win32::Networking::WinSock::{SOCK_NOTIFY_REGISTRATION, SOCKET};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::kernel;
use super::sent::{IDS, Mark, Sent};

/// How often to look whether the caller has closed its port.
const LOOK: Duration = Duration::from_millis(50);

/// How often to look whether a packet was taken: at first, and at the longest.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(16);

/// How long whoever has taken the packet of a level has to deal with it.
const MOMENT: Duration = Duration::from_millis(4);

/// How long a level waits for its packet to be taken where packets of others hide whether it was: at
/// first, and at the longest.
const DOUBT: Duration = Duration::from_millis(8);
const DOUBT_MAX: Duration = Duration::from_millis(128);

/// No port has so many threads.
const PLACES: usize = 1 << 20;

/// The bridges, by the values of the caller's handles.
static BRIDGES: Mutex<Option<HashMap<usize, Arc<Bridge>>>> = Mutex::new(None);

pub(super) struct Bridge {
    /// A handle of our own of the caller's port.
    port: OwnedHandle,
    inner: CompletionPort,
    state: Mutex<State>,
    /// The latest mark that the thread has passed.
    passed: Mutex<usize>,
    passing: Condvar,
    /// The caller has closed its port.
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    records: HashMap<u32, Record>,
    /// The latest registration of each socket.
    ids: HashMap<SOCKET, u32>,
    latest: u32,
    sent: Sent,
    /// Levels that are to be armed again.
    due: Vec<Due>,
    /// The last notifications that could not be posted.
    unsent: Vec<u32>,
    marks: usize,
    /// The service thread looks again at this time, if nothing comes before.
    next_look: Option<Instant>,
}

/// A level that is to be armed again.
struct Due {
    time: Instant,
    id: u32,
    /// The packet that is taken for gone then.
    doubted: Option<u64>,
}

/// A registration.
struct Record {
    socket: SOCKET,
    key: usize,
    is_stream: bool,
    filter: EventFilter,
    is_level: bool,
    is_once: bool,
    phase: Phase,
    /// What becomes true beneath is to be told.
    armed: bool,
    /// The position of the packet that may wait in the caller's port.
    packet: Option<u64>,
    /// The mark of the latest packet.
    mark: Mark,
    /// What came while it did.
    kept: Events,
    /// It is to be armed again, and not yet.
    is_due: bool,
    /// How long its next packet may be hidden.
    patience: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Enabled,
    Disabled,
    /// It was removed, and the last notification is yet to be sent.
    Leaving,
    /// The last notification was sent.
    Left,
}

impl Record {
    fn wanted(&self) -> Events {
        Events::from_bits_truncate(self.filter.bits().into()) | Events::ERR
    }

    /// Whether what holds now matters to whoever takes its packet, which tells this. With an error it tells
    /// all that goes with that already.
    fn is_asked(&self, told: Events) -> bool {
        self.phase == Phase::Enabled
            && !told.contains(Events::ERR)
            && (self.is_persistent_level() || !(told | Events::ERR).contains(self.wanted()))
    }

    fn is_persistent_level(&self) -> bool {
        self.is_level && !self.is_once
    }

    fn stop(&mut self, phase: Phase) {
        self.phase = phase;
        self.armed = false;
        self.kept = Events::empty();
        self.is_due = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bridge {
    /// The bridge of a port, made when it is first asked for.
    pub(super) fn of(port: HANDLE) -> Result<Arc<Self>, u32> {
        let mut bridges = lock(&BRIDGES);
        let bridges = bridges.get_or_insert_default();
        let value = port.addr();
        if let Some(bridge) = bridges.get(&value) {
            let is_it = kernel::is_same(port, &bridge.port);
            if is_it.unwrap_or_else(|| !kernel::is_last(&bridge.port)) {
                return Ok(Arc::clone(bridge));
            }
        }
        sweep(bridges);
        let same = bridges
            .values()
            .find(|bridge| kernel::is_same(port, &bridge.port) == Some(true));
        if let Some(bridge) = same.cloned() {
            bridges.insert(value, Arc::clone(&bridge));
            return Ok(bridge);
        }
        let bridge = Arc::new(Bridge {
            port: kernel::duplicate(port)?,
            inner: CompletionPort::builder()
                .concurrency(PLACES)
                // The kernel's own would be reached through this library.
                .backend(Backend::Afd)
                .build()
                .map_err(Error::code)?,
            state: Mutex::default(),
            passed: Mutex::new(0),
            passing: Condvar::new(),
            is_closed: AtomicBool::new(false),
        });
        kernel::stay_loaded();
        let service = Arc::clone(&bridge);
        thread::Builder::new()
            .name("socknotify".to_owned())
            .spawn(move || service.serve())
            .map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?;
        bridges.insert(value, Arc::clone(&bridge));
        Ok(bridge)
    }

    /// Apply one entry. Returns its result.
    ///
    /// The last notification of a registration that it removes is sent, unless there is a list to put
    /// the registration on.
    pub(super) fn register(
        &self,
        entry: &SOCK_NOTIFY_REGISTRATION,
        mut leaving: Option<&mut Vec<u32>>,
    ) -> u32 {
        let mut outcome = self.try_register(entry, leaving.as_deref_mut());
        match outcome {
            Err(RegistrationError::OtherPort) => {
                let_go(entry.socket);
                outcome = self.try_register(entry, leaving);
            }
            // Perhaps only beneath, and for as long as that takes.
            Err(RegistrationError::RemovePending) => {
                self.catch_up();
                outcome = self.try_register(entry, leaving);
            }
            _ => {}
        }
        match outcome {
            Ok(()) => ERROR_SUCCESS,
            // There is nothing to be disabled.
            Err(RegistrationError::NotFound) if entry.operation == Operation::DISABLE.bits() => {
                ERROR_SUCCESS
            }
            // The port was closed while it was used.
            Err(RegistrationError::Os(735)) => ERROR_INVALID_HANDLE,
            Err(error) => error.code(),
        }
    }

    fn try_register(
        &self,
        entry: &SOCK_NOTIFY_REGISTRATION,
        leaving: Option<&mut Vec<u32>>,
    ) -> Result<(), RegistrationError> {
        let mut state = lock(&self.state);
        let socket = entry.socket;
        let operation = Operation::from_bits_retain(entry.operation);
        match operation {
            Operation::ENABLE => self.enable(&mut state, entry),
            Operation::DISABLE | Operation::REMOVE => {
                self.disable(socket)?;
                let id = state.ids.get(&socket).copied();
                let record = id.and_then(|id| Some((id, state.records.get_mut(&id)?)));
                let Some((id, record)) = record else {
                    return Err(RegistrationError::NotFound);
                };
                if matches!(record.phase, Phase::Leaving | Phase::Left) {
                    return Err(RegistrationError::NotFound);
                }
                if operation == Operation::DISABLE {
                    record.stop(Phase::Disabled);
                    return Ok(());
                }
                record.stop(Phase::Leaving);
                match leaving {
                    Some(leaving) if record.packet.is_some() => leaving.push(id),
                    _ => self.send(&mut state, id, Events::REMOVE),
                }
                Ok(())
            }
            // Nothing, or too much.
            _ => self.beneath(operation, socket, 0, None, false),
        }
    }

    fn enable(
        &self,
        state: &mut State,
        entry: &SOCK_NOTIFY_REGISTRATION,
    ) -> Result<(), RegistrationError> {
        let socket = entry.socket;
        let key = entry.completionKey.addr();
        let filter = EventFilter::from_bits_retain(entry.eventFilter);
        let trigger = Trigger::from_bits_retain(entry.triggerFlags);
        // What the library has beyond that is none of the function's.
        if !EventFilter::ALL.contains(filter) {
            return Err(RegistrationError::InvalidFilter);
        }
        if !Trigger::ALL.contains(trigger) {
            return Err(RegistrationError::InvalidTrigger);
        }
        let is_persistent_level =
            [Trigger::LEVEL, Trigger::LEVEL | Trigger::PERSISTENT].contains(&trigger);
        let mut known = state.ids.get(&socket).copied();
        if let Some(id) = known.filter(|id| state.is_over(*id)) {
            self.find_gone(state);
            if state.records.contains_key(&id) {
                let waits = state.sent.is_certain() || state.records[&id].phase == Phase::Leaving;
                if waits && self.disable(socket).is_ok() {
                    return Err(RegistrationError::RemovePending);
                }
                self.end(state, id);
            }
            known = None;
        }
        let beneath = Some((
            filter,
            match is_persistent_level {
                true => Trigger::ONESHOT | Trigger::LEVEL,
                false => trigger,
            },
        ));
        // If the socket was closed, and this is another one, nothing of the old one's goes on.
        let mut same = known.filter(|id| state.records[id].key == key);
        if let Some(id) = same {
            match self.beneath(Operation::ENABLE, socket, id, beneath, true) {
                Err(RegistrationError::NotFound) => same = None,
                outcome => outcome?,
            }
        }
        let id = match same {
            Some(id) => id,
            None => {
                let id = state.unused_id()?;
                self.beneath(Operation::ENABLE, socket, id, beneath, false)?;
                if let Some(closed) = known {
                    state.forget(closed);
                }
                state.ids.insert(socket, id);
                id
            }
        };
        let record = state.records.entry(id).or_insert_with(|| Record {
            socket,
            key,
            is_stream: kernel::is_stream(socket),
            filter,
            is_level: false,
            is_once: false,
            phase: Phase::Disabled,
            armed: false,
            packet: None,
            mark: Mark { id, sequence: 0 },
            kept: Events::empty(),
            is_due: false,
            patience: DOUBT,
        });
        let is_level = trigger.contains(Trigger::LEVEL);
        // Edges go on, while levels are told anew.
        let goes_on = record.phase == Phase::Enabled && !record.is_level && !is_level;
        let kept = if goes_on {
            record.kept
        } else {
            Events::empty()
        };
        record.stop(Phase::Enabled);
        record.armed = true;
        record.filter = filter;
        record.is_level = is_level;
        record.is_once = trigger.contains(Trigger::ONESHOT);
        record.kept = kept & record.wanted();
        Ok(())
    }

    fn disable(&self, socket: SOCKET) -> Result<(), RegistrationError> {
        self.beneath(Operation::DISABLE, socket, 0, None, true)
    }

    /// Apply one entry to the port of ours, if need be to what is registered only.
    fn beneath(
        &self,
        operation: Operation,
        socket: SOCKET,
        id: u32,
        wanted: Option<(EventFilter, Trigger)>,
        only_known: bool,
    ) -> Result<(), RegistrationError> {
        // SAFETY: whose socket it is, is for the caller to know.
        let mut registration = unsafe { Registration::from_raw(socket as RawSocket) };
        if only_known {
            registration = registration.only_known();
        }
        registration.operation = operation;
        registration.completion_key = id as usize;
        if let Some((filter, trigger)) = wanted {
            registration.event_filter = filter;
            registration.trigger = trigger;
        }
        self.inner
            .register(registration)
            .map_err(|error| match error {
                RegisterError::Entry(error) => error,
                RegisterError::Call(error) => RegistrationError::Os(error.code() as i32),
            })
    }

    /// Wait until all that was ready before this call is in the caller's port.
    pub(super) fn catch_up(&self) {
        let mark = {
            let mut state = lock(&self.state);
            state.marks += 1;
            state.marks
        };
        if self.inner.post(Entry::new(0, 0, mark)).is_err() {
            return;
        }
        let mut passed = lock(&self.passed);
        while *passed < mark {
            passed = self
                .passing
                .wait(passed)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// These packets have just been taken from the caller's port. Complete them, and drop those that
    /// tell what holds no more.
    pub(super) fn taken(&self, packets: &mut Vec<OVERLAPPED_ENTRY>) {
        let marks: Vec<_> = packets
            .iter_mut()
            .map(|packet| kernel::take_mark(packet).map(Mark::from_bits))
            .collect();
        let mut state = lock(&self.state);
        if marks.iter().any(Option::is_none) {
            state.sent.meet_other();
        }
        // Of two packets of one registration the later one tells all.
        let mut latest = HashMap::new();
        for (index, mark) in marks.iter().enumerate() {
            if let Some(mark) = mark {
                latest.insert(mark.id, index);
            }
        }
        let mut questions = Vec::new();
        let asked: Vec<_> = marks
            .iter()
            .zip(packets.iter())
            .map(|(mark, packet)| {
                let record = state.records.get(&mark.as_ref()?.id)?;
                let told = Events::from_bits_truncate(packet.dwNumberOfBytesTransferred);
                record.is_asked(told).then(|| {
                    questions.push(kernel::question(record.socket));
                    (questions.len() - 1, record.is_stream)
                })
            })
            .collect();
        kernel::look(&mut questions);
        let mut index = 0;
        packets.retain_mut(|packet| {
            let (mark, asked) = (marks[index], asked[index]);
            let Some(mark) = mark else {
                index += 1;
                return true;
            };
            let is_latest = latest[&mark.id] == index;
            index += 1;
            let holds =
                asked.and_then(|(asked, is_stream)| kernel::answer(&questions[asked], is_stream));
            let told = Events::from_bits_truncate(packet.dwNumberOfBytesTransferred);
            match self.complete(&mut state, mark, is_latest, told, holds) {
                Some(events) => {
                    packet.dwNumberOfBytesTransferred = events.bits();
                    true
                }
                None => false,
            }
        });
    }

    /// What a packet of this registration has to tell, now that it is taken; if anything.
    fn complete(
        &self,
        state: &mut State,
        mark: Mark,
        is_latest: bool,
        told: Events,
        holds: Option<Events>,
    ) -> Option<Events> {
        let id = mark.id;
        if told.contains(Events::REMOVE) {
            self.end(state, id);
            return Some(told);
        }
        let State { records, sent, .. } = state;
        let Some(record) = records.get_mut(&id) else {
            return Some(told);
        };
        if record.mark == mark {
            if let Some(position) = record.packet.take() {
                sent.remove(position);
            }
        } else if record.phase == Phase::Enabled
            && record.packet.is_some()
            && (record.is_once || !is_latest)
        {
            record.kept |= told & record.wanted();
            return None;
        }
        record.patience = DOUBT;
        match record.phase {
            Phase::Left | Phase::Disabled => return Some(told),
            Phase::Leaving => {
                self.end(state, id);
                return Some(told | Events::REMOVE);
            }
            Phase::Enabled => {}
        }
        // Of what holds, only what never falls can be taken for an edge.
        let seen = match record.is_level {
            true => holds.unwrap_or_default(),
            false => holds.unwrap_or_default() & (Events::HANGUP | Events::ERR),
        };
        let events = (told | record.kept | seen) & record.wanted();
        record.kept = Events::empty();
        let is_past = record.is_persistent_level()
            && holds.is_some_and(|holds| !holds.intersects(record.wanted()))
            && !events.contains(Events::ERR);
        if is_past || events.is_empty() {
            if !record.armed && (record.is_level || record.is_once) {
                self.arm(state, id);
            }
            return None;
        }
        if record.is_once && record.armed {
            // It was enabled while this was waiting, and what is delivered disables it.
            record.armed = false;
            let _ = self.disable(record.socket);
        }
        let waits = record.armed || record.is_due || record.packet.is_some();
        if record.is_persistent_level() && !waits {
            record.is_due = true;
            self.push_due(state, MOMENT, id, None);
        }
        Some(events)
    }

    /// Send the last notifications of what this call has removed, unless they were taken with others.
    pub(super) fn send_last(&self, leaving: &[u32]) {
        if leaving.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for &id in leaving {
            let record = state.records.get(&id);
            if record.is_some_and(|record| record.phase == Phase::Leaving) {
                self.send(&mut state, id, Events::REMOVE);
            }
        }
    }

    /// Arm the levels whose packets were taken, whether the time has come or not: somebody asks.
    pub(super) fn arm_all(&self) {
        let mut state = lock(&self.state);
        self.find_gone(&mut state);
        self.arm_due_at(&mut state, None);
    }

    fn arm_due_at(&self, state: &mut State, now: Option<Instant>) {
        for due in std::mem::take(&mut state.due) {
            let is_early = match now {
                Some(now) => due.time > now,
                None => due.doubted.is_some(),
            };
            if is_early {
                state.due.push(due);
                continue;
            }
            let record = state.records.get_mut(&due.id);
            let Some(record) = record.filter(|record| record.phase == Phase::Enabled) else {
                continue;
            };
            match due.doubted {
                None if std::mem::take(&mut record.is_due) => self.arm(state, due.id),
                Some(_) if record.packet == due.doubted => {
                    record.packet = None;
                    record.patience = (record.patience * 2).min(DOUBT_MAX);
                    self.arm(state, due.id);
                }
                _ => {}
            }
        }
    }

    /// Have a level armed again after this time, by the service thread.
    fn push_due(&self, state: &mut State, after: Duration, id: u32, doubted: Option<u64>) {
        let time = Instant::now() + after;
        state.due.push(Due { time, id, doubted });
        if state.next_look.is_some_and(|look| look > time) {
            // It sleeps, and is to sleep less. For this mark nobody waits.
            state.next_look = None;
            state.marks += 1;
            let _ = self.inner.post(Entry::new(0, 0, state.marks));
        }
    }

    /// What the service thread does until the caller's port is closed.
    fn serve(&self) {
        let mut entries = [Entry::default(); 64];
        let mut pause = SOON;
        let mut checked = Instant::now();
        loop {
            let timeout = lock(&self.state).sleep(pause);
            let count = match self.inner.dequeue(&mut entries, Some(timeout)) {
                Ok(entries) => entries.len(),
                Err(Error::TimedOut) => 0,
                Err(_) => break,
            };
            let mark = self.pass_on(&entries[..count]);
            if mark > 0 {
                self.pass_mark(mark, &mut entries);
            }
            let now = Instant::now();
            let mut state = lock(&self.state);
            state.next_look = None;
            self.arm_due_at(&mut state, Some(now));
            self.send_unsent(&mut state);
            // What was just sent is not gone yet.
            pause = match count > 0 || self.find_gone(&mut state) {
                true => SOON,
                false => (pause * 2).min(LATER),
            };
            drop(state);
            if now.duration_since(checked) >= LOOK {
                checked = now;
                if kernel::is_last(&self.port) {
                    break;
                }
            }
        }
        self.is_closed.store(true, Ordering::Release);
        // As long as its sockets cannot be had, the bridge can be found.
        self.inner.close();
        if let Some(bridges) = &mut *lock(&BRIDGES) {
            bridges.retain(|_, bridge| !std::ptr::eq(&**bridge, self));
        }
        *lock(&self.passed) = usize::MAX;
        self.passing.notify_all();
    }

    /// Whether the caller has closed its port.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The handle of ours of the caller's port.
    pub(super) fn port(&self) -> &OwnedHandle {
        &self.port
    }

    /// Send what has come out of our port to the caller's. Returns the latest mark among it, or 0.
    fn pass_on(&self, entries: &[Entry]) -> usize {
        let mut mark = 0;
        for entry in entries {
            if entry.overlapped != 0 {
                mark = entry.overlapped.max(mark);
            } else {
                let id = entry.completion_key as u32;
                self.tell(&mut lock(&self.state), id, entry.events());
            }
        }
        mark
    }

    /// Say that a mark was passed, after what was ready when it was posted.
    ///
    /// A mark that is posted while a wait of this thread ends is dequeued before what became ready after that.
    fn pass_mark(&self, mut mark: usize, entries: &mut [Entry]) {
        // Where there is always more, whoever waits for the mark need not wait for all of it.
        for _ in 0..16 {
            match self.inner.dequeue(entries, Some(Duration::ZERO)) {
                Ok(entries) => mark = mark.max(self.pass_on(entries)),
                Err(_) => break,
            }
        }
        let mut passed = lock(&self.passed);
        *passed = mark.max(*passed);
        self.passing.notify_all();
    }

    /// A registration has something to tell.
    fn tell(&self, state: &mut State, id: u32, events: Events) {
        let record = state.records.get_mut(&id);
        let Some(record) = record.filter(|record| record.armed) else {
            return;
        };
        if record.is_level || record.is_once {
            record.armed = false;
        }
        if record.packet.is_some() {
            self.find_gone(state);
            if let Some(record) = state.records.get_mut(&id) {
                if record.packet.is_some() && state.sent.is_certain() {
                    record.kept |= events;
                    return;
                }
            }
        }
        self.send(state, id, events);
    }

    /// Send a packet of a registration to the caller's port.
    fn send(&self, state: &mut State, id: u32, events: Events) {
        let Some(record) = state.records.get_mut(&id) else {
            return;
        };
        let is_last = events.contains(Events::REMOVE);
        record.mark = record.mark.next();
        if !kernel::post(&self.port, record.key, events.bits(), record.mark.bits()) {
            // There is no memory. What holds may be told later, and REMOVE has to be.
            if is_last {
                state.unsent.push(id);
            } else {
                record.armed = record.is_level || record.is_once;
                self.arm(state, id);
            }
            return;
        }
        let position = state.sent.add(id, kernel::depth(&self.port).unwrap_or(0));
        record.packet = Some(position);
        if is_last {
            record.phase = Phase::Left;
        } else if record.is_persistent_level() && !state.sent.is_certain() {
            let patience = record.patience;
            self.push_due(state, patience, id, Some(position));
        }
    }

    /// Send the last notifications that could not be sent before.
    fn send_unsent(&self, state: &mut State) {
        for id in std::mem::take(&mut state.unsent) {
            self.send(state, id, Events::REMOVE);
        }
    }

    /// Find out which packets are gone. True if some are.
    fn find_gone(&self, state: &mut State) -> bool {
        if state.sent.is_empty() {
            return false;
        }
        state.sent.read(kernel::depth(&self.port).unwrap_or(0));
        let mut any = false;
        while let Some((id, position)) = state.sent.next_gone() {
            any = true;
            let Some(record) = state.records.get_mut(&id) else {
                continue;
            };
            if record
                .packet
                .take_if(|packet| *packet == position)
                .is_none()
            {
                continue;
            }
            record.patience = DOUBT;
            let kept = std::mem::take(&mut record.kept);
            if record.phase == Phase::Left {
                self.end(state, id);
            } else if record.is_persistent_level() {
                self.level_taken(state, id);
            } else if !kept.is_empty() {
                self.send(state, id, kept);
            }
        }
        any
    }

    /// The packet of a level is gone. If the level holds, whoever took it may be about to deal with it.
    fn level_taken(&self, state: &mut State, id: u32) {
        let record = state.records.get_mut(&id);
        let Some(record) = record.filter(|record| record.phase == Phase::Enabled) else {
            return;
        };
        if record.armed || record.is_due {
            return;
        }
        let mut question = [kernel::question(record.socket)];
        kernel::look(&mut question);
        let holds = kernel::answer(&question[0], record.is_stream);
        if holds.is_none_or(|holds| holds.intersects(record.wanted())) {
            record.is_due = true;
            self.push_due(state, MOMENT, id, None);
        } else {
            self.arm(state, id);
        }
    }

    /// Have it told once when there is something.
    fn arm(&self, state: &mut State, id: u32) {
        let Some(record) = state.records.get_mut(&id) else {
            return;
        };
        let socket = record.socket;
        let wanted = match record.is_level {
            true => Trigger::ONESHOT | Trigger::LEVEL,
            false => Trigger::ONESHOT | Trigger::EDGE,
        };
        let wanted = Some((record.filter, wanted));
        // The socket may have been closed, and its value may be another's, which this does not touch.
        match self.beneath(Operation::ENABLE, socket, id, wanted, true) {
            Ok(()) => record.armed = true,
            Err(_) => state.forget(id),
        }
    }

    /// The caller has taken the last notification of a registration.
    fn end(&self, state: &mut State, id: u32) {
        if let Some(record) = state.records.get(&id) {
            // If it is closed, there is nothing to be removed.
            let _ = self.beneath(Operation::REMOVE, record.socket, 0, None, false);
            state.forget(id);
        }
    }
}

impl State {
    /// Whether a registration was removed.
    fn is_over(&self, id: u32) -> bool {
        let record = self.records.get(&id);
        record.is_none_or(|record| matches!(record.phase, Phase::Leaving | Phase::Left))
    }

    fn unused_id(&mut self) -> Result<u32, RegistrationError> {
        if self.records.len() >= IDS as usize {
            return Err(RegistrationError::LimitReached);
        }
        loop {
            self.latest = (self.latest + 1) % IDS;
            if !self.records.contains_key(&self.latest) {
                return Ok(self.latest);
            }
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(record) = self.records.remove(&id) else {
            return;
        };
        if self.ids.get(&record.socket) == Some(&id) {
            self.ids.remove(&record.socket);
        }
    }

    /// How long there is nothing to do but for what comes: the service thread sleeps so long.
    fn sleep(&mut self, pause: Duration) -> Duration {
        let now = Instant::now();
        let due = self.due.iter().map(|due| due.time).min();
        let pause = match self.sent.is_empty() && self.unsent.is_empty() {
            true => LOOK,
            false => pause,
        };
        let pause = match due {
            Some(time) => pause.min(time.saturating_duration_since(now).max(SOON)),
            None => pause,
        };
        self.next_look = Some(now + pause);
        pause
    }
}

/// A socket is to be registered with a port, and is registered with another one: unless the caller has
/// closed that port, or taken the last notification out of it.
fn let_go(socket: SOCKET) {
    let bridges: Vec<_> = match &mut *lock(&BRIDGES) {
        Some(bridges) => {
            sweep(bridges);
            bridges.values().cloned().collect()
        }
        None => return,
    };
    for bridge in bridges {
        let mut state = lock(&bridge.state);
        // If there is none, it may be on its way out beneath.
        if let Some(&id) = state.ids.get(&socket) {
            bridge.find_gone(&mut state);
            let record = state.records.get(&id);
            if record.is_some_and(|record| record.phase == Phase::Left) && !state.sent.is_certain()
            {
                bridge.end(&mut state, id);
            }
        }
        drop(state);
        bridge.catch_up();
    }
}

/// End the bridges whose ports were closed.
fn sweep(bridges: &mut HashMap<usize, Arc<Bridge>>) {
    bridges.retain(|_, bridge| {
        let is_open = !kernel::is_last(&bridge.port);
        if !is_open {
            bridge.inner.close();
        }
        is_open
    });
}
