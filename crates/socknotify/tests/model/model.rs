//! The contract as a model: for each registration, what has to come and what may come.
//!
//! Three sets of events describe the notification that a registration may have in the queue:
//!
//! - what is *due*: a notification has to come, and it has to show these;
//! - what is *possible*: a notification may come if it shows one of these;
//! - what may be *shown* in it besides.
//!
//! The first is smaller than the second for reasons that the contract names: a notification that is
//! queued when its registration is disabled, or its socket closed, may or may not be dequeued; so may
//! one whose condition ended before it was dequeued; and an edge-triggered one may be repeated, or come
//! once for what holds at ENABLE. A socket that was closed and lives on under a duplicate may be
//! notified a bounded number of times. Only posted packets have an order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use socknotify::{Entry, EventFilter, Events, Operation, RegistrationError, Trigger};

use crate::conditions::{Link, Socket};

/// Whether the system has an event for each condition of a socket.
const EDGES_COME_ONE_BY_ONE: bool = cfg!(kqueue_stand_in);

/// How many descriptor numbers take part.
pub(crate) const NUMBERS: usize = 4;

/// How many ports.
pub(crate) const PORTS: usize = 2;

/// How many notifications may come of a persistent registration whose socket lives on under a duplicate (G3).
const FALSE_NOTIFICATIONS: usize = 64;

/// How many calls in a row may serve one socket while another waits for its first time (E1), and once more.
const OVERTAKEN: usize = 8;

/// Keys from here on are those of posted packets.
pub(crate) const POSTED: usize = 1 << (usize::BITS / 2);

/// Identifies a socket within a case. Unlike descriptor numbers, these are not reused.
pub(crate) type SocketId = usize;

/// A count of all that happened in a case.
type Time = usize;

/// An error is a violation of the contract.
pub(crate) type Check = Result<(), String>;

/// What a descriptor number refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Closed,
    /// An open descriptor that is no socket.
    Other,
    Socket(SocketId),
}

/// One entry of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) number: usize,
    pub(crate) operation: Operation,
    pub(crate) key: usize,
    pub(crate) filter: EventFilter,
    pub(crate) trigger: Trigger,
    /// REMOVE takes effect at once, and is not notified.
    pub(crate) is_silent: bool,
    /// ENABLE only what the port does not have, whatever others have.
    pub(crate) is_add: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Enabled,
    Disabled,
    /// REMOVE was accepted, and its notification is still to come.
    Removing,
    /// The socket was closed.
    Over,
}

#[derive(Clone, Debug)]
struct Registration {
    key: usize,
    number: usize,
    socket: SocketId,
    /// The number still refers to the socket.
    attached: bool,
    /// Another port cannot ENABLE it (A2).
    is_claimed: bool,
    filter: EventFilter,
    trigger: Trigger,
    state: State,
    due: Events,
    due_since: Time,
    possible: Events,
    possible_since: Time,
    shown: Events,
    /// The conditions that held at the last update, for edges.
    held: Events,
    /// What held at ENABLE, of which an edge-triggered registration may give one notification besides (C5), or where
    /// edges come one by one, two. There, one for an edge may also come as two.
    extra: Events,
    /// One of these two has come.
    is_half: bool,
    /// Edges that the notification of a one-shot did not show: they come with the next arming (C3).
    carried: Events,
    /// How many notifications may still come of it, though its number is closed (G3).
    false_left: usize,
    /// Keys of later notifications that were dequeued while this one was due.
    overtaken_by: Vec<usize>,
}

impl Registration {
    fn new(key: usize, number: usize, socket: SocketId) -> Self {
        Registration {
            key,
            number,
            socket,
            attached: true,
            is_claimed: true,
            filter: EventFilter::NONE,
            trigger: Trigger::empty(),
            state: State::Disabled,
            due: Events::empty(),
            due_since: 0,
            possible: Events::empty(),
            possible_since: 0,
            shown: Events::empty(),
            held: Events::empty(),
            extra: Events::empty(),
            is_half: false,
            carried: Events::empty(),
            false_left: 0,
            overtaken_by: Vec::new(),
        }
    }

