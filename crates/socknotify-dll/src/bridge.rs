//! A port of the caller's, and the port of ours beneath it.
//!
//! Sockets are registered with a port of ours, and a thread of ours posts what comes out of it to the
//! caller's. What the caller has not taken yet, nobody tells. For one-shot registrations, and for edges,
//! it does not matter: the next notification follows from an ENABLE, or from another edge. A
//! persistent level-triggered registration is one-shot beneath, and armed again when its packet was
//! taken. That is known at once where it was taken through this library. Otherwise it follows from the
//! number of packets that wait in the caller's port: one that has more packets of ours behind it than
//! wait there is not among them.
//!
//! The caller's port is held by a handle of ours. When that is the last one, the caller has closed it.

use std::collections::{HashMap, VecDeque};
use std::os::windows::io::OwnedHandle;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use port::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Operation, Registration,
    RegistrationError, Trigger,
};
use windows_sys::Win32::Foundation::{
    ERROR_INVALID_HANDLE, ERROR_NOT_ENOUGH_MEMORY, ERROR_SUCCESS, HANDLE,
};
use windows_sys::Win32::Networking::WinSock::{SOCK_NOTIFY_REGISTRATION, SOCKET};
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::kernel;

/// How often to look whether the caller has closed its port.
const LOOK: Duration = Duration::from_millis(50);

/// How often to look whether a packet was taken: at first, and at the longest.
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(16);

/// No port has so many threads.
const PLACES: usize = 1 << 20;

/// The bridges, by the value of the caller's handle.
static BRIDGES: Mutex<Option<HashMap<usize, Arc<Bridge>>>> = Mutex::new(None);

pub(super) struct Bridge {
    /// A handle of our own of the caller's port.
    port: OwnedHandle,
    inner: CompletionPort,
    state: Mutex<State>,
    /// The latest mark that the thread has passed.
    passed: Mutex<usize>,
    passing: Condvar,
}

#[derive(Default)]
struct State {
    /// What is registered, by the key that it is registered with beneath.
    names: Vec<Option<Name>>,
    free: Vec<usize>,
    numbers: HashMap<(SOCKET, usize), usize>,
    /// Packets of persistent level-triggered registrations that nobody has taken, as far as is known.
    waiting: VecDeque<Waiting>,
    /// Packets that were posted to the caller's port.
    posted: u64,
    marks: usize,
}

/// A socket with the caller's key.
struct Name {
    socket: SOCKET,
    key: usize,
    /// The filter to arm it with when its packet was taken.
    level: Option<EventFilter>,
}

