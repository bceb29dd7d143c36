//! `CompletionPort` beside a model of the contract: one thread does what it likes to two ports and some descriptor numbers, and for
//! each notification the model says whether it has to come, may come, or may not.
//!
//! What holds for a socket, the kernel says (`poll`): how a backend translates that, the contract's tests show. Each event of a socket
//! may give its edge-triggered registrations one notification more than those that are due (C5).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};
use simulated_std::simulation::{self, Faults, tell};
use simulated_std::time::Instant;
use socknotify_simulation::{
    CompletionPort, Entry, Error, EventFilter, Events, Operation, Registration, RegistrationError,
    Trigger, interface,
};

use crate::{explore, one_in, pick, random};

/// How many descriptor numbers take part, and how many ports.
const NUMBERS: usize = 3;
const PORTS: usize = 2;
/// The first number. Nothing else gets one as high: a closed number stays closed.
const FIRST: RawFd = 400;
/// The numbers, open or closed.
// SAFETY: the test alone opens and closes them, and not during a call.
static DESCRIPTORS: [BorrowedFd<'static>; NUMBERS] = unsafe {
    [
        BorrowedFd::borrow_raw(FIRST),
        BorrowedFd::borrow_raw(FIRST + 1),
        BorrowedFd::borrow_raw(FIRST + 2),
    ]
};
/// Keys from here on are those of posted packets.
const POSTED: usize = 1 << 32;
/// How many notifications may come of a persistent registration whose socket lives on under a duplicate (G3).
const FALSE_NOTIFICATIONS: usize = 64;
/// How often one registration may be notified while another one, which is due, waits (E1).
const OVERTAKEN: usize = 8;
const PERSISTENT: Trigger = Trigger::PERSISTENT;
const TRIGGERS: [Trigger; 8] = [
    Trigger::LEVEL,
    Trigger::EDGE,
    Trigger::LEVEL.union(PERSISTENT),
    Trigger::EDGE.union(PERSISTENT),
    Trigger::LEVEL.union(Trigger::ONESHOT),
    Trigger::EDGE.union(Trigger::ONESHOT),
    Trigger::EDGE.union(Trigger::INITIAL),
    Trigger::EDGE
        .union(Trigger::INITIAL)
        .union(Trigger::ONESHOT),
];

/// What holds for a socket, and what may be said of it besides.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    holds: Events,
    may_hold: Events,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Enabled,
    Disabled,
    Removing,
    /// The socket was closed here, and lives on under a duplicate: so many notifications may still come.
    Closed(usize),
}

#[derive(Clone, Debug)]
struct Registered {
    key: usize,
    number: usize,
    socket: usize,
    filter: EventFilter,
    trigger: Trigger,
    state: State,
    /// The number refers to it.
    is_attached: bool,
    /// Another port cannot ENABLE it (A2).
    is_claimed: bool,
    /// A notification has to come, which shows one of these.
    due: Events,
    /// What held at the last event.
    held: Events,
    /// How many notifications may come that are not due.
    extra: usize,
    /// The keys that were notified while this was due.
    overtaken_by: Vec<usize>,
}

impl Registered {
    fn wanted(&self) -> Events {
        Events::from_bits_truncate(self.filter.bits().into()) | Events::ERR
    }

    fn is_edge_triggered(&self) -> bool {
        self.trigger.contains(Trigger::EDGE)
    }

    /// Something happened to the socket.
    fn update(&mut self, now: Conditions) {
        if self.state != State::Enabled {
            return;
        }
        let (holds, may_hold) = (now.holds & self.wanted(), now.may_hold & self.wanted());
        let before = self.due;
        self.due = match self.is_edge_triggered() {
            true => (self.due & holds) | (holds - self.held),
            false => holds,
        };
        self.extra += usize::from(!may_hold.is_empty());
        self.held = may_hold;
        if before.is_empty() {
            self.overtaken_by.clear();
        }
    }

    fn enable(&mut self, entry: &Asked, now: Conditions) {
        let was_edge_triggered = self.is_edge_triggered();
        (self.filter, self.trigger) = (entry.filter, entry.trigger);
        self.state = State::Enabled;
        // X2: with INITIAL, what holds already is notified.
        self.held = match self.trigger.contains(Trigger::INITIAL) {
            true => Events::empty(),
            false => now.may_hold & self.wanted(),
        };
        self.due = match was_edge_triggered {
            true => self.due & self.wanted(),
            false => Events::empty(),
        };
        self.update(now);
    }