    fn wanted(&self) -> Events {
        Events::from_bits_truncate(self.filter.bits().into()) | Events::ERR
    }

    fn is_edge_triggered(&self) -> bool {
        self.trigger.contains(Trigger::EDGE)
    }

    fn is_live(&self) -> bool {
        matches!(self.state, State::Enabled | State::Disabled)
    }

    fn set_due(&mut self, due: Events, now: Time) {
        if self.due.is_empty() || !due.contains(self.due) {
            self.due_since = now;
            self.overtaken_by.clear();
        }
        self.due = due;
    }

    fn allow(&mut self, causes: Events, shown: Events, now: Time) {
        if self.possible.is_empty() {
            self.possible_since = now;
            if self.extra.is_empty() {
                self.shown = Events::empty();
            }
        }
        self.possible |= causes;
        if !self.possible.is_empty() {
            self.shown |= shown;
        }
    }

    /// Nothing of this registration is in the queue any more.
    fn clear_queued(&mut self) {
        self.due = Events::empty();
        self.possible = Events::empty();
        self.extra = Events::empty();
        self.shown = Events::empty();
        self.overtaken_by.clear();
    }

    /// No more than one notification can be in the queue, and none is added.
    fn stop(&mut self) {
        self.possible |= std::mem::replace(&mut self.extra, Events::empty());
        self.carried = Events::empty();
        self.set_due(Events::empty(), 0);
    }

    /// C4, C5: take note of the state of the socket. What happened to it concerns the conditions in
    /// `activity`, whether or not they change.
    ///
    /// The system reports a socket with all that holds whenever something happens that concerns a wanted
    /// condition, and nobody sees that a condition ends. So each such event may repeat the conditions
    /// that still hold, in one more notification or in one with an edge.
    fn update(&mut self, socket: &Socket, activity: Events, now: Time) {
        if self.state != State::Enabled {
            return;
        }
        let holds = socket.holds() & self.wanted();
        let may_hold = socket.may_hold() & self.wanted();
        if self.is_edge_triggered() {
            let rose = holds - self.held;
            let repeated = match activity.intersects(self.wanted()) {
                true => may_hold,
                false => Events::empty(),
            };
            self.set_due((self.due & holds) | rose, now);
            self.allow((may_hold - self.held) | repeated, may_hold, now);
            self.held = may_hold;
        } else {
            self.set_due(holds, now);
            self.allow(may_hold, may_hold, now);
        }
    }

    /// A3: a new filter and a new trigger. What is queued keeps what is wanted still (D7).
    fn enable(&mut self, request: &Request, socket: &Socket, now: Time) {
        if !self.is_edge_triggered() {
            // What held while it was level-triggered need not come of an edge (C5).
            self.set_due(Events::empty(), now);
        }
        self.filter = request.filter;
        self.trigger = request.trigger;
        self.state = State::Enabled;
        let wanted = self.wanted();
        self.set_due(self.due & wanted, now);
        self.possible &= wanted;
        self.shown &= wanted;
        let holds = socket.may_hold() & wanted;
        let carried = std::mem::replace(&mut self.carried, Events::empty());
        self.held = match self.trigger.contains(Trigger::INITIAL) {
            // X2: what holds already is notified.
            true => Events::empty(),
            false => holds - carried,
        };
        self.update(socket, Events::empty(), now);
        self.is_half = false;
        self.extra = match self.is_edge_triggered() {
            true => holds,
            false => Events::empty(),
        };
        self.shown |= self.extra;
    }

    /// B3: a queued notification may still be dequeued.
    fn disable(&mut self) {
        self.state = State::Disabled;
        self.stop();
    }