struct Waiting {
    /// Which of our packets it is.
    position: u64,
    number: usize,
    key: usize,
    events: u32,
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
            if !kernel::is_last(&bridge.port) {
                return Ok(Arc::clone(bridge));
            }
        }
        sweep(bridges);
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
        });
        kernel::stay_loaded();
        let service = Arc::clone(&bridge);
        thread::Builder::new()
            .name("socknotify".to_owned())
            .spawn(move || service.serve(value))
            .map_err(|_| ERROR_NOT_ENOUGH_MEMORY)?;
        bridges.insert(value, Arc::clone(&bridge));
        Ok(bridge)
    }

    /// Apply one entry. Returns its result.
    pub(super) fn register(&self, entry: &SOCK_NOTIFY_REGISTRATION) -> u32 {
        match self.try_register(entry) {
            // Perhaps with one that was closed, and that is not known yet.
            Err(RegistrationError::OtherPort) => {
                if let Some(bridges) = &mut *lock(&BRIDGES) {
                    sweep(bridges);
                }
                code(self.try_register(entry))
            }
            outcome => code(outcome),
        }
    }

    fn try_register(&self, entry: &SOCK_NOTIFY_REGISTRATION) -> Result<(), RegistrationError> {
        let mut state = lock(&self.state);
        let operation = Operation::from_bits_retain(entry.operation);
        let trigger = Trigger::from_bits_retain(entry.triggerFlags);
        let filter = EventFilter::from_bits_retain(entry.eventFilter);
        let socket = entry.socket;
        let is_level = [Trigger::LEVEL, Trigger::LEVEL | Trigger::PERSISTENT].contains(&trigger);
        let enables = operation == Operation::ENABLE;
        let number = match enables {
            true => state.number(socket, entry.completionKey.addr()),
            false => 0,
        };
        // SAFETY: whose socket it is, is for the caller to know.
        let mut registration = unsafe { Registration::from_raw(socket as u64) };
        registration.operation = operation;
        registration.completion_key = number;
        registration.event_filter = filter;
        registration.trigger = match is_level {
            true => Trigger::ONESHOT | Trigger::LEVEL,
            false => trigger,
        };
        let outcome = match self.inner.register(registration) {
            Ok(outcome) => outcome,
            Err(error) => Err(RegistrationError::Os(error.code() as i32)),
        };
        match (enables, &outcome) {
            (true, Ok(())) => {
                let level = (enables && is_level).then_some(filter);
                state.set_level(number, level);
            }
            (false, Ok(())) if operation != Operation::NONE => state.end_levels(socket),
            _ => {}
        }
        outcome
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

    /// These packets have just been taken from the caller's port.
    pub(super) fn taken(&self, packets: &[OVERLAPPED_ENTRY]) {
        let mut state = lock(&self.state);
        for packet in packets
            .iter()
            .filter(|packet| packet.lpOverlapped.is_null())
        {
            let (key, events) = (packet.lpCompletionKey, packet.dwNumberOfBytesTransferred);
            let mut waiting = state.waiting.iter();
            let index = waiting.position(|waiting| (waiting.key, waiting.events) == (key, events));
            if let Some(waiting) = index.and_then(|index| state.waiting.remove(index)) {
                self.arm_again(&state, waiting.number);
            }
        }
    }

    /// What the bridge's thread does until the caller's port is closed.
    fn serve(&self, value: usize) {
        let mut entries = [Entry::default(); 64];
        let mut pause = SOON;
        loop {
            let is_anything_waiting = !lock(&self.state).waiting.is_empty();
            let timeout = if is_anything_waiting { pause } else { LOOK };
            let count = match self.inner.dequeue(&mut entries, Some(timeout)) {
                Ok(entries) => entries.len(),
                Err(Error::TimedOut) => 0,
                Err(_) => break,
            };
            self.pass_on(&entries[..count]);
            pause = match self.find_taken() || count > 0 {
                true => SOON,
                false => (pause * 2).min(LATER),
            };
            if kernel::is_last(&self.port) {
                break;
            }
        }
        if let Some(bridges) = &mut *lock(&BRIDGES) {
            if bridges
                .get(&value)
                .is_some_and(|bridge| std::ptr::eq(&**bridge, self))
            {
                bridges.remove(&value);
            }
        }
        self.inner.close();
        *lock(&self.passed) = usize::MAX;
        self.passing.notify_all();
    }

    /// Post what has come out of our port to the caller's.
    fn pass_on(&self, entries: &[Entry]) {
        let mut mark = 0;
        for entry in entries {
            if entry.overlapped != 0 {
                mark = entry.overlapped.max(mark);
                continue;
            }
            let mut state = lock(&self.state);
            let number = entry.completion_key;
            let Some(name) = state.names.get(number).and_then(Option::as_ref) else {
                continue;
            };
            let (key, is_level) = (name.key, name.level.is_some());
            if kernel::post(&self.port, key, entry.transferred).is_err() {
                continue;
            }
            state.posted += 1;
            if entry.events().contains(Events::REMOVE) {
                state.end(number);
            } else if is_level {
                let waiting = Waiting {
                    position: state.posted,
                    number,
                    key,
                    events: entry.transferred,
                };
                state.waiting.push_back(waiting);
            }
        }
        if mark > 0 {
            let mut passed = lock(&self.passed);
            *passed = mark.max(*passed);
            self.passing.notify_all();
        }
    }

    /// Find out which packets were taken. True if some were.
    fn find_taken(&self) -> bool {
        let mut state = lock(&self.state);
        if state.waiting.is_empty() {
            return false;
        }
        let depth = kernel::depth(&self.port).unwrap_or(0);
        let mut any = false;
        while let Some(first) = state.waiting.front() {
            let behind = state.posted - first.position;
            if depth > behind {
                break;
            }
            let number = first.number;
            state.waiting.pop_front();
            self.arm_again(&state, number);
            any = true;
        }
        any
    }

    /// Arm a persistent level-triggered registration, if it is one still.
    fn arm_again(&self, state: &State, number: usize) {
        let Some(Some(name)) = state.names.get(number) else {
            return;
        };
        let Some(filter) = name.level else { return };
        // SAFETY: the caller has registered it.
        let mut registration = unsafe { Registration::from_raw(name.socket as u64) };
        registration.operation = Operation::ENABLE;
        registration.completion_key = number;
        registration.event_filter = filter;
        registration.trigger = Trigger::ONESHOT | Trigger::LEVEL;
        // If it is closed, there is nothing more to be told.
        let _ = self.inner.register(registration);
    }
}

impl State {
    /// The key beneath for a socket with this key.
    fn number(&mut self, socket: SOCKET, key: usize) -> usize {
        if let Some(&number) = self.numbers.get(&(socket, key)) {
            return number;
        }
        let name = Some(Name {
            socket,
            key,
            level: None,
        });
        let number = match self.free.pop() {
            Some(number) => {
                self.names[number] = name;
                number
            }
            None => {
                self.names.push(name);
                self.names.len() - 1
            }
        };
        self.numbers.insert((socket, key), number);
        number
    }

    fn set_level(&mut self, number: usize, level: Option<EventFilter>) {
        if let Some(Some(name)) = self.names.get_mut(number) {
            name.level = level;
        }
        // It is armed: what waits of it is not to arm it once more.
        self.waiting.retain(|waiting| waiting.number != number);
    }

    /// A socket is disabled or removed.
    fn end_levels(&mut self, socket: SOCKET) {
        for name in self.names.iter_mut().flatten() {
            if name.socket == socket {
                name.level = None;
            }
        }
    }

    /// A registration is over.
    fn end(&mut self, number: usize) {
        if let Some(name) = self.names.get_mut(number).and_then(Option::take) {
            self.numbers.remove(&(name.socket, name.key));
            self.free.push(number);
            self.waiting.retain(|waiting| waiting.number != number);
        }
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

fn code(outcome: Result<(), RegistrationError>) -> u32 {
    match outcome {
        Ok(()) => ERROR_SUCCESS,
        // The port was closed while it was used.
        Err(RegistrationError::Os(735)) => ERROR_INVALID_HANDLE,
        Err(error) => error.code(),
    }
}