    /// What is queued may still come (B3).
    fn stop(&mut self, state: State) {
        self.extra = usize::from(self.state == State::Enabled && self.extra > 0);
        self.due = Events::empty();
        self.state = state;
    }

    fn close(&mut self) {
        let left = match self.state {
            State::Enabled if self.trigger.contains(Trigger::ONESHOT) => 1,
            State::Enabled => FALSE_NOTIFICATIONS,
            _ => 0,
        };
        self.is_attached = false;
        if self.state != State::Removing {
            self.stop(State::Closed(left));
        }
    }

    /// It is notified.
    fn deliver(&mut self, mask: Events, now: Conditions) {
        let allowed = now.may_hold & self.wanted();
        assert!(!mask.is_empty(), "nothing: {self:?}");
        assert!(
            allowed.contains(mask),
            "C2, D7: {mask:?}, with {now:?}: {self:?}"
        );
        if let State::Closed(left) = &mut self.state {
            let is_left = *left + self.extra > 0;
            *left = left.saturating_sub(1);
            assert!(is_left, "G3: too many: {self:?}");
            return;
        }
        let is_level = self.state == State::Enabled && !self.is_edge_triggered();
        let has_cause = is_level || self.extra > 0 || self.due.intersects(mask);
        assert!(has_cause, "C2, C5, C6: {mask:?} without a cause: {self:?}");
        // An edge that it does not show comes later (C3).
        let rest = self.due - mask;
        self.extra = self
            .extra
            .saturating_sub(usize::from(!self.due.intersects(mask)));
        self.due = if is_level { Events::empty() } else { rest };
        self.overtaken_by.clear();
        if self.state == State::Enabled && self.trigger.contains(Trigger::ONESHOT) {
            self.state = State::Disabled;
            self.extra = 0;
        }
    }
}

/// An entry of a batch.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: usize,
    operation: Operation,
    key: usize,
    filter: EventFilter,
    trigger: Trigger,
    /// REMOVE takes effect at once, and is not notified.
    is_silent: bool,
    /// ENABLE only what the port does not have, whatever others have.
    is_add: bool,
}

#[derive(Default)]
struct Port {
    registered: Vec<Registered>,
    posted: VecDeque<Entry>,
    /// Numbers that were closed while they were registered. The port may not know it yet.
    stale: [bool; NUMBERS],
}

impl Port {
    fn attached(&mut self, number: usize) -> Option<&mut Registered> {
        let mut registered = self.registered.iter_mut();
        registered.find(|it| it.is_attached && it.number == number)
    }

    fn is_due(&self) -> bool {
        let is_due = |it: &Registered| match it.state {
            State::Enabled => !it.due.is_empty(),
            state => state == State::Removing,
        };
        !self.posted.is_empty() || self.registered.iter().any(is_due)
    }
}

struct World {
    ports: Vec<CompletionPort>,
    model: [Port; PORTS],
    /// What each number refers to: a socket, or something else.
    numbers: [Option<(OwnedFd, Option<usize>)>; NUMBERS],
    duplicates: Vec<(OwnedFd, usize)>,
    /// The peer of each socket.
    peers: Vec<Option<UnixStream>>,
    next_key: usize,
    posted: usize,
}

/// `poll`: what holds for a connected stream.
fn conditions(socket: BorrowedFd<'_>) -> Conditions {
    let flags = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut poll_fd = [PollFd::from_borrowed_fd(socket, flags)];
    poll(&mut poll_fd, Some(&Timespec::default())).expect("it is open");
    let found = poll_fd[0].revents();
    let mut may_hold = Events::empty();
    may_hold.set(Events::IN, found.contains(PollFlags::IN));
    may_hold.set(Events::OUT, found.contains(PollFlags::OUT));
    may_hold.set(Events::ERR, found.contains(PollFlags::ERR));
    let is_hung_up = found.intersects(PollFlags::HUP | PollFlags::RDHUP);
    may_hold.set(Events::HANGUP, is_hung_up);
    let mut holds = may_hold;
    // A send that fails does not block either.
    holds.set(
        Events::OUT,
        found.contains(PollFlags::OUT) && !found.contains(PollFlags::HUP),
    );
    Conditions { holds, may_hold }
}

