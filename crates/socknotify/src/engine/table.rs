//! The registrations of a port: one slot for each descriptor number, and what state it is in.

use super::adopted::Unrest;
use super::pages::Pages;
use super::{Kind, Mode, Report, Standing, TURN_MASK, Watch};
use crate::{EventFilter, Events, Registration, Trigger};

/// Where a registration is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    #[default]
    Vacant,
    /// Registered, with its notifications stopped.
    Disabled,
    /// Registered, and waiting for a wanted condition.
    Enabled,
    /// REMOVE was accepted, and its notification is in the queue.
    Removing,
}

/// Names one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// The number of the socket.
    pub(super) socket: u32,
    /// The turn that the registration began with.
    first_turn: u32,
}

/// What the port knows of one descriptor number.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) key: usize,
    /// What `turn` was when the registration began, so that word of an earlier one is known as such.
    first_turn: u32,
    pub(super) filter: EventFilter,
    pub(super) trigger: Trigger,
    pub(super) state: State,
    pub(super) kind: Kind,
    /// How the poller watches the socket, if it does.
    pub(super) watched: Option<Mode>,
    /// How often the poller was told to watch. What it reports of an earlier turn is out of date,
    /// unless it is an edge.
    pub(super) turn: u32,
    /// The poller was told of it, and is about to report what holds. That is no edge.
    pub(super) settling: bool,
    /// The conditions whose edges count if they were seen in an earlier turn.
    going_on: u8,
    /// A packet with this value comes instead, when it is armed the next time. 0 for none.
    pub(super) interruption: u32,
    /// Whether it is among those that may become ready without a report.
    pub(super) dormant: bool,
    /// How often it was armed again since the poller was last bound to be asked.
    pub(super) looks: u8,
    /// Whether it ended with its removal, and not because its socket was found to be closed.
    pub(super) removed: bool,
    /// Whether a packet of this registration is in the queue.
    pub(super) queued: bool,
    /// What that packet will say.
    pub(super) pending: Events,
    /// For a socket that the port owns.
    pub(super) owned: Option<Unrest>,
    /// When it was armed without a word to the poller, by the port's clock.
    pub(super) armed: u64,
}

impl Slot {
    /// Events that a notification of this registration may show.
    pub(super) fn wanted(&self) -> Events {
        self.filter.wanted()
    }

    /// Enable with this filter and this trigger. What waits in the queue keeps only what is wanted
    /// still.
    pub(super) fn enable(&mut self, filter: EventFilter, trigger: Trigger) {
        self.filter = filter;
        self.trigger = trigger;
        self.state = State::Enabled;
        self.pending &= self.wanted();
    }

    /// How the poller has to watch the socket while nothing is known of its state.
    pub(super) fn mode(&self) -> Mode {
        if let Some(unrest) = &self.owned {
            unrest.mode()
        } else if self.trigger.contains(Trigger::EDGE) {
            Mode::Edge
        } else if self.trigger.contains(Trigger::ONESHOT) {
            Mode::Once
        } else {
            Mode::Level
        }
    }

    /// Whether it is enabled and edge-triggered, and to be so still.
    pub(super) fn stays_edge_with(&self, registration: &Registration<'_>) -> bool {
        self.state == State::Enabled
            && self.mode() == Mode::Edge
            && self.watched == Some(Mode::Edge)
            && registration.trigger.contains(Trigger::EDGE)
    }

    /// Whether a report can be taken as it is, as nearly all can: it is of what was watched for last,
    /// says something that is wanted, and nothing else has to follow from it. `began`: when the thread
    /// began to look that saw it.
    pub(super) fn takes(&self, report: &Report, began: u64) -> bool {
        report.turn == self.turn
            && self.state == State::Enabled
            && self.watched == Some(report.mode)
            && report.mode == self.mode()
            && report.standing == Standing::Good
            && !report.dormant
            && !self.settling
            && self.armed < began
            && report.events.intersects(self.wanted())
    }

    /// The edges of these conditions count, although they were seen in an earlier turn.
    pub(super) fn let_go_on(&mut self, conditions: Events) {
        self.going_on = conditions.bits() as u8;
    }

    /// What a report of this registration says that counts.
    pub(super) fn news(&mut self, report: &Report) -> Option<Events> {
        if report.turn == self.turn {
            let is_edge = !std::mem::take(&mut self.settling);
            return is_edge.then_some(report.events);
        }
        match self.mode() {
            Mode::Edge => {
                let going_on = Events::from_bits_truncate(self.going_on.into());
                Some(report.events & going_on).filter(|events| !events.is_empty())
            }
            Mode::Once | Mode::Level | Mode::Kept | Mode::Request => None,
        }
    }

