//! What can be done to two ports and some sockets, done to the real ones and to the model.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::PollFlags;
use rustix::io::DupFlags;
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Operation as Operations,
    Registration, Trigger,
};

use crate::conditions::{Kind, Link, Socket};
use crate::loopback::{self, Loopback, Peer};
use crate::model::{Model, NUMBERS, Number, PORTS, POSTED, Request, SocketId};
use crate::patience::PATIENCE;

/// The same, once a case has failed and is only made shorter.
const IMPATIENCE: Duration = Duration::from_millis(20);

/// Duplicates of our sockets that are kept, at the most.
const CLONES: usize = 3;

/// A socket of ours, by one of the descriptors that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Number(usize),
    /// A duplicate, whether or not the number that it was made of is closed by now.
    Clone(usize),
}

/// What a number is opened as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    Connected(Kind),
    Unconnected(Kind),
    /// A pipe.
    NoSocket,
}

/// Where the completion key of an entry is taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// The registration's own; a new one, if there is no registration.
    Same,
    /// The one that the number's former registration had; a new one, if that one is not over.
    Former,
    /// One that does not belong to the registration.
    New,
}

/// An entry of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    number: usize,
    operation: Operations,
    key: Key,
    filter: EventFilter,
    trigger: Trigger,
    /// REMOVE takes effect at once, and is not notified.
    is_silent: bool,
    /// ENABLE only what the port does not have, whatever others have.
    is_add: bool,
}

/// One step of a case. Where there is nothing that it could be done to, it does nothing.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Dequeue. `patient`: waits, if something has to come.
    Dequeue {
        port: usize,
        room: usize,
        patient: bool,
    },
    /// Register a batch, and dequeue in the same call if there is room.
    Process {
        port: usize,
        batch: Vec<Asked>,
        room: usize,
        patient: bool,
    },
    /// A peer sends. Of a listener: connects.
    PeerSend {
        whose: Whose,
        bytes: usize,
    },
    /// Receive all there is.
    Drain {
        whose: Whose,
    },
    /// Receive one byte, datagram or connection.
    ReceiveOne {
        whose: Whose,
    },
    /// Post so many packets.
    Post {
        port: usize,
        count: usize,
    },
    /// Close a number.
    Close {
        number: usize,
    },
    /// Make a number refer to a new socket, and close it in the same call if it is open.
    Open {
        number: usize,
        what: Opening,
    },
    /// The peer shuts down sending.
    PeerEnd {
        whose: Whose,
    },
    PeerClose {
        whose: Whose,
    },
    PeerReset {
        whose: Whose,
    },
    /// The peer receives all there is.
    PeerDrain {
        whose: Whose,
    },
    Send {
        whose: Whose,
        bytes: usize,
    },
    /// Send until there is no room.
    Fill {
        whose: Whose,
    },
    Connect {
        whose: Whose,
        refused: bool,
    },
    /// Duplicate a number.
    Duplicate {
        number: usize,
    },
    /// Close a duplicate.
    CloseClone {
        clone: usize,
    },
    /// Dequeue with several threads at once.
    DequeueByThreads {
        port: usize,
        threads: usize,
        room: usize,
    },
    /// Wait a moment, if nothing has to come.
    Wait {
        port: usize,
    },
    /// A call whose arguments contradict each other.
    Contradict {
        port: usize,
        batch: Vec<Asked>,
    },
    /// Close the port, and put a new one in its place.
    ReplacePort {
        port: usize,
    },
}

/// What each number is opened as, and what is done then.
#[derive(Clone)]
pub(crate) struct Case {
    opened: [Opening; NUMBERS],
    operations: Vec<Operation>,
}

impl fmt::Debug for Case {
    /// A line for each operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "opened as {:?}", self.opened)?;
        for (index, operation) in self.operations.iter().enumerate() {
            write!(f, "\n{index:4}: {operation:?}")?;
        }
        Ok(())
    }
}

fn numbers() -> impl Strategy<Value = usize> {
    0..NUMBERS
}

fn ports() -> impl Strategy<Value = usize> {
    prop_oneof![6 => Just(0_usize), 1 => 1..PORTS]
}

