//! [`Word`]: state, filter, mode, flags and generation of a registration, in 64 bits; [`Interest`]: a word and its
//! descriptor, which a backend arms.

use crate::os::Fd;
use crate::values::entry::Arming;
use crate::{EventFilter, Events, RegistrationError, Trigger};

/// How the system watches a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Report a condition that holds, or the next one to hold, once; then be silent until it is armed again.
    Once,
    /// Report when a condition begins to hold, and what holds when it is armed, of a socket that the port owns: it stays
    /// armed while a thread has it.
    Kept,
    /// As `Once`, or, where a backend keeps sockets armed, as `Edge`. The engine arms it again when the report was
    /// delivered and handled, or asks whether a condition still holds.
    Level,
    /// As `Kept`, of any other socket.
    Edge,
}

/// Where a registration is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none.
    Vacant = 0,
    /// There is none any more: it was removed, rather than found closed.
    Removed = 1,
    /// Registered, with its notifications stopped.
    Disabled = 2,
    /// Registered, and waiting for a wanted condition.
    Enabled = 3,
    /// REMOVE was accepted, and its notification is in the queue.
    Removing = 4,
}

impl State {
    const fn bits(self) -> u64 {
        (self as u64) << STATE
    }
}

/// A registration's state, filter, mode, flags and generation.
///
/// The generation counts the changes of what is wanted of one descriptor number. It never goes back, so that a report
/// of what was wanted earlier is recognised. A registration that stays armed while it is disabled and enabled again
/// ([`Mode::Kept`]) keeps its generation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(in crate::engine) u64);

/// The filter, each condition at its own place.
const FILTER: u64 = 0xC007;
const STATE: u32 = 3;
const STATE_BITS: u64 = 0b111 << STATE;
/// [`STATE_BITS`] without the one that `Disabled` and `Enabled` differ in.
const LIVE_BITS: u64 = 0b110 << STATE;
const MODE: u32 = 6;
const MODE_BITS: u64 = 0b11 << MODE;
const FLAGS: u64 = 0x3_3F00;
/// The number of an owned socket's arming, above the flag that it is owned: together they are its overlapped value.
const ARMING: u32 = 18;
const ARMING_BITS: u64 = ((1 << Arming::BITS) - 1) << ARMING;
/// 31 bits.
const GENERATION: u32 = ARMING + Arming::BITS;

/// One bit of a [`Word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag(u64);

impl Flag {
    /// The system has it, armed or not. Without this, it is enabled with the engine's lock held.
    pub(crate) const KNOWN: Flag = Flag(1 << 8);
    /// It was reported while a thread had the socket, which may or may not have handled that.
    pub(crate) const RISEN: Flag = Flag(1 << 9);
    /// A report had more than IN and OUT. What is left of that may never be reported again.
    pub(crate) const EXCEPTIONAL: Flag = Flag(1 << 10);
    /// It is no socket, and so has no identity but what the system has armed.
    pub(crate) const DESCRIPTOR: Flag = Flag(1 << 11);
    /// The system reported what nobody wants and cannot be masked out: it is armed as an edge until something wanted is
    /// delivered.
    pub(crate) const QUIET: Flag = Flag(1 << 12);
    /// A level-triggered report was delivered, and it is not armed again yet.
    pub(crate) const DELIVERED: Flag = Flag(1 << 13);
    /// It is to stay armed, and the system may not have this generation yet: whoever is to arm it does so late, or never.
    pub(crate) const LATE: Flag = Flag(1 << 16);
    /// The port owns the socket.
    pub(crate) const OWNED: Flag = Flag(1 << 17);
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (state, mode, filter) = (self.state(), self.mode(), self.filter());
        let (generation, flags) = (self.generation(), self.0 & FLAGS);
        write!(
            f,
            "{state:?} {mode:?} {filter:?}, flags {flags:#x}, generation {generation}"
        )
    }
}

impl Word {
    #[inline]
    pub(crate) fn state(self) -> State {
        match (self.0 & STATE_BITS) >> STATE {
            0 => State::Vacant,
            1 => State::Removed,
            2 => State::Disabled,
            3 => State::Enabled,
            _ => State::Removing,
        }
    }

    #[inline]
    pub(in crate::engine) fn with_state(self, state: State) -> Self {
        Word(self.0 & !STATE_BITS | state.bits())
    }

    #[inline]
    pub(in crate::engine) fn is_live(self) -> bool {
        self.0 & LIVE_BITS == State::Disabled.bits()
    }