    /// Whether this is a turn of the registration that there is now.
    fn has_had(&self, turn: u32) -> bool {
        let age = |turn: u32| self.turn.wrapping_sub(turn) & TURN_MASK;
        age(turn) <= age(self.first_turn)
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Enabled | State::Disabled)
    }

    pub(super) fn token(&self, socket: u32) -> Token {
        Token {
            socket,
            first_turn: self.first_turn,
        }
    }

    /// What the poller was told last, or is to be told again.
    pub(super) fn watch(&self, socket: u32, mode: Mode) -> Watch {
        Watch {
            socket,
            turn: self.turn,
            kind: self.kind,
            filter: self.filter,
            mode,
        }
    }

    /// What the poller is to be told from now on.
    pub(super) fn watch_anew(&mut self, socket: u32, mode: Mode) -> Watch {
        self.turn_over(mode);
        self.watch(socket, mode)
    }

    /// From now on the poller watches it in another turn.
    pub(super) fn turn_over(&mut self, mode: Mode) {
        self.turn = next_turn(self.turn);
        self.watched = Some(mode);
        self.settling = false;
    }

    /// Whether an adopted socket can be armed as it was before, and nothing else comes instead.
    pub(super) fn can_be_armed_with(&self, filter: EventFilter) -> bool {
        self.filter == filter && self.interruption == 0
    }
}

fn next_turn(turn: u32) -> u32 {
    turn.wrapping_add(1) & TURN_MASK
}

/// All registrations of a port.
#[derive(Debug)]
pub(super) struct Table {
    slots: Pages<Slot>,
    len: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            slots: Pages::new(),
            len: 0,
        }
    }

    /// How many registrations there are, those that are being removed among them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot of a number that has, or had, a registration.
    pub(super) fn slot(&mut self, socket: u32) -> Option<&mut Slot> {
        self.slots.get_mut(socket)
    }

    /// The slot of this very registration, to be read, unless it is over.
    pub(super) fn peek(&self, token: Token) -> Option<&Slot> {
        self.slots
            .get(token.socket)
            .filter(|slot| slot.first_turn == token.first_turn && slot.state != State::Vacant)
    }

    /// The slot of this very registration, unless it is over.
    pub(super) fn get(&mut self, token: Token) -> Option<&mut Slot> {
        self.slots
            .get_mut(token.socket)
            .filter(|slot| slot.first_turn == token.first_turn && slot.state != State::Vacant)
    }

    /// The slot of the registration that a poller was told to watch in this turn, unless it is over.
    pub(super) fn of_turn(&mut self, socket: u32, turn: u32) -> Option<&mut Slot> {
        self.slots
            .get_mut(socket)
            .filter(|slot| slot.state != State::Vacant && slot.has_had(turn))
    }

    /// Whether the registration that was watched in this turn was removed, or is about to be; as opposed
    /// to one whose socket was found to be closed.
    pub(super) fn was_removed(&self, socket: u32, turn: u32) -> bool {
        self.slots.get(socket).is_some_and(|slot| {
            slot.removed || slot.state == State::Removing || !slot.has_had(turn)
        })
    }

    /// Begin a registration in a vacant slot.
    pub(super) fn insert(&mut self, socket: u32, key: usize, kind: Kind) -> &mut Slot {
        let slot = self.slots.entry(socket);
        debug_assert_eq!(slot.state, State::Vacant);
        self.len += 1;
        *slot = Slot {
            key,
            kind,
            first_turn: next_turn(slot.turn),
            turn: next_turn(slot.turn),
            state: State::Disabled,
            ..Slot::default()
        };
        slot
    }

    /// End a registration. Its packet, if one is queued, is void from now on.
    pub(super) fn end(&mut self, socket: u32) {
        if let Some(slot) = self.slots.get_mut(socket) {
            if slot.state != State::Vacant {
                slot.state = State::Vacant;
                self.len -= 1;
            }
        }
    }

    /// Every registration that is not over.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Slot)> {
        self.slots
            .iter_mut()
            .filter(|(_, slot)| slot.state != State::Vacant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_a_small_record() {
        // With the 12 bytes in the table of owners, less than a cache line.
        assert!(size_of::<Slot>() <= 48);
    }
}