    /// B4: one last notification has to come, and what is queued may be merged into it.
    fn remove(&mut self, now: Time) {
        self.state = State::Removing;
        self.stop();
        self.set_due(Events::REMOVE, now);
        self.allow(Events::REMOVE, Events::REMOVE, now);
    }

    /// G1: the number is closed.
    fn close(&mut self) {
        self.attached = false;
        if self.is_live() {
            self.false_left = match (self.state, self.trigger.contains(Trigger::ONESHOT)) {
                (State::Enabled, true) => 1,
                (State::Enabled, false) => FALSE_NOTIFICATIONS,
                _ => 0,
            };
            self.state = State::Over;
            self.stop();
        }
    }

    /// A notification was dequeued.
    fn deliver(&mut self, mask: Events, socket: Option<&Socket>, now: Time) -> Check {
        let is_queued = (self.possible | self.extra).intersects(mask) && self.shown.contains(mask);
        if let (State::Over, Some(socket), false) = (self.state, socket, is_queued) {
            return self.deliver_falsely(mask, socket);
        }
        let late = |clause, what: &str| {
            Err(format!(
                "{clause}: {what}: {mask:?} came of {self:?}, socket {socket:?}"
            ))
        };
        let last = mask.contains(Events::REMOVE);
        if last && self.state != State::Removing {
            return late("B4", "a REMOVE that nobody asked for");
        }
        if !self.shown.contains(mask) {
            return late(
                "C2, D1 to D7, G3",
                "a condition that does not hold, or is not wanted",
            );
        }
        if !(self.possible | self.extra).intersects(mask) {
            return late("C2, C5, C6, G3", "a notification without a cause");
        }
        // C3: what was not merged into it comes later.
        let rest = match self.state {
            State::Enabled if self.is_edge_triggered() => self.due - mask,
            _ => Events::empty(),
        };
        let extra = match self.possible.intersects(mask) {
            true if EDGES_COME_ONE_BY_ONE => {
                // There are two events, and this was one of them.
                self.is_half = true;
                self.extra | self.possible
            }
            true => self.extra,
            // An event may show what the other reports, too.
            false if EDGES_COME_ONE_BY_ONE && !self.is_half => {
                self.is_half = true;
                self.extra
            }
            false => Events::empty(),
        };
        let shown = self.shown;
        match self.state {
            State::Removing if last => self.state = State::Over,
            State::Removing => {
                self.possible = Events::REMOVE;
                self.possible_since = self.due_since;
                self.shown = Events::REMOVE;
                return Ok(());
            }
            State::Enabled if self.trigger.contains(Trigger::ONESHOT) => {
                self.state = State::Disabled;
                self.clear_queued();
                self.carried = rest;
                return Ok(());
            }
            State::Over if self.trigger.contains(Trigger::ONESHOT) => self.false_left = 0,
            _ => {}
        }
        self.clear_queued();
        if let Some(socket) = socket.filter(|_| self.state == State::Enabled) {
            if self.is_edge_triggered() {
                self.extra = extra;
                self.allow(rest, socket.may_hold() & self.wanted(), now);
                self.set_due(rest, now);
                if !(extra | rest).is_empty() {
                    self.shown |= shown;
                }
            } else {
                self.update(socket, Events::empty(), now);
            }
        }
        Ok(())
    }