fn whose() -> impl Strategy<Value = Whose> {
    prop_oneof![
        5 => numbers().prop_map(Whose::Number),
        1 => (0..CLONES).prop_map(Whose::Clone),
    ]
}

fn opening() -> impl Strategy<Value = Opening> {
    prop_oneof![
        6 => Just(Opening::Connected(Kind::Unix)),
        6 => Just(Opening::Connected(Kind::Tcp)),
        3 => Just(Opening::Connected(Kind::Udp)),
        2 => Just(Opening::Connected(Kind::Listener)),
        2 => Just(Opening::Unconnected(Kind::Tcp)),
        1 => Just(Opening::Unconnected(Kind::Udp)),
        1 => Just(Opening::NoSocket),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let operation = prop_oneof![
        40 => Just(Operations::ENABLE),
        5 => Just(Operations::DISABLE),
        8 => Just(Operations::REMOVE),
        1 => Just(Operations::NONE),
        1 => any::<u8>().prop_map(Operations::from_bits_retain),
        1 => Just(Operations::REMOVE | Operations::ENABLE),
    ];
    let key = prop_oneof![12 => Just(Key::Same), 3 => Just(Key::Former), 1 => Just(Key::New)];
    let filter = prop_oneof![
        30 => (0..8_u16).prop_map(EventFilter::from_bits_retain),
        20 => Just(EventFilter::IN),
        // Beside the extensions, of which the model knows nothing.
        1 => any::<u16>().prop_map(|bits| EventFilter::from_bits_retain(bits & 0x3fff)),
    ];
    let trigger = prop_oneof![
        10 => Just(Trigger::LEVEL),
        10 => Just(Trigger::EDGE),
        5 => Just(Trigger::LEVEL | Trigger::PERSISTENT),
        5 => Just(Trigger::EDGE | Trigger::PERSISTENT),
        15 => Just(Trigger::LEVEL | Trigger::ONESHOT),
        10 => Just(Trigger::EDGE | Trigger::ONESHOT),
        5 => Just(Trigger::EDGE | Trigger::INITIAL),
        5 => Just(Trigger::EDGE | Trigger::INITIAL | Trigger::ONESHOT),
        1 => any::<u8>().prop_map(Trigger::from_bits_retain),
    ];
    let is_add = prop::bool::weighted(0.2);
    (
        numbers(),
        operation,
        key,
        filter,
        trigger,
        any::<bool>(),
        is_add,
    )
        .prop_map(
            |(number, operation, key, filter, trigger, is_silent, is_add)| Asked {
                number,
                operation,
                key,
                filter,
                trigger,
                is_silent: is_silent && operation == Operations::REMOVE,
                is_add: is_add && operation == Operations::ENABLE,
            },
        )
}

/// Mostly too little for all.
fn rooms() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..5_usize, 1 => Just(16)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let batch = || prop::collection::vec(asked(), 1..4);
    let dequeue =
        (ports(), rooms(), any::<bool>()).prop_map(|(port, room, patient)| Operation::Dequeue {
            port,
            room,
            patient,
        });
    let process =
        (ports(), batch(), 0..5_usize, any::<bool>()).prop_map(|(port, batch, room, patient)| {
            Operation::Process {
                port,
                batch,
                room,
                patient,
            }
        });
    let peer_send =
        (whose(), 0..8_usize).prop_map(|(whose, bytes)| Operation::PeerSend { whose, bytes });
    let open = (numbers(), opening()).prop_map(|(number, what)| Operation::Open { number, what });
    let by_threads = (ports(), 2..5_usize, 1..4_usize).prop_map(|(port, threads, room)| {
        Operation::DequeueByThreads {
            port,
            threads,
            room,
        }
    });
    prop_oneof![
        24 => dequeue,
        24 => process,
        12 => peer_send,
        6 => whose().prop_map(|whose| Operation::Drain { whose }),
        3 => whose().prop_map(|whose| Operation::ReceiveOne { whose }),
        3 => (ports(), 1..3_usize).prop_map(|(port, count)| Operation::Post { port, count }),
        3 => numbers().prop_map(|number| Operation::Close { number }),
        6 => open,
        2 => whose().prop_map(|whose| Operation::PeerEnd { whose }),
        2 => whose().prop_map(|whose| Operation::PeerClose { whose }),
        2 => whose().prop_map(|whose| Operation::PeerReset { whose }),
        2 => whose().prop_map(|whose| Operation::PeerDrain { whose }),
        2 => (whose(), 1..8_usize).prop_map(|(whose, bytes)| Operation::Send { whose, bytes }),
        2 => whose().prop_map(|whose| Operation::Fill { whose }),
        3 => (whose(), any::<bool>())
            .prop_map(|(whose, refused)| Operation::Connect { whose, refused }),
        3 => numbers().prop_map(|number| Operation::Duplicate { number }),
        2 => (0..CLONES).prop_map(|clone| Operation::CloseClone { clone }),
        1 => ports().prop_map(|port| Operation::Wait { port }),
        2 => by_threads,
        1 => (ports(), batch()).prop_map(|(port, batch)| Operation::Contradict { port, batch }),
        1 => ports().prop_map(|port| Operation::ReplacePort { port }),
    ]
}