impl World {
    fn new() -> Self {
        World {
            ports: (0..PORTS).map(|_| new_port()).collect(),
            model: Default::default(),
            numbers: Default::default(),
            duplicates: Vec::new(),
            peers: Vec::new(),
            next_key: 1,
            posted: 0,
        }
    }

    /// A descriptor of a socket that is open here.
    fn descriptor(&self, socket: usize) -> Option<BorrowedFd<'_>> {
        let numbers = self.numbers.iter().flatten();
        let numbers = numbers.filter_map(|(fd, it)| Some((fd, (*it)?)));
        let duplicates = self.duplicates.iter().map(|(fd, it)| (fd, *it));
        let mut all = numbers.chain(duplicates);
        Some(all.find(|(_, it)| *it == socket)?.0.as_fd())
    }

    fn conditions(&self, socket: usize) -> Conditions {
        self.descriptor(socket)
            .map_or_else(Conditions::default, conditions)
    }

    /// Something happened to this socket.
    fn update(&mut self, socket: usize) {
        let now = self.conditions(socket);
        for it in self.model.iter_mut().flat_map(|port| &mut port.registered) {
            if it.socket == socket && it.is_attached {
                it.update(now);
            }
        }
    }

    /// A number refers to something else from now on, or to nothing.
    fn assign(&mut self, index: usize, what: Option<(OwnedFd, Option<usize>)>) {
        match (what, &mut self.numbers[index]) {
            (Some((fd, socket)), Some(old)) => {
                dup3(fd, &mut old.0, DupFlags::CLOEXEC).expect("a number");
                old.1 = socket;
            }
            (Some((fd, socket)), closed) => {
                let fd = fcntl_dupfd_cloexec(fd, FIRST + index as RawFd).expect("a number");
                assert_eq!(fd.as_raw_fd(), FIRST + index as RawFd);
                *closed = Some((fd, socket));
            }
            (None, open) => *open = None,
        }
        for port in &mut self.model {
            if let Some(it) = port.attached(index) {
                it.close();
                port.stale[index] = true;
            }
        }
        self.end_what_is_closed();
    }

    /// Nothing comes of a socket that is closed, but for its REMOVE.
    fn end_what_is_closed(&mut self) {
        let open: Vec<_> = (0..self.peers.len())
            .filter(|&it| self.descriptor(it).is_some())
            .collect();
        for port in &mut self.model {
            port.registered
                .retain(|it| !matches!(it.state, State::Closed(_)) || open.contains(&it.socket));
        }
    }

    fn open(&mut self, index: usize) {
        if one_in(12) {
            let other = File::open("/dev/null").expect("there is one");
            return self.assign(index, Some((other.into(), None)));
        }
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a mode");
        theirs.set_nonblocking(true).expect("a mode");
        self.peers.push(Some(theirs));
        self.assign(index, Some((ours.into(), Some(self.peers.len() - 1))));
    }

    fn asked(&mut self, port: usize) -> Asked {
        let number = random(NUMBERS);
        let kept = self.model[port].attached(number).map(|it| it.key);
        let key = kept.filter(|_| !one_in(16)).unwrap_or_else(|| {
            self.next_key += 1;
            self.next_key
        });
        let operation = match random(60) {
            0 => Operation::from_bits_retain(random(256) as u8),
            1 => Operation::NONE,
            2..8 => Operation::DISABLE,
            8..16 => Operation::REMOVE,
            _ => Operation::ENABLE,
        };
        let filter = match random(40) {
            // Beside the extensions.
            0 => random(1 << 14),
            1..16 => EventFilter::IN.bits().into(),
            _ => random(8),
        };
        Asked {
            number,
            operation,
            key,
            filter: EventFilter::from_bits_retain(filter as u16),
            trigger: match one_in(40) {
                true => Trigger::from_bits_retain(random(256) as u8),
                false => pick(&TRIGGERS),
            },
            is_silent: operation == Operation::REMOVE && one_in(2),
            is_add: operation == Operation::ENABLE && one_in(5),
        }
    }

    /// A2 to A5, B1 to B6, B10, C1, X1 to X3: what one entry of a batch does, and has to result in.
    fn apply(&mut self, index: usize, entry: &Asked) -> Result<(), RegistrationError> {
        let number = entry.number;
        match entry.operation {
            Operation::NONE => return Ok(()),
            Operation::ENABLE if !EventFilter::ALL.contains(entry.filter) => {
                return Err(RegistrationError::InvalidFilter);
            }
            Operation::ENABLE if !is_valid(entry.trigger) => {
                return Err(RegistrationError::InvalidTrigger);
            }
            Operation::ENABLE | Operation::DISABLE | Operation::REMOVE => {}
            _ => return Err(RegistrationError::InvalidOperation),
        }
        let socket = match self.numbers[number] {
            Some((_, Some(socket))) => socket,
            Some((_, None)) => return Err(RegistrationError::NotASocket),
            None => return Err(RegistrationError::NotOpen),
        };
        let now = self.conditions(socket);
        let is_claimed = |it: &Registered| it.is_attached && it.is_claimed && it.number == number;
        let mut others = (0..PORTS).filter(|&it| it != index);
        let is_elsewhere = others.any(|it| self.model[it].registered.iter().any(is_claimed));
        let port = &mut self.model[index];
        let Some(it) = port.attached(number) else {
            return match entry.operation {
                Operation::DISABLE => Ok(()),
                Operation::REMOVE => Err(RegistrationError::NotFound),
                _ if is_elsewhere && !entry.is_add => Err(RegistrationError::OtherPort),
                _ => {
                    let mut it = Registered {
                        key: entry.key,
                        number,
                        socket,
                        filter: entry.filter,
                        trigger: entry.trigger,
                        state: State::Disabled,
                        is_attached: true,
                        is_claimed: !entry.is_add,
                        due: Events::empty(),
                        held: Events::empty(),
                        extra: 0,
                        overtaken_by: Vec::new(),
                    };
                    it.enable(entry, now);
                    // G3: nothing comes of one whose number this was.
                    port.registered
                        .retain(|it| it.number != number || !matches!(it.state, State::Closed(_)));
                    port.registered.push(it);
                    port.stale[number] = false;
                    Ok(())
                }
            };
        };
        match (entry.operation, it.state) {
            (Operation::ENABLE, State::Removing) => Err(RegistrationError::RemovePending),
            (Operation::ENABLE, _) if entry.is_add => Err(RegistrationError::AlreadyRegistered),
            (Operation::ENABLE, _) if it.key != entry.key => Err(RegistrationError::OtherKey),
            (Operation::ENABLE, _) => {
                it.enable(entry, now);
                Ok(())
            }
            (Operation::DISABLE, State::Removing) => Ok(()),
            (_, State::Removing) => Err(RegistrationError::NotFound),
            (Operation::DISABLE, _) => {
                it.stop(State::Disabled);
                Ok(())
            }
            _ if entry.is_silent => {
                port.registered
                    .retain(|it| !it.is_attached || it.number != number);
                Ok(())
            }
            _ => {
                it.stop(State::Removing);
                Ok(())
            }
        }
    }

    /// Register a batch and dequeue, in one call.
    fn process(&mut self, index: usize, batch: &[Asked], room: usize) {
        let expected: Vec<_> = batch.iter().map(|it| self.apply(index, it)).collect();
        let mut registrations: Vec<_> = batch.iter().map(registration).collect();
        let mut entries = [Entry::default(); 16];
        let entries = &mut entries[..room];
        // What has to come, comes at once, and nothing else would end this wait.
        let is_due = self.model[index].is_due() && room > 0;
        let timeout = (!is_due || one_in(2)).then_some(Duration::ZERO);
        tell(format_args!("port {index}, room {room}: {batch:?}"));
        let outcome = self.ports[index].process(&mut registrations, entries, timeout);
        let outcome = outcome.map(|found| found.to_vec());
        tell(format_args!("{outcome:?}"));
        for (it, expected) in registrations.iter().zip(expected) {
            assert_eq!(it.result(), expected, "{it:?}");
        }
        match outcome {
            Ok(found) => {
                assert!(room == 0 || !found.is_empty(), "E2: no empty success");
                for (at, entry) in found.iter().enumerate() {
                    let is_same = |it: &Entry| it.completion_key == entry.completion_key;
                    assert!(!found[..at].iter().any(is_same), "C3: {entry:?} came twice");
                    self.on_dequeued(index, entry);
                }
            }
            Err(error) => {
                assert_eq!(error, Error::TimedOut);
                self.on_timed_out(index);
            }
        }
        let port = &self.model[index];
        let attached = port.registered.iter().filter(|it| it.is_attached).count();
        let stale = port.stale.iter().filter(|&&it| it).count();
        let counted = self.ports[index].snapshot().registrations;
        assert!(counted.is_some_and(|it| (attached..=attached + stale).contains(&it)));
    }

    fn on_timed_out(&mut self, index: usize) {
        let port = &mut self.model[index];
        assert!(
            !port.is_due(),
            "C4, C5, E1: nothing came: {:#?}",
            port.registered
        );
        for it in &mut port.registered {
            it.extra = 0;
        }
    }

    fn on_dequeued(&mut self, index: usize, entry: &Entry) {
        let key = entry.completion_key;
        if key >= POSTED {
            let posted = self.model[index].posted.pop_front();
            return assert_eq!(posted, Some(*entry), "E1, E6: it comes once, in order");
        }
        let mut registered = self.model[index].registered.iter();
        let Some(at) = registered.position(|it| it.key == key) else {
            panic!("G2, G6: nobody's: {entry:?}");
        };
        let events = entry.events();
        assert_eq!((entry.overlapped, events.bits()), (0, entry.transferred));
        let socket = self.model[index].registered[at].socket;
        let now = self.conditions(socket);
        let port = &mut self.model[index];
        if events.contains(Events::REMOVE) {
            let it = port.registered.remove(at);
            assert_eq!((it.state, events), (State::Removing, Events::REMOVE));
            return;
        }
        assert_ne!(port.registered[at].state, State::Removing, "REMOVE alone");
        port.registered[at].deliver(events, now);
        for it in &mut port.registered {
            if it.key != key && it.state == State::Enabled && !it.due.is_empty() {
                it.overtaken_by.push(key);
                let count = it.overtaken_by.iter().filter(|&&by| by == key).count();
                assert!(count <= OVERTAKEN, "E1: {key} came so often before {it:?}");
            }
        }
    }

    /// E4, G3: a wait in which nothing comes is not short, and does nothing.
    fn wait(&mut self, index: usize) {
        const TIME: Duration = Duration::from_millis(4);
        // Dequeue what may come.
        for _ in 0..4 {
            self.process(index, &[], 16);
        }
        if self.model[index].is_due() {
            return;
        }
        let (begin, steps) = (Instant::now(), simulation::steps());
        let mut entries = [Entry::default(); 16];
        let outcome = self.ports[index].dequeue(&mut entries, Some(TIME));
        match outcome.map(|found| found.to_vec()) {
            Ok(found) => found
                .iter()
                .for_each(|entry| self.on_dequeued(index, entry)),
            Err(error) => {
                assert_eq!(error, Error::TimedOut);
                assert!(begin.elapsed() >= TIME);
                assert!(simulation::steps() - steps < 1000, "it is busy");
                self.on_timed_out(index);
            }
        }
    }

    fn post(&mut self, index: usize) {
        for _ in 0..1 + random(3) {
            self.posted += 1;
            let serial = self.posted;
            let entry = Entry::new(POSTED + serial, serial as u32 ^ 0xA5C3, serial << 40);
            self.ports[index].post(entry).expect("it is open");
            // What was posted comes out as such.
            self.model[index].posted.push_back(entry);
        }
    }

    /// B8, B9: the call fails, and nothing is applied.
    fn contradict(&self, index: usize, batch: &[Asked]) {
        let mut registrations: Vec<_> = batch.iter().map(registration).collect();
        let outcome = self.ports[index].process(
            &mut registrations,
            &mut [],
            pick(&[None, Some(Duration::from_millis(1))]),
        );
        assert_eq!(outcome, Err(Error::InvalidParameter));
    }

    /// Something happens to a socket, or to a number.
    fn disturb(&mut self) {
        let index = random(NUMBERS);
        match random(8) {
            0 => return self.assign(index, None),
            1 => return self.open(index),
            2 if self.duplicates.len() < 3 => {
                if let Some((fd, Some(socket))) = &self.numbers[index] {
                    let fd = fd.try_clone().expect("a duplicate");
                    self.duplicates.push((fd, *socket));
                }
                return;
            }
            3 if !self.duplicates.is_empty() => {
                self.duplicates.swap_remove(random(self.duplicates.len()));
                return self.end_what_is_closed();
            }
            _ => {}
        }
        let duplicate = self.duplicates.first().map(|(fd, socket)| (fd, *socket));
        let by_number = self.numbers[index]
            .as_ref()
            .and_then(|(fd, socket)| Some((fd, (*socket)?)));
        let found = if one_in(5) { duplicate } else { by_number };
        let Some((fd, socket)) = found else { return };
        let ours = UnixStream::from(fd.try_clone().expect("a duplicate"));
        let theirs = &mut self.peers[socket];
        let mut buffer = [0; 4096];
        let happens = random(12);
        tell(format_args!("{happens} happens to socket {socket}"));
        match (happens, &theirs) {
            (0..5, Some(theirs)) => {
                // It may be shut down.
                let _ = (&*theirs).write(&buffer[..random(8)]);
            }
            (5, _) => _ = (&ours).read(&mut buffer[..1]),
            (6, _) => while (&ours).write(&buffer).is_ok() {},
            (7, Some(theirs)) => while (&*theirs).read(&mut buffer).is_ok_and(|it| it > 0) {},
            (8, Some(theirs)) => theirs.shutdown(Shutdown::Write).expect("it is connected"),
            (9, _) if one_in(3) => ours.shutdown(Shutdown::Write).expect("it is connected"),
            (10, _) => *theirs = None,
            _ => loop {
                match (&ours).read(&mut buffer) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // It was reset.
                    Err(_) => {}
                }
            },
        }
        drop(ours);
        self.update(socket);
    }

    fn step(&mut self) {
        let port = if one_in(6) { 1 } else { 0 };
        let room = pick(&[1, 2, 3, 4, 16]);
        match random(40) {
            0..10 => self.process(port, &[], room),
            10..20 => {
                let batch: Vec<_> = (0..1 + random(3)).map(|_| self.asked(port)).collect();
                self.process(port, &batch, random(5));
            }
            20 => self.wait(port),
            21 => self.post(port),
            22 => {
                let batch = [self.asked(port)];
                self.contradict(port, &batch);
            }
            23 if one_in(2) => {
                // G4: its sockets are free.
                let closed = std::mem::replace(&mut self.ports[port], new_port());
                closed.close();
                let after = closed.dequeue_one(Some(Duration::ZERO));
                assert_eq!(after, Err(Error::Closed));
                self.model[port] = Port::default();
            }
            _ => self.disturb(),
        }
    }

    /// Remove everything: each registration ends with one REMOVE, and then nothing comes.
    fn finish(&mut self) {
        for index in 0..PORTS {
            let attached: Vec<_> = self.model[index]
                .registered
                .iter()
                .filter(|it| it.is_attached && it.state != State::Removing)
                .map(|it| it.number)
                .collect();
            let batch: Vec<_> = attached
                .into_iter()
                .map(|number| Asked {
                    number,
                    operation: Operation::REMOVE,
                    key: 0,
                    filter: EventFilter::NONE,
                    trigger: Trigger::empty(),
                    is_silent: false,
                    is_add: false,
                })
                .collect();
            self.process(index, &batch, 0);
            while self.model[index].is_due() {
                self.process(index, &[], 3);
            }
            for _ in 0..3 {
                self.process(index, &[], 16);
            }
        }
    }
}