    /// G3: its number was closed, and its socket lives on under a duplicate.
    fn deliver_falsely(&mut self, mask: Events, socket: &Socket) -> Check {
        // What the system says of a stream without a connection cannot be put right without its number.
        let holds = match socket.link {
            Link::Unconnected | Link::Refused => Events::all(),
            _ => self.shown | socket.may_hold(),
        };
        let holds = holds & self.wanted();
        if self.false_left == 0 || !holds.contains(mask) {
            return Err(format!("G3: {mask:?} came of {self:?}, socket {socket:?}"));
        }
        self.false_left -= 1;
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
struct Port {
    registrations: Vec<Registration>,
    /// Posted packets that were not dequeued.
    posted: VecDeque<Entry>,
    /// Numbers that were closed while they were registered here. The port may not know it yet.
    stale: [bool; NUMBERS],
}

impl Port {
    /// The registration of the socket that this number refers to.
    fn attached(&mut self, number: usize) -> Option<&mut Registration> {
        self.registrations
            .iter_mut()
            .find(|registration| registration.attached && registration.number == number)
    }

    /// The latest registration with this key.
    fn with_key(&mut self, key: usize) -> Option<&mut Registration> {
        self.registrations
            .iter_mut()
            .rfind(|registration| registration.key == key)
    }

    fn drop_those_that_are_over(&mut self, sockets: &BTreeMap<SocketId, Socket>) {
        self.registrations.retain(|it| {
            let is_duplicated = it.false_left > 0 && sockets.contains_key(&it.socket);
            it.state != State::Over || !it.possible.is_empty() || is_duplicated
        });
    }
}

/// Two ports, some descriptor numbers, and the sockets behind them.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    now: Time,
    sockets: BTreeMap<SocketId, Socket>,
    numbers: [Number; NUMBERS],
    ports: [Port; PORTS],
    keys: usize,
    /// The latest key that each number had, in each port.
    latest_keys: [[usize; NUMBERS]; PORTS],
}

impl Model {
    pub(crate) fn new() -> Self {
        Model {
            now: 0,
            sockets: BTreeMap::new(),
            numbers: [Number::Closed; NUMBERS],
            ports: Default::default(),
            keys: 0,
            latest_keys: [[0; NUMBERS]; PORTS],
        }
    }

    pub(crate) fn number(&self, number: usize) -> Number {
        self.numbers[number]
    }

    pub(crate) fn socket(&self, id: SocketId) -> &Socket {
        &self.sockets[&id]
    }

    /// A new socket.
    pub(crate) fn create(&mut self, id: SocketId, socket: Socket) {
        self.sockets.insert(id, socket);
    }

    /// A socket is gone.
    pub(crate) fn destroy(&mut self, id: SocketId) {
        self.sockets.remove(&id);
    }

    /// A number refers to something else from now on. That closes what it referred to.
    pub(crate) fn assign(&mut self, number: usize, what: Number) {
        self.numbers[number] = what;
        for port in &mut self.ports {
            if let Some(registration) = port.attached(number) {
                registration.close();
                port.stale[number] = true;
            }
            port.drop_those_that_are_over(&self.sockets);
        }
    }

    /// Something happens to a socket that concerns the conditions in `activity`.
    pub(crate) fn change(
        &mut self,
        id: SocketId,
        activity: Events,
        event: impl FnOnce(&mut Socket),
    ) {
        let Some(socket) = self.sockets.get_mut(&id) else {
            return;
        };
        event(socket);
        self.now += 1;
        for port in &mut self.ports {
            for registration in &mut port.registrations {
                if registration.attached && registration.socket == id {
                    registration.update(socket, activity, self.now);
                }
            }
        }
    }

    /// A key that no registration has had.
    pub(crate) fn fresh_key(&mut self) -> usize {
        self.keys += 1;
        self.keys
    }

    /// The key of the registration of this number, if there is one.
    pub(crate) fn key(&mut self, port: usize, number: usize) -> Option<usize> {
        self.ports[port].attached(number).map(|it| it.key)
    }

    /// The key of the latest registration of this number, if nothing of that one can come any more.
    pub(crate) fn former_key(&mut self, port: usize, number: usize) -> Option<usize> {
        let key = self.latest_keys[port][number];
        (key != 0 && self.ports[port].with_key(key).is_none()).then_some(key)
    }