/// Cases of at most so many steps.
pub(crate) fn cases(steps: usize) -> impl Strategy<Value = Case> {
    let opened = [opening(), opening(), opening(), opening()];
    (opened, prop::collection::vec(operation(), 1..=steps))
        .prop_map(|(opened, operations)| Case { opened, operations })
}

/// The result of a step, or what went wrong.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The numbers are high ones, which the system gives to nobody else, so that a closed one stays
/// closed. Every run has some of its own.
fn reserve_numbers() -> RawFd {
    static NEXT: AtomicI32 = AtomicI32::new(300);
    NEXT.fetch_add(NUMBERS as RawFd, Ordering::Relaxed)
}

/// The real ports and sockets beside the model of them.
pub(crate) struct World {
    model: Model,
    backend: Backend,
    ports: Vec<CompletionPort>,
    loopback: Loopback,
    first_number: RawFd,
    numbers: [Option<OwnedFd>; NUMBERS],
    clones: Vec<(SocketId, OwnedFd)>,
    peers: BTreeMap<SocketId, Peer>,
    /// Writing ends of the pipes.
    pipes: Vec<OwnedFd>,
    sockets_made: SocketId,
    packets_posted: usize,
    patience: Duration,
}

impl World {
    pub(crate) fn new(backend: Backend) -> Outcome<Self> {
        let mut world = World {
            model: Model::new(),
            backend,
            ports: Vec::new(),
            loopback: Loopback::new()?,
            first_number: reserve_numbers(),
            numbers: Default::default(),
            clones: Vec::new(),
            peers: BTreeMap::new(),
            pipes: Vec::new(),
            sockets_made: 0,
            packets_posted: 0,
            patience: PATIENCE,
        };
        for _ in 0..PORTS {
            let port = world.new_port()?;
            world.ports.push(port);
        }
        Ok(world)
    }

    /// Run a case from a fresh beginning to an empty end.
    pub(crate) fn run(&mut self, case: &Case) -> Outcome {
        let outcome = self.run_from_the_beginning(case);
        if outcome.is_err() {
            self.patience = IMPATIENCE;
        }
        outcome
    }

    fn run_from_the_beginning(&mut self, case: &Case) -> Outcome {
        self.begin()?;
        for (number, &what) in case.opened.iter().enumerate() {
            self.open(number, what)?;
        }
        for (index, operation) in case.operations.iter().enumerate() {
            self.step(operation)
                .map_err(|error| format!("step {index}, {operation:?}: {error}"))?;
        }
        self.finish()
            .map_err(|error| format!("at the end: {error}").into())
    }

    fn new_port(&self) -> Result<CompletionPort, Error> {
        // Places are not what this is about: there is always one free.
        CompletionPort::builder()
            .backend(self.backend)
            .concurrency(16)
            .build()
    }

    fn begin(&mut self) -> Outcome {
        self.model = Model::new();
        for port in 0..PORTS {
            self.ports[port] = self.new_port()?;
        }
        for number in 0..NUMBERS {
            if let Some(ours) = self.numbers[number].take() {
                close_at_once(&ours);
            }
        }
        for (_, ours) in self.clones.drain(..) {
            close_at_once(&ours);
        }
        for (_, mut peer) in std::mem::take(&mut self.peers) {
            peer.reset();
        }
        self.pipes.clear();
        Ok(())
    }