fn new_port() -> CompletionPort {
    let builder = CompletionPort::builder().concurrency(1 + random(3));
    builder.build().expect("a port")
}

fn is_valid(trigger: Trigger) -> bool {
    // Neither ONESHOT nor PERSISTENT is PERSISTENT (C1).
    TRIGGERS.contains(&trigger.difference(PERSISTENT))
        && !trigger.contains(PERSISTENT | Trigger::ONESHOT)
}

fn registration(asked: &Asked) -> Registration<'static> {
    let &Asked {
        key,
        filter,
        trigger,
        ..
    } = asked;
    let number = &DESCRIPTORS[asked.number];
    if asked.is_add {
        return Registration::add(number, key, filter, trigger);
    }
    let mut registration = Registration::enable(number, key, filter, trigger);
    registration.operation = asked.operation;
    match asked.is_silent {
        true => interface::silent(registration),
        false => registration,
    }
}

fn scenario() {
    if one_in(3) {
        simulation::set_faults(Faults {
            wait: 20,
            ..Faults::default()
        });
    }
    let mut world = World::new();
    (0..NUMBERS).for_each(|number| world.open(number));
    for _ in 0..10 + random(50) {
        world.step();
    }
    world.finish();
}

#[test]
fn registrations() {
    explore("registrations", 4000, false, scenario);
}