    /// A2 to A5, B1 to B6, B10, C1, X1 to X3: one entry of a batch.
    pub(crate) fn apply(
        &mut self,
        port: usize,
        request: &Request,
    ) -> Result<(), RegistrationError> {
        self.now += 1;
        let number = request.number;
        match request.operation {
            Operation::NONE => return Ok(()),
            Operation::ENABLE => {
                if !EventFilter::ALL.contains(request.filter) {
                    return Err(RegistrationError::InvalidFilter);
                }
                if !is_valid(request.trigger) {
                    return Err(RegistrationError::InvalidTrigger);
                }
            }
            Operation::DISABLE | Operation::REMOVE => {}
            _ => return Err(RegistrationError::InvalidOperation),
        }
        let id = match self.numbers[number] {
            Number::Socket(id) => id,
            Number::Other => return Err(RegistrationError::NotASocket),
            Number::Closed => return Err(RegistrationError::NotOpen),
        };
        let socket = &self.sockets[&id];
        let elsewhere = self.is_registered_elsewhere(port, number);
        let (now, port_number) = (self.now, port);
        let port = &mut self.ports[port];
        let Some(registration) = port.attached(number) else {
            match request.operation {
                Operation::ENABLE => {}
                Operation::DISABLE => return Ok(()),
                _ => return Err(RegistrationError::NotFound),
            }
            if elsewhere && !request.is_add {
                return Err(RegistrationError::OtherPort);
            }
            let mut registration = Registration::new(request.key, number, id);
            registration.is_claimed = !request.is_add;
            registration.enable(request, socket, now);
            // G3: nothing comes of one whose number this was.
            let sockets = &self.sockets;
            port.registrations.retain(|it| {
                it.state != State::Over || it.number != number || !sockets.contains_key(&it.socket)
            });
            port.registrations.push(registration);
            port.stale[number] = false;
            self.latest_keys[port_number][number] = request.key;
            return Ok(());
        };
        match (request.operation, registration.state) {
            (Operation::ENABLE, State::Removing) => Err(RegistrationError::RemovePending),
            (Operation::ENABLE, _) if request.is_add => Err(RegistrationError::AlreadyRegistered),
            (Operation::ENABLE, _) if registration.key != request.key => {
                Err(RegistrationError::OtherKey)
            }
            (Operation::ENABLE, _) => {
                registration.enable(request, socket, now);
                Ok(())
            }
            (Operation::DISABLE, State::Removing) => Ok(()),
            (_, State::Removing) => Err(RegistrationError::NotFound),
            (Operation::DISABLE, _) => {
                registration.disable();
                Ok(())
            }
            // X1: nothing of it comes, and nothing is left.
            _ if request.is_silent => {
                let key = registration.key;
                port.registrations
                    .retain(|it| it.key != key || !it.attached);
                Ok(())
            }
            _ => {
                registration.remove(now);
                Ok(())
            }
        }
    }

    pub(crate) fn post(&mut self, port: usize, entry: Entry) {
        self.ports[port].posted.push_back(entry);
    }

    /// Whether a packet has to come.
    pub(crate) fn is_due(&self, port: usize) -> bool {
        let port = &self.ports[port];
        !port.posted.is_empty() || port.registrations.iter().any(|it| !it.due.is_empty())
    }

    /// The notification of one registration, in any order.
    fn deliver(&mut self, port: usize, entry: &Entry) -> Check {
        self.now += 1;
        let Some(registration) = self.ports[port].with_key(entry.completion_key) else {
            return Err(format!("G2, G6: no registration can have sent {entry:?}"));
        };
        if entry.overlapped != 0 || entry.events().bits() != entry.transferred {
            return Err(format!("{entry:?} is no notification"));
        }
        let socket = self.sockets.get(&registration.socket);
        registration.deliver(entry.events(), socket, self.now)
    }

    /// Notifications of one registration that several threads dequeued at the same time. Their order is
    /// unknown; one order has to be allowed.
    fn deliver_in_some_order(&mut self, port: usize, entries: &[Entry]) -> Check {
        let mut check = Ok(());
        for (index, entry) in entries.iter().enumerate() {
            let mut attempt = self.clone();
            let others = [&entries[..index], &entries[index + 1..]].concat();
            check = attempt
                .deliver(port, entry)
                .and_then(|()| attempt.deliver_in_some_order(port, &others));
            if check.is_ok() {
                *self = attempt;
                break;
            }
        }
        check
    }