    fn step(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Dequeue {
                port,
                room,
                patient,
            } => self.process(port, &[], room, patient).map(drop),
            Operation::Process {
                port,
                ref batch,
                room,
                patient,
            } => self.process(port, batch, room, patient).map(drop),
            Operation::PeerSend { whose, bytes } => self.peer_send(whose, bytes),
            Operation::Drain { whose } => self.receive(whose, usize::MAX),
            Operation::ReceiveOne { whose } => self.receive(whose, 1),
            Operation::Post { port, count } => self.post(port, count),
            Operation::Close { number } => self.close(number),
            Operation::Open { number, what } => self.open(number, what),
            Operation::PeerEnd { whose } => self.peer_end(whose),
            Operation::PeerClose { whose } => self.peer_leave(whose, false),
            Operation::PeerReset { whose } => self.peer_leave(whose, true),
            Operation::PeerDrain { whose } => self.peer_drain(whose),
            Operation::Send { whose, bytes } => self.send(whose, bytes),
            Operation::Fill { whose } => self.fill(whose),
            Operation::Connect { whose, refused } => self.connect(whose, refused),
            Operation::Duplicate { number } => self.duplicate(number),
            Operation::CloseClone { clone } => self.close_clone(clone),
            Operation::DequeueByThreads {
                port,
                threads,
                room,
            } => self.dequeue_by_threads(port, threads, room),
            Operation::Wait { port } => self.wait(port),
            Operation::Contradict { port, ref batch } => self.contradict(port, batch),
            Operation::ReplacePort { port } => self.replace_port(port),
        }
    }

    /// The socket that is meant, and a descriptor of it.
    fn find(&self, whose: Whose) -> Option<(SocketId, BorrowedFd<'_>)> {
        match whose {
            Whose::Number(number) => match (self.model.number(number), &self.numbers[number]) {
                (Number::Socket(id), Some(ours)) => Some((id, ours.as_fd())),
                _ => None,
            },
            Whose::Clone(clone) => {
                let (id, ours) = self.clones.get(clone)?;
                Some((*id, ours.as_fd()))
            }
        }
    }

    /// Change the state in the model, and wait until the real socket is in the same state.
    fn change(
        &mut self,
        whose: Whose,
        activity: Events,
        event: impl FnOnce(&mut Socket),
    ) -> Outcome {
        let Some((id, _)) = self.find(whose) else {
            return Ok(());
        };
        self.model.change(id, activity, event);
        self.wait_for_state(whose)
    }

    fn wait_for_state(&self, whose: Whose) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        let counts_bytes = matches!(socket.kind, Kind::Tcp | Kind::Unix);
        let bytes = (counts_bytes && socket.link == Link::Open).then_some(socket.unread);
        loopback::wait_for_state(ours, socket.polled(), bytes)
            .map_err(|error| format!("{error}; the model has {socket:?}"))?;
        Ok(())
    }

    fn open(&mut self, number: usize, what: Opening) -> Outcome {
        let (made, peer) = match what {
            Opening::NoSocket => {
                let (made, other) = rustix::pipe::pipe()?;
                self.pipes.push(other);
                (made, None)
            }
            Opening::Connected(kind) => {
                let (made, peer) = self.loopback.open(kind, Link::Open)?;
                (made, Some((peer, Socket::new(kind, Link::Open))))
            }
            Opening::Unconnected(kind) => {
                let (made, peer) = self.loopback.open(kind, Link::Unconnected)?;
                (made, Some((peer, Socket::new(kind, Link::Unconnected))))
            }
        };
        let raw = self.first_number + number as RawFd;
        match &mut self.numbers[number] {
            Some(old) => rustix::io::dup3(&made, old, DupFlags::CLOEXEC)?,
            closed => *closed = Some(rustix::io::fcntl_dupfd_cloexec(&made, raw)?),
        }
        drop(made);
        if self.numbers[number].as_ref().map(AsRawFd::as_raw_fd) != Some(raw) {
            return Err(format!("{raw} is in use").into());
        }
        let closed = self.model.number(number);
        let Some((peer, socket)) = peer else {
            self.model.assign(number, Number::Other);
            return self.closed(closed);
        };
        let id = self.sockets_made;
        self.sockets_made += 1;
        self.peers.insert(id, peer);
        self.model.create(id, socket);
        self.model.assign(number, Number::Socket(id));
        self.closed(closed)?;
        self.wait_for_state(Whose::Number(number))
    }

    fn close(&mut self, number: usize) -> Outcome {
        self.numbers[number] = None;
        let closed = self.model.number(number);
        self.model.assign(number, Number::Closed);
        self.closed(closed)
    }

    /// Whether a socket has a duplicate.
    fn has_duplicate(&self, what: Number) -> bool {
        self.clones
            .iter()
            .any(|&(id, _)| Number::Socket(id) == what)
    }

    /// A descriptor was closed. If it was the last one of its socket, the peer sees it at once (G1).
    fn closed(&mut self, what: Number) -> Outcome {
        let Number::Socket(id) = what else {
            return Ok(());
        };
        let is_numbered = (0..NUMBERS).any(|number| self.model.number(number) == what);
        if is_numbered || self.has_duplicate(what) {
            return Ok(());
        }
        let socket = self.model.socket(id);
        let is_stream = matches!(socket.kind, Kind::Tcp | Kind::Unix);
        let peer = self.peers.remove(&id);
        if let Some(Peer::Socket(peer)) = &peer {
            if is_stream && socket.has_peer() {
                loopback::wait_until(peer.as_fd(), PollFlags::RDHUP)
                    .map_err(|error| format!("G1: the peer does not see the close: {error}"))?;
            }
        }
        if let Some(mut peer) = peer {
            peer.reset();
        }
        self.model.destroy(id);
        Ok(())
    }

    fn duplicate(&mut self, number: usize) -> Outcome {
        if self.clones.len() < CLONES {
            if let Some((id, ours)) = self.find(Whose::Number(number)) {
                let clone = rustix::io::fcntl_dupfd_cloexec(ours, 3)?;
                self.clones.push((id, clone));
            }
        }
        Ok(())
    }

    fn close_clone(&mut self, clone: usize) -> Outcome {
        if clone >= self.clones.len() {
            return Ok(());
        }
        let (id, ours) = self.clones.remove(clone);
        drop(ours);
        self.closed(Number::Socket(id))
    }

    fn connect(&mut self, whose: Whose, refused: bool) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let kind = self.model.socket(id).kind;
        if self.model.socket(id).link != Link::Unconnected {
            return Ok(());
        }
        if refused && kind == Kind::Tcp {
            self.loopback.connect_refused(ours)?;
            return self.change(whose, Events::ALL, |socket| {
                socket.link = Link::Refused;
                socket.error = true;
            });
        }
        let peer = self.loopback.connect(kind, ours)?;
        self.peers.insert(id, peer);
        self.change(whose, Events::ALL, |socket| socket.link = Link::Open)
    }

    fn peer_send(&mut self, whose: Whose, bytes: usize) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        if !socket.peer_can_send() {
            return Ok(());
        }
        if socket.kind == Kind::Listener {
            if socket.unread == 8 {
                return Ok(());
            }
            let client = loopback::connect_client(ours)?;
            if let Some(Peer::Clients(clients)) = self.peers.get_mut(&id) {
                clients.push(client);
            }
            return self.change(whose, Events::IN, |socket| socket.unread += 1);
        }
        let amount = match socket.kind {
            Kind::Udp => 1,
            _ if bytes == 0 => return Ok(()),
            _ => bytes,
        };
        if let Some(peer) = self.peers.get(&id).and_then(Peer::socket) {
            if !loopback::send_some(peer.as_fd(), bytes)? {
                return Err("the peer has no room".into());
            }
        }
        self.change(whose, Events::IN, |socket| socket.unread += amount)
    }

    fn receive(&mut self, whose: Whose, limit: usize) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        if socket.kind == Kind::Tcp && socket.link == Link::Unconnected {
            return Ok(());
        }
        let all = limit == usize::MAX;
        let amount = socket.unread.min(limit);
        // Of a datagram socket the error comes first, of a stream last.
        let error = socket.error && (all || amount == 0 || socket.kind == Kind::Udp);
        let received = loopback::receive(ours, socket.kind, limit)?;
        let expected = loopback::Received { amount, error };
        if received != expected {
            return Err(format!("received {received:?}, not {expected:?}: {socket:?}").into());
        }
        self.change(whose, Events::empty(), |socket| {
            socket.unread -= amount;
            socket.error &= !error;
        })
    }

    fn peer_end(&mut self, whose: Whose) -> Outcome {
        let Some((id, _)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        let is_stream = matches!(socket.kind, Kind::Tcp | Kind::Unix);
        if !is_stream || !socket.peer_can_send() {
            return Ok(());
        }
        if let Some(peer) = self.peers.get(&id).and_then(Peer::socket) {
            peer.shutdown(std::net::Shutdown::Write)?;
        }
        self.change(whose, Events::ALL, Socket::end)
    }

    fn peer_leave(&mut self, whose: Whose, abruptly: bool) -> Outcome {
        let Some((id, _)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        let kind = socket.kind;
        if kind == Kind::Listener || !socket.has_peer() {
            return Ok(());
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            match abruptly {
                true => peer.reset(),
                false => peer.close(),
            }
        }
        self.change(whose, Events::ALL, |socket| {
            match abruptly && kind == Kind::Tcp {
                true => socket.reset(),
                false => socket.peer_closed(),
            }
        })
    }

    fn peer_drain(&mut self, whose: Whose) -> Outcome {
        let Some((id, _)) = self.find(whose) else {
            return Ok(());
        };
        let kind = self.model.socket(id).kind;
        let Some(peer) = self.peers.get(&id).and_then(Peer::socket) else {
            return Ok(());
        };
        loopback::receive(peer.as_fd(), kind, usize::MAX)?;
        self.change(whose, Events::OUT, |socket| {
            socket.unread_by_peer = 0;
            socket.full = false;
        })
    }

    fn send(&mut self, whose: Whose, bytes: usize) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        let (kind, link) = (socket.kind, socket.link);
        let sends = match (kind, link) {
            // Many small ones would fill a Unix socket stale.
            _ if socket.error || socket.full || socket.unread_by_peer > 8 => false,
            (Kind::Listener, _) | (_, Link::Unconnected | Link::Dead | Link::Refused) => false,
            (_, Link::Open | Link::Ended | Link::Left) => true,
        };
        if !sends {
            return Ok(());
        }
        if !loopback::send_some(ours, bytes)? {
            return Err("there is no room".into());
        }
        let activity = match (kind, link) {
            (_, Link::Left) => Events::ALL,
            // A datagram leaves the buffer.
            (Kind::Udp, _) => Events::OUT,
            _ => Events::empty(),
        };
        self.change(whose, activity, |socket| match (kind, link) {
            (Kind::Udp, Link::Left) => socket.error = true,
            (_, Link::Left) => socket.reset(),
            _ => socket.unread_by_peer += 1,
        })?;
        match self.peers.get(&id).and_then(Peer::socket) {
            Some(peer) if link != Link::Left => {
                loopback::wait_until(peer.as_fd(), PollFlags::IN)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn fill(&mut self, whose: Whose) -> Outcome {
        let Some((id, ours)) = self.find(whose) else {
            return Ok(());
        };
        let socket = self.model.socket(id);
        // TCP makes room by itself for a while, so that nobody knows when it is full.
        if socket.kind != Kind::Unix || !socket.has_peer() {
            return Ok(());
        }
        loopback::fill(ours)?;
        self.change(whose, Events::empty(), |socket| {
            socket.full = true;
            socket.unread_by_peer += 1;
        })
    }

    /// Apply a batch to the model: each entry with its key, and the result that it has to get.
    fn requests(&mut self, port: usize, batch: &[Asked]) -> Vec<(Request, Expected)> {
        let mut requests: Vec<(Request, Expected)> = Vec::with_capacity(batch.len());
        for asked in batch {
            let key = match asked.key {
                Key::Same => self.model.key(port, asked.number),
                Key::Former => self.model.former_key(port, asked.number),
                Key::New => None,
            };
            let request = Request {
                number: asked.number,
                operation: asked.operation,
                key: key.unwrap_or_else(|| self.model.fresh_key()),
                filter: asked.filter,
                trigger: asked.trigger,
                is_silent: asked.is_silent,
                is_add: asked.is_add,
            };
            let expected = self.model.apply(port, &request);
            requests.push((request, expected));
        }
        requests
    }

    /// Apply a batch, and dequeue if there is room. False if nothing came.
    fn process(
        &mut self,
        port: usize,
        batch: &[Asked],
        room: usize,
        patient: bool,
    ) -> Outcome<bool> {
        let requests = self.requests(port, batch);
        let mut registrations = self.registrations(&requests);
        let timeout = match patient && room > 0 && self.model.is_due(port) {
            true => self.patience,
            false => Duration::ZERO,
        };
        let mut entries = vec![Entry::default(); room];
        let outcome = self.ports[port]
            .process(&mut registrations, &mut entries, Some(timeout))
            .map(|entries| entries.to_vec());
        for (registration, (request, expected)) in registrations.iter().zip(&requests) {
            let result = registration.result();
            if result != *expected {
                return Err(format!("{request:?} gave {result:?}, not {expected:?}").into());
            }
        }
        let came = match outcome {
            Ok(entries) if entries.is_empty() && room > 0 => return Err("E2: empty".into()),
            Ok(entries) => {
                self.model.dequeued(port, &entries, room)?;
                true
            }
            Err(Error::TimedOut) if room > 0 => {
                self.model.timed_out(port)?;
                false
            }
            Err(error) => return Err(error.into()),
        };
        let expected = self.model.registrations(port);
        let registered = self.ports[port].snapshot().registrations;
        if registered.is_some_and(|registered| !expected.contains(&registered)) {
            return Err(format!("{registered:?} registrations, not {expected:?}").into());
        }
        Ok(came)
    }

    fn registrations(&self, requests: &[(Request, Expected)]) -> Vec<Registration<'static>> {
        let requests = requests.iter().map(|(request, _)| request);
        requests
            .map(|request| registration(self.first_number, request))
            .collect()
    }

    /// B8, B9: the call fails, and nothing is applied.
    fn contradict(&mut self, port: usize, batch: &[Asked]) -> Outcome {
        let untouched = self.model.clone();
        let requests = self.requests(port, batch);
        self.model = untouched;
        let mut registrations = self.registrations(&requests);
        for timeout in [None, Some(Duration::from_millis(1))] {
            let outcome = self.ports[port].process(&mut registrations, &mut [], timeout);
            if outcome != Err(Error::InvalidParameter) {
                return Err(format!("B9: the call gave {outcome:?}").into());
            }
        }
        Ok(())
    }

    fn post(&mut self, port: usize, count: usize) -> Outcome {
        let entries: Vec<Entry> = (0..count)
            .map(|index| {
                let serial = self.packets_posted + index;
                Entry::new(
                    POSTED + serial,
                    serial as u32 ^ 0xA5C3,
                    serial.rotate_right(5),
                )
            })
            .collect();
        self.packets_posted += count;
        self.ports[port].post_all(&entries)?;
        for entry in entries {
            self.model.post(port, entry);
        }
        Ok(())
    }

    /// E4, G3: a wait in which nothing comes is neither short, nor spent on the processor.
    fn wait(&mut self, port: usize) -> Outcome {
        const MOMENT: Duration = Duration::from_millis(4);
        if self.model.is_due(port) {
            return Ok(());
        }
        // Before that, dequeue what may come, and let the port clean up stale registrations.
        for _ in 0..16 {
            self.process(port, &[], 64, false)?;
        }
        let mut entries = [Entry::default(); 64];
        let mut least = MOMENT;
        // On a busy machine one wait may take longer than it needs, and not all of them.
        for _ in 0..4 {
            let (begin, busy) = (Instant::now(), time_on_processor());
            match self.ports[port].dequeue(&mut entries, Some(MOMENT)) {
                Ok(entries) => return Ok(self.model.dequeued(port, entries, entries.len())?),
                Err(Error::TimedOut) => self.model.timed_out(port)?,
                Err(error) => return Err(error.into()),
            }
            let waited = begin.elapsed();
            if waited < MOMENT {
                return Err(format!("E4: the wait ended after {waited:?}").into());
            }
            least = least.min(time_on_processor() - busy);
            if least < MOMENT / 2 {
                return Ok(());
            }
        }
        Err(format!("G3: each wait took {least:?} of the processor, or more").into())
    }

    fn dequeue_by_threads(&mut self, port: usize, threads: usize, room: usize) -> Outcome {
        let barrier = Barrier::new(threads);
        let real = &self.ports[port];
        // C4: a level that this thread has dequeued comes to others when it lets go.
        real.release();
        let outcomes: Vec<Result<Vec<Entry>, Error>> = std::thread::scope(|scope| {
            let dequeue = || {
                let mut entries = vec![Entry::default(); room];
                barrier.wait();
                let taken = real.dequeue(&mut entries, Some(Duration::ZERO));
                taken.map(|entries| entries.to_vec())
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(dequeue)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|outcome| outcome.expect("a thread panicked"))
                .collect()
        });
        let mut calls = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(entries) if entries.is_empty() => return Err("E2: empty".into()),
                Ok(entries) => calls.push(Some(entries)),
                Err(Error::TimedOut) => calls.push(None),
                Err(error) => return Err(error.into()),
            }
        }
        self.model.dequeued_by_threads(port, &calls)?;
        Ok(())
    }

    fn replace_port(&mut self, port: usize) -> Outcome {
        let next = self.new_port()?;
        let closed = std::mem::replace(&mut self.ports[port], next);
        closed.close();
        if closed.dequeue_one(Some(Duration::ZERO)) != Err(Error::Closed) {
            return Err("G4: a closed port does not say so".into());
        }
        self.model.replace_port(port);
        Ok(())
    }

    /// Remove everything. Each registration has to end with one REMOVE, and then it has to be quiet.
    fn finish(&mut self) -> Outcome {
        for port in 0..PORTS {
            let remove = |number| Asked {
                number,
                operation: Operations::REMOVE,
                key: Key::Same,
                filter: EventFilter::NONE,
                trigger: Trigger::empty(),
                is_silent: false,
                is_add: false,
            };
            let batch: Vec<Asked> = self
                .model
                .registered(port)
                .into_iter()
                .map(remove)
                .collect();
            self.process(port, &batch, 0, false)?;
            while self.model.is_due(port) {
                self.process(port, &[], 3, true)?;
            }
            // Notifications of sockets that were closed while queued may still be dequeued.
            for _ in 0..NUMBERS {
                self.process(port, &[], 64, false)?;
            }
        }
        Ok(())
    }
}

