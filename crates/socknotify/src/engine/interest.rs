//! [`Interest`]: what to watch one socket for, in one word; and its generation.

use crate::{EventFilter, RegistrationError};

/// How the system watches a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Report a condition that holds, or the next one to hold, once; then be silent until armed again.
    Once,
    /// Report as long as a condition holds; at least once until the report is
    /// [delivered](Backend::delivered).
    Level,
    /// Report when a condition begins to hold after it was armed. One that held all the time is not reported, except
    /// together with one that began to.
    Edge,
    /// Report when a condition begins to hold; one that holds when it is armed may be reported or not. The
    /// port owns the socket, so its number stands for no other.
    Kept,
}

/// What to watch one socket for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// The number of the socket.
    pub(crate) socket: u32,
    /// Everything else, as published in [`Wanted`]. The lowest bit is set.
    pub(super) word: u64,
}

/// Where the parts of an interest are in its word. The lowest 26 bits leave room for a socket's number, so
/// that a backend can have all of it in one word.
pub(crate) mod word {
    pub(crate) const FILTER: u32 = 1;
    pub(crate) const MODE: u32 = 26;
    pub(crate) const GENERATION: u32 = 29;
    /// Distinguishes the changes of an edge-triggered interest with carried edges, by 4 bits.
    pub(crate) const REVISION: u32 = 60;
}

const MODES: [Mode; 4] = [Mode::Once, Mode::Level, Mode::Edge, Mode::Kept];

impl Interest {
    #[inline]
    pub(super) fn new(
        socket: u32,
        generation: u32,
        revision: u8,
        filter: EventFilter,
        mode: Mode,
    ) -> Self {
        let word = 1
            | u64::from(filter.bits()) << word::FILTER
            | (mode as u64) << word::MODE
            | u64::from(generation & GENERATIONS) << word::GENERATION
            | u64::from(revision) << word::REVISION;
        Interest { socket, word }
    }

    /// All parts except socket and filter, in the upper 38 bits.
    #[allow(dead_code, reason = "not every backend has to know")]
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// When it was armed, counted within the port. Reports carry it, so that stale ones are recognised.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        (self.word >> word::GENERATION) as u32 & GENERATIONS
    }

    /// The conditions. Errors are always watched for.
    #[inline]
    pub(crate) fn filter(&self) -> EventFilter {
        EventFilter::from_bits_retain((self.word >> word::FILTER) as u16)
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        MODES[(self.word >> word::MODE & 3) as usize]
    }
}

/// Generations are counted in 31 bits.
pub(crate) const GENERATIONS: u32 = u32::MAX >> 1;

/// Whether a generation is at or after the first of these, and before the second.
pub(super) fn is_between(generation: u32, (first, end): (u32, u32)) -> bool {
    generation.wrapping_sub(first) & GENERATIONS < end.wrapping_sub(first) & GENERATIONS
}

/// Why a socket is not armed, or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArmError {
    /// The number stands for another socket than the one that was armed, or for none.
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