    /// E1, E6: a posted packet.
    fn deliver_posted(&mut self, port: usize, entry: &Entry) -> Check {
        match self.ports[port].posted.pop_front() {
            Some(posted) if posted == *entry => Ok(()),
            other => Err(format!("E1, E6: {entry:?} came, not {other:?}")),
        }
    }

    /// C4: a call that has asked the system, and has room, reports all levels that hold.
    fn check_levels(&self, port: usize, entries: &[Entry], room: usize) -> Check {
        // With packets in the queue it need not ask (E1). What is dropped takes up room, too.
        const DROPPED: usize = 4;
        let port = &self.ports[port];
        let is_queued =
            |it: &Entry| it.completion_key >= POSTED || it.events().contains(Events::REMOVE);
        let is_over = |it: &Registration| !matches!(it.state, State::Enabled | State::Disabled);
        if entries.iter().any(is_queued)
            || port.registrations.iter().any(is_over)
            || port.stale.contains(&true)
            || room < entries.len() + DROPPED
        {
            return Ok(());
        }
        let is_missing = |it: &&Registration| {
            let has_come = entries.iter().any(|entry| entry.completion_key == it.key);
            !it.due.is_empty() && !it.is_edge_triggered() && !has_come
        };
        match port.registrations.iter().find(is_missing) {
            Some(missing) => Err(format!("C4: {entries:?} came without {missing:?}")),
            None => Ok(()),
        }
    }

    /// Packets that one call returned, while no other was under way.
    pub(crate) fn dequeued(&mut self, port: usize, entries: &[Entry], room: usize) -> Check {
        self.check_levels(port, entries, room)?;
        for (index, entry) in entries.iter().enumerate() {
            let key = entry.completion_key;
            if key >= POSTED {
                self.deliver_posted(port, entry)?;
                continue;
            }
            if entries[..index].iter().any(|it| it.completion_key == key) {
                return Err(format!("C3: {entry:?} came twice in one call"));
            }
            let registration = self.ports[port].with_key(key).map(|it| &*it);
            let since = registration.map_or(self.now, |it| it.possible_since);
            self.deliver(port, entry)?;
            if entry.events().contains(Events::REMOVE) {
                continue;
            }
            for other in &mut self.ports[port].registrations {
                if other.due.is_empty() || other.due_since > since || other.key == key {
                    continue;
                }
                if other.overtaken_by.iter().filter(|&&it| it == key).count() == OVERTAKEN {
                    return Err(format!("E1: {entry:?} came again before {other:?}"));
                }
                other.overtaken_by.push(key);
            }
        }
        self.ports[port].drop_those_that_are_over(&self.sockets);
        Ok(())
    }