/// What an entry of a batch has to result in.
type Expected = Result<(), socknotify::RegistrationError>;

/// How long this thread has run.
fn time_on_processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Descriptors by their numbers.
static NUMBERED: LazyLock<Vec<BorrowedFd<'static>>> = LazyLock::new(|| {
    // SAFETY: what is used of them belongs to this test alone, open or closed.
    (0..1024)
        .map(|number| unsafe { BorrowedFd::borrow_raw(number) })
        .collect()
});

/// The entry for a request.
fn registration(first_number: RawFd, request: &Request) -> Registration<'static> {
    // SAFETY: the numbers belong to this test alone, open or closed.
    let mut registration =
        unsafe { Registration::from_raw(first_number + request.number as RawFd) };
    registration.completion_key = request.key;
    registration.event_filter = request.filter;
    registration.operation = request.operation;
    registration.trigger = request.trigger;
    if request.is_add {
        let number = &NUMBERED[registration.raw_socket() as usize];
        return Registration::add(number, request.key, request.filter, request.trigger);
    }
    match request.is_silent {
        true => socknotify::interface::silent(registration),
        false => registration,
    }
}

/// Close a connection without TIME_WAIT.
fn close_at_once(ours: &OwnedFd) {
    let _ = socket2::SockRef::from(ours).set_linger(Some(Duration::ZERO));
}
