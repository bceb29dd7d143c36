//! The caller's port, and the library's inner port that serves it.
//!
//! Sockets are registered with the inner port. A thread of the library, the service thread, dequeues from it and posts
//! packets to the caller's port. A packet there cannot be changed any more. So each registration has at most one there,
//! as far as is known; what becomes true meanwhile is kept until that packet is gone.
//!
//! - If `ProcessSocketNotifications` dequeues it, it is completed here: with what was kept, with what holds by now, and
//!   with REMOVE. A level that has fallen is not notified.
//! - If a system call dequeues it, the length of the queue reveals that: see [`Sent`]. If packets of others hide it, the
//!   next events are sent in another packet. If the first is dequeued after all, together with the other one or for a
//!   one-shot registration, it is dropped, and the other one gets its events.
//!
//! A call that enables or dequeues waits until the service thread has posted packets for all sockets that were ready
//! when the call was made. So the next call that dequeues finds them.
//!
//! A persistent level-triggered registration is one-shot in the inner port, and armed again when its packet is gone.
//! The thread that got the packet is about to handle it; if the level still holds a moment later, it is notified again.
//!
//! When the caller removes a registration, it is disabled in the inner port, and removed there when the caller has
//! dequeued the last notification. Until then it identifies the socket.
//!
//! The library has its own handle of the caller's port, and also dequeues with it, so its value cannot become another
//! port's. When it is the last handle, the caller has closed the port.

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

/// How often to check whether the caller has closed its port.
const LOOK: Duration = Duration::from_millis(50);

/// How often to check whether a packet is gone: at first, and at the longest.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(16);

/// How long a thread that got the packet of a level has to handle it.
const MOMENT: Duration = Duration::from_millis(4);

/// How long a level waits for its packet to be dequeued if packets of others hide whether it was: at
/// first, and at the longest.
const DOUBT: Duration = Duration::from_millis(8);
const DOUBT_MAX: Duration = Duration::from_millis(128);

/// More than the threads of any port.
const PLACES: usize = 1 << 20;

/// The bridges, by the values of the caller's handles.
static BRIDGES: Mutex<Option<HashMap<usize, Arc<Bridge>>>> = Mutex::new(None);

pub(super) struct Bridge {
    /// The library's handle of the caller's port.
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
    /// Levels to arm again.
    due: Vec<Due>,
    /// The last notifications that could not be posted.
    unsent: Vec<u32>,
    marks: usize,
    /// When the service thread checks again, if nothing comes before.
    next_look: Option<Instant>,
}

/// A level to arm again.
struct Due {
    time: Instant,
    id: u32,
    /// The packet that is considered gone then.
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
    /// The inner port reports it.
    armed: bool,
    /// The position of the packet that may wait in the caller's port.
    packet: Option<u64>,
    /// The mark of the latest packet.
    mark: Mark,
    /// Events that came while it was there.
    kept: Events,
    /// It will be armed again later.
    is_due: bool,
    /// How long to wait if its next packet is hidden.
    patience: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Enabled,
    Disabled,
    /// It was removed, and the last notification was not sent yet.
    Leaving,
    /// The last notification was sent.
    Left,
}

impl Record {
    fn wanted(&self) -> Events {
        Events::from_bits_truncate(self.filter.bits().into()) | Events::ERR
    }

    /// Whether to poll the socket when its packet, with these events, is dequeued. With an error the packet is
    /// complete already.
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
    /// The bridge of a port, made on first use.
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
        // The function has none of the library's extensions.
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
        // If the socket was closed and this is another one, nothing of the old registration continues.
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
        // Edges are carried, while levels are notified again.
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

    /// Apply one entry to the inner port; on request only if the socket is registered there.
    fn beneath(
        &self,
        operation: Operation,
        socket: SOCKET,
        id: u32,
        wanted: Option<(EventFilter, Trigger)>,
        only_known: bool,
    ) -> Result<(), RegistrationError> {
        // SAFETY: the caller passes its own sockets.
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

    /// Wait until the caller's port has packets for all sockets that were ready before this call.
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

    /// Complete packets that were just dequeued from the caller's port, and drop those whose level has
    /// fallen.
    pub(super) fn taken(&self, packets: &mut Vec<OVERLAPPED_ENTRY>) {
        let marks: Vec<_> = packets
            .iter_mut()
            .map(|packet| kernel::take_mark(packet).map(Mark::from_bits))
            .collect();
        let mut state = lock(&self.state);
        if marks.iter().any(Option::is_none) {
            state.sent.meet_other();
        }
        // Of two packets of one registration, the later one gets all events.
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

    /// The events of a packet of this registration that was just dequeued, if any.
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
        // Of the conditions that hold, only those that never fall can be edges.
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
            // It was enabled while this was waiting, and this delivery disables it.
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

    /// Send the last notifications of the registrations that this call has removed, unless they were merged.
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

    /// Arm the levels whose packets are gone, before their time, because a thread dequeues.
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

    /// Have the service thread arm a level again after this time.
    fn push_due(&self, state: &mut State, after: Duration, id: u32, doubted: Option<u64>) {
        let time = Instant::now() + after;
        state.due.push(Due { time, id, doubted });
        if state.next_look.is_some_and(|look| look > time) {
            // Wake it, so that it sleeps less. No thread waits for this mark.
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
            // Packets that were just sent are not gone yet.
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
        // The bridge can be found until its sockets are free.
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

    /// The library's handle of the caller's port.
    pub(super) fn port(&self) -> &OwnedHandle {
        &self.port
    }

    /// Send the packets of the inner port to the caller's. Returns the latest mark among them, or 0.
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

    /// Report that a mark was passed, after everything that was ready when it was posted.
    ///
    /// A mark that is posted while a wait of this thread ends may be dequeued before sockets that became ready after
    /// that wait; so this dequeues again.
    fn pass_mark(&self, mut mark: usize, entries: &mut [Entry]) {
        // If there is always more, the waiting call need not wait for all of it.
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

    /// A registration was reported with these events.
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
            // There is no memory. Events may come later; REMOVE must.
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

    /// Determine which packets are gone. True if some are.
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

    /// The packet of a level is gone. If the level still holds, the thread that got it may be about to handle it.
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

    /// Arm a registration in the inner port, one-shot.
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
        // The socket may have been closed, and its value be another's, which this does not affect.
        match self.beneath(Operation::ENABLE, socket, id, wanted, true) {
            Ok(()) => record.armed = true,
            Err(_) => state.forget(id),
        }
    }

    /// The caller has dequeued the last notification of a registration.
    fn end(&self, state: &mut State, id: u32) {
        if let Some(record) = state.records.get(&id) {
            // If it is closed, there is nothing to remove.
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

    /// How long the service thread waits for reports.
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

/// Free a socket that is registered with another port, if the caller has closed that port, or dequeued the last
/// notification.
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
        // If there is none, the inner port may be removing it.
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