    #[inline]
    pub(crate) fn is_enabled(self) -> bool {
        self.0 & STATE_BITS == State::Enabled.bits()
    }

    /// Whether a report is to be delivered.
    #[inline]
    pub(in crate::engine) fn is_due(self) -> bool {
        self.0 & (STATE_BITS | Flag::DELIVERED.0) == State::Enabled.bits()
    }

    /// Whether what was due with this earlier word of its generation is dequeued by now.
    pub(in crate::engine) fn is_dequeued_since(self, before: Word) -> bool {
        self.generation() == before.generation() && before.is_due() && !self.is_due()
    }

    /// The word after a delivery.
    #[inline]
    pub(in crate::engine) fn delivered(self) -> Self {
        match self.mode() {
            Mode::Once | Mode::Kept => self.with_state(State::Disabled),
            Mode::Level => self.with(Flag::DELIVERED),
            Mode::Edge => self,
        }
    }

    #[inline]
    pub(crate) fn mode(self) -> Mode {
        match self.0 >> MODE & 3 {
            0 => Mode::Once,
            1 => Mode::Kept,
            2 => Mode::Level,
            _ => Mode::Edge,
        }
    }

    /// The conditions. Errors are always watched for.
    #[inline]
    pub(crate) fn filter(self) -> EventFilter {
        EventFilter::from_bits_retain((self.0 & FILTER) as u16)
    }

    /// The events that a notification can show.
    #[inline]
    pub(crate) fn wanted(self) -> Events {
        self.filter().wanted()
    }

    #[inline]
    pub(crate) fn has(self, flag: Flag) -> bool {
        self.0 & flag.0 != 0
    }

    #[inline]
    pub(in crate::engine) fn with(self, flag: Flag) -> Self {
        Word(self.0 | flag.0)
    }

    #[inline]
    pub(in crate::engine) fn without(self, flag: Flag) -> Self {
        Word(self.0 & !flag.0)
    }

    /// Counts what was wanted of this descriptor number. Reports carry it, so that stale ones are recognised.
    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> GENERATION) as u32
    }

    /// Whether it is registered, the system knows it, and the port does not own it.
    #[inline]
    pub(in crate::engine) fn can_be_enabled(self) -> bool {
        let bits = self.0 & (LIVE_BITS | Flag::KNOWN.0 | Flag::OWNED.0);
        bits == State::Disabled.bits() | Flag::KNOWN.0
    }

    /// Whether it is registered as a socket that the port owns.
    #[inline]
    pub(in crate::engine) fn is_owned(self) -> bool {
        self.0 & (LIVE_BITS | Flag::OWNED.0) == State::Disabled.bits() | Flag::OWNED.0
    }

    /// Whether the port owns it, and the system has it armed for these conditions for as long as it is registered.
    #[inline]
    pub(in crate::engine) fn is_kept_for(self, filter: EventFilter) -> bool {
        const KEPT: u64 =
            State::Disabled.bits() | (Mode::Kept as u64) << MODE | Flag::KNOWN.0 | Flag::OWNED.0;
        let bits = self.0 & (LIVE_BITS | MODE_BITS | FILTER | KEPT | Flag::LATE.0);
        bits == KEPT | u64::from(filter.bits())
    }

    /// The number of its arming.
    #[inline]
    pub(crate) fn arming(self) -> Arming {
        Arming::from_bits((self.0 >> ARMING) as u16)
    }

    #[inline]
    pub(in crate::engine) fn with_arming(self, arming: Arming) -> Self {
        Word(self.0 & !ARMING_BITS | u64::from(arming.bits()) << ARMING)
    }

    /// The overlapped value of its notifications: 0, but for a socket that the port owns.
    #[inline]
    pub(in crate::engine) fn overlapped(self) -> usize {
        // 16 bits.
        usize::from((self.0 >> (ARMING - 1)) as u16)
    }

    /// Whether to report only what begins to hold from here on, and what holds once, whatever the mode.
    #[inline]
    #[allow(dead_code, reason = "not every backend asks")]
    pub(crate) fn is_quiet(self) -> bool {
        self.has(Flag::QUIET)
    }

    /// Whether nothing was reported while a thread had the socket, and nothing ever that no further edge shows.
    #[inline]
    pub(in crate::engine) fn is_quiet_since(self) -> bool {
        self.0 & (Flag::RISEN.0 | Flag::EXCEPTIONAL.0) == 0
    }

    /// Enabled with this filter and mode, in the next generation.
    #[inline]
    pub(in crate::engine) fn enabled(self, filter: EventFilter, mode: Mode) -> Self {
        const CHANGED: u64 =
            STATE_BITS | FILTER | MODE_BITS | Flag::RISEN.0 | Flag::QUIET.0 | Flag::DELIVERED.0;
        let wanted = u64::from(filter.bits()) & FILTER | (mode as u64) << MODE;
        Word(self.advanced().0 & !CHANGED | wanted | State::Enabled.bits())
    }

    /// This in the next generation. Reports until now are stale.
    #[inline]
    pub(in crate::engine) fn advanced(self) -> Self {
        Word(self.0.wrapping_add(1 << GENERATION))
    }

    /// Nothing but the generation, the next one.
    #[inline]
    pub(in crate::engine) fn cleared(self) -> Self {
        Word(self.advanced().0 >> GENERATION << GENERATION)
    }
}