    /// Packets that several calls returned, each on a thread of its own, all at the same time.
    pub(crate) fn dequeued_by_threads(
        &mut self,
        port: usize,
        calls: &[Option<Vec<Entry>>],
    ) -> Check {
        let timed_out = calls.iter().any(Option::is_none);
        let packets: Vec<Entry> = calls.iter().flatten().flatten().copied().collect();
        if packets.is_empty() && self.is_due(port) {
            return Err(format!("C4, C5, E1: nothing came: {:?}", self.ports[port]));
        }
        let before = self.ports[port].clone();
        for call in calls.iter().flatten() {
            let posted: Vec<&Entry> = call
                .iter()
                .filter(|it| it.completion_key >= POSTED)
                .collect();
            let place = |entry: &&Entry| before.posted.iter().position(|it| it == *entry);
            if !posted.is_sorted_by_key(place) {
                return Err(format!("E1: {posted:?} are out of order"));
            }
            let mut keys: Vec<usize> = call.iter().map(|it| it.completion_key).collect();
            keys.sort_unstable();
            keys.dedup();
            if keys.len() < call.len() {
                return Err(format!("C3: something came twice in {call:?}"));
            }
        }
        let (mut posted, notifications): (Vec<Entry>, Vec<Entry>) =
            packets.iter().partition(|it| it.completion_key >= POSTED);
        posted.sort_by_key(|entry| before.posted.iter().position(|it| it == entry));
        for entry in &posted {
            self.deliver_posted(port, entry)?;
        }
        if timed_out && !self.ports[port].posted.is_empty() {
            return Err("E2: a call returned nothing while packets were queued".to_owned());
        }
        for registration in &before.registrations {
            let of_this = |it: &&Entry| it.completion_key == registration.key;
            let entries: Vec<Entry> = notifications.iter().filter(of_this).copied().collect();
            self.deliver_in_some_order(port, &entries)?;
        }
        let is_known = |it: &&Entry| {
            before
                .registrations
                .iter()
                .any(|known| known.key == it.completion_key)
        };
        if let Some(unknown) = notifications.iter().find(|it| !is_known(it)) {
            self.deliver(port, unknown)?;
        }
        for registration in &mut self.ports[port].registrations {
            registration.overtaken_by.clear();
        }
        self.ports[port].drop_those_that_are_over(&self.sockets);
        Ok(())
    }

    /// A call found the queue empty.
    pub(crate) fn timed_out(&mut self, port: usize) -> Check {
        if self.is_due(port) {
            return Err(format!("C4, C5, E1: nothing came: {:?}", self.ports[port]));
        }
        self.now += 1;
        for registration in &mut self.ports[port].registrations {
            registration.clear_queued();
            let socket = self.sockets.get(&registration.socket);
            if let Some(socket) = socket.filter(|_| !registration.is_edge_triggered()) {
                registration.update(socket, Events::empty(), self.now);
            }
        }
        self.ports[port].drop_those_that_are_over(&self.sockets);
        Ok(())
    }

    /// The numbers that are registered here, and not being removed.
    pub(crate) fn registered(&self, port: usize) -> Vec<usize> {
        let registrations = self.ports[port].registrations.iter();
        registrations
            .filter(|it| it.attached && it.is_live())
            .map(|it| it.number)
            .collect()
    }

    /// Whether the number is registered with another port, and for that one alone.
    pub(crate) fn is_registered_elsewhere(&self, port: usize, number: usize) -> bool {
        let is_attached = |it: &Registration| {
            it.attached && it.is_claimed && it.number == number && it.state != State::Over
        };
        (0..PORTS)
            .filter(|&other| other != port)
            .any(|other| self.ports[other].registrations.iter().any(is_attached))
    }

    /// How many registrations the port may count.
    pub(crate) fn registrations(&self, port: usize) -> RangeInclusive<usize> {
        let port = &self.ports[port];
        let attached = port.registrations.iter().filter(|it| it.attached).count();
        let stale = port.stale.iter().filter(|&&it| it).count();
        attached..=attached + stale
    }

    /// G4: a port is closed, and replaced by a new one.
    pub(crate) fn replace_port(&mut self, port: usize) {
        self.ports[port] = Port::default();
        self.latest_keys[port] = [0; NUMBERS];
    }
}

/// C1: which triggers there are.
pub(crate) fn is_valid(trigger: Trigger) -> bool {
    [
        Trigger::LEVEL,
        Trigger::EDGE,
        Trigger::LEVEL | Trigger::PERSISTENT,
        Trigger::EDGE | Trigger::PERSISTENT,
        Trigger::LEVEL | Trigger::ONESHOT,
        Trigger::EDGE | Trigger::ONESHOT,
        Trigger::EDGE | Trigger::INITIAL,
        Trigger::EDGE | Trigger::INITIAL | Trigger::PERSISTENT,
        Trigger::EDGE | Trigger::INITIAL | Trigger::ONESHOT,
    ]
    .contains(&trigger)
}