/// What to watch one descriptor for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) fd: Fd,
    pub(crate) word: Word,
}

impl Interest {
    /// Whether anything is to be reported. If not, the system only keeps the descriptor, to tell it from another one.
    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        self.word.is_enabled() || self.word.mode() == Mode::Kept
    }
}

/// The mode of each combination of trigger bits. `None` if it is not valid.
const MODES: [Option<Mode>; 32] = {
    let mut modes = [None; 32];
    let mut bits = 0;
    while bits < modes.len() {
        let trigger = Trigger::from_bits_retain(bits as u8);
        if trigger.is_valid() {
            modes[bits] = Some(if trigger.contains(Trigger::ONESHOT) {
                Mode::Once
            } else if trigger.contains(Trigger::LEVEL) {
                Mode::Level
            } else {
                // INITIAL says nothing more: an edge may show what holds when it is armed.
                Mode::Edge
            });
        }
        bits += 1;
    }
    modes
};

/// The mode of a registration that the program makes. `None` if its trigger is not a valid combination.
#[inline]
pub(in crate::engine) fn mode_of(trigger: Trigger) -> Option<Mode> {
    *MODES.get(usize::from(trigger.bits()))?
}

/// Why a descriptor is not armed, or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmError {
    /// The number refers to another file than the one that was armed, or to none.
    Stale,
    /// The system refused.
    Refused(RegistrationError),
}

/// If the system does not find a socket that was open a moment ago, it was closed.
impl From<ArmError> for RegistrationError {
    fn from(error: ArmError) -> Self {
        match error {
            ArmError::Stale => RegistrationError::NotASocket,
            ArmError::Refused(error) => error,
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_has_a_mode_if_it_is_valid() {
        for trigger in (0..=u8::MAX).map(Trigger::from_bits_retain) {
            assert_eq!(
                mode_of(trigger).is_some(),
                trigger.is_valid(),
                "{trigger:?}"
            );
        }
        assert_eq!(mode_of(Trigger::LEVEL), Some(Mode::Level));
        assert_eq!(mode_of(Trigger::EDGE | Trigger::INITIAL), Some(Mode::Edge));
        assert_eq!(mode_of(Trigger::ONESHOT | Trigger::EDGE), Some(Mode::Once));
    }

    #[test]
    fn a_word_keeps_its_parts_apart() {
        const MODES: [Mode; 4] = [Mode::Once, Mode::Level, Mode::Edge, Mode::Kept];
        let filters = [
            EventFilter::NONE,
            EventFilter::ALL,
            EventFilter::OUT.union(EventFilter::PRIORITY),
            EventFilter::FULL_HANGUP,
        ];
        let mut word = Word(0);
        for filter in filters {
            for mode in MODES {
                for state in [
                    State::Vacant,
                    State::Removed,
                    State::Disabled,
                    State::Enabled,
                    State::Removing,
                ] {
                    let before = word.generation();
                    word = word
                        .enabled(filter, mode)
                        .with_state(state)
                        .with(Flag::RISEN);
                    assert_eq!(
                        (word.state(), word.filter(), word.mode()),
                        (state, filter, mode)
                    );
                    assert!(word.has(Flag::RISEN) && !word.has(Flag::QUIET));
                    assert_eq!(word.generation(), before + 1);
                    word = word.without(Flag::RISEN);
                }
            }
        }
        assert_eq!(
            word.cleared().0,
            u64::from(word.generation() + 1) << GENERATION
        );
    }
}
