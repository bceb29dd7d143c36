//! The registrations of a port: one slot for each descriptor number.
//!
//! A slot is changed in one step, by a compare-and-swap of its [`Word`]. Enabling a registration that the system knows
//! and delivering a report take no lock. What makes or ends a registration holds the engine's lock, and changes the
//! word by compare-and-swap too. The rules that keep this right:
//!
//! - The generation of a number never goes back, over REMOVE, close and reuse. It advances before the key may change.
//! - A delivery reads word, key, word: if the words differ, it starts again.
//! - After each call that arms, the thread reads the word again, and arms what that says until nothing has changed
//!   ([`Table::arm_latest`]). So the last interest that the system got was current when it got it.

pub(super) mod interest;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::table::interest::{ArmError, Flag, Interest, Mode, State, Word};
use crate::os::Fd;
use crate::support::pages::{SharedPages, new_array};
use crate::support::sync::{AtomicU64, AtomicUsize, fence};
use crate::values::entry::Arming;
use crate::{EventFilter, Events};

/// What the system reports of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) fd: Fd,
    /// Of the interest that was armed.
    pub(crate) generation: u32,
    /// Conditions that hold, wanted or not. Of a socket that is [kept](Mode::Kept) armed, more than IN and OUT if
    /// anything holds that keeps a receive from taking all there is.
    pub(crate) events: Events,
    /// Of an owned socket, if it was found by a poll for this arming, and may be out of date for the next one. The
    /// system's own reports come to a thread that may have lost the socket since, too; but those it makes once.
    pub(crate) polled: Option<Arming>,
}

impl Report {
    /// By the system's own word.
    #[inline]
    pub(crate) fn new(fd: Fd, generation: u32, events: Events) -> Self {
        Report {
            fd,
            generation,
            events,
            polled: None,
        }
    }

    /// Whether this is of what the word wants.
    #[inline(always)]
    fn is_of(&self, word: Word) -> bool {
        word.generation() == self.generation
            && self.polled.is_none_or(|arming| arming == word.arming())
    }
}

/// What the port knows of one descriptor number.
#[derive(Debug, Default)]
pub(in crate::engine) struct Slot {
    word: AtomicU64,
    /// Written with the engine's lock held, before a word that makes the registration live.
    key: AtomicUsize,
    /// Counts notifications of a persistent registration since it was checked.
    deliveries: AtomicU32,
    /// The lower half of the socket's identity. As the key.
    identity: AtomicU32,
}

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Delivery {
    pub(in crate::engine) key: usize,
    pub(in crate::engine) events: Events,
    /// The word that it was delivered by.
    pub(in crate::engine) word: Word,
}

/// Why a report is no notification.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Undelivered {
    /// It shows nothing that is wanted.
    Unwanted(Word),
    /// What it reports was wanted earlier, or of a registration that has ended.
    Stale(Word),
    /// The registration is disabled, or its report was delivered.
    Held,
}

/// Whether a report has nothing but IN and OUT.
#[inline]
fn is_plain(events: Events) -> bool {
    (Events::IN | Events::OUT).contains(events)
}

impl Slot {
    #[inline]
    pub(in crate::engine) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    #[inline]
    pub(in crate::engine) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    /// Whether what was registered has this identity. One in some 4,000 million has the same as another.
    pub(in crate::engine) fn is_of(&self, identity: u64) -> bool {
        self.identity.load(Ordering::Relaxed) == identity as u32
    }

    /// Change the word, if it still is the one that was read.
    #[inline]
    fn replace(&self, word: Word, by: Word) -> bool {
        self.word
            .compare_exchange(word.0, by.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Change the word, as long as `change` has a new one for the current one. Returns both words, or the current one
    /// where there is none.
    #[inline]
    pub(in crate::engine) fn change(
        &self,
        mut change: impl FnMut(Word) -> Option<Word>,
    ) -> Result<(Word, Word), Word> {
        let mut word = self.word();
        loop {
            let Some(by) = change(word) else {
                return Err(word);
            };
            if self.replace(word, by) {
                return Ok((word, by));
            }
            word = self.word();
        }
    }

    /// Begin a registration, in a slot whose previous one has ended. The engine's lock is held.
    pub(in crate::engine) fn begin(
        &self,
        key: usize,
        identity: u64,
        word: impl Fn(Word) -> Word,
    ) -> Word {
        debug_assert!(matches!(
            self.word().state(),
            State::Vacant | State::Removed
        ));
        // A reader that sees the new key sees at least the word by which the previous registration ended.
        fence(Ordering::Release);
        self.key.store(key, Ordering::Relaxed);
        self.identity.store(identity as u32, Ordering::Relaxed);
        self.deliveries.store(0, Ordering::Relaxed);
        let begin = |before: Word| Some(word(before.cleared()));
        match self.change(begin) {
            Ok((_, word)) => word,
            Err(word) => word,
        }
    }

    /// Arm an interest in this slot's descriptor, and what is wanted in place of it as long as that changes meanwhile. What
    /// was armed last, or could not be, is the interest then.
    #[inline(always)]
    pub(in crate::engine) fn arm_latest(
        &self,
        interest: &mut Interest,
        mut arm: impl FnMut(&Interest) -> Result<(), ArmError>,
    ) -> Outcome {
        let result = arm(interest);
        self.arm_until_latest(interest, result, arm)
    }

    /// The same, if a thread has done so once, with this result.
    #[cold]
    pub(in crate::engine) fn arm_until_latest(
        &self,
        interest: &mut Interest,
        mut result: Result<(), ArmError>,
        mut arm: impl FnMut(&Interest) -> Result<(), ArmError>,
    ) -> Outcome {
        let first = interest.word.generation();
        let mut has_armed = false;
        loop {
            let word = self.word();
            let generation = word.generation();
            if generation == interest.word.generation() || !word.is_live() {
                return match result {
                    Ok(()) => Outcome::Armed,
                    Err(ArmError::Refused(_))
                        if generation != first && (has_armed || word.has(Flag::KNOWN)) =>
                    {
                        Outcome::Overtaken
                    }
                    Err(error) => Outcome::Failed(error),
                };
            }
            has_armed |= result.is_ok();
            interest.word = word;
            result = arm(interest);
        }
    }

    /// The system has got this generation, of what is to stay armed.
    #[inline]
    pub(in crate::engine) fn on_armed(&self, generation: u32) {
        let is_this = |word: Word| word.generation() == generation && word.has(Flag::LATE);
        let _ = self.change(|word| is_this(word).then(|| word.without(Flag::LATE)));
    }

    /// Count a notification. Returns how many there were since the descriptor was [checked](Self::on_checked).
    #[inline]
    pub(in crate::engine) fn count_delivery(&self) -> u32 {
        self.deliveries
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
    }

    /// When this many were counted, the descriptor still referred to the same file. If another thread has counted one
    /// since, that one is checked too.
    pub(in crate::engine) fn on_checked(&self, count: u32) {
        let order = Ordering::Relaxed;
        let _ = self.deliveries.compare_exchange(count, 0, order, order);
    }

    /// Deliver a report of the usual kind. `None` if it is not, or another thread changes the word. Through
    /// [`deliver_any`](Self::deliver_any) each takes 6 to 10 instructions more, of some 100.
    #[inline(always)]
    pub(in crate::engine) fn deliver(&self, report: &Report) -> Option<Delivery> {
        let word = self.word();
        let events = report.events & word.wanted();
        let is_wanted = report.is_of(word) && word.is_due() && !events.is_empty();
        if !is_wanted || !is_plain(report.events) {
            return None;
        }
        let key = self.deliver_word(word, word.delivered())?;
        Some(Delivery { key, events, word })
    }

    /// Replace a word by the one after a delivery. Returns the key that belongs to it, or `None` if it is another one by
    /// now.
    #[inline]
    fn deliver_word(&self, word: Word, by: Word) -> Option<usize> {
        let key = self.key();
        let is_unchanged = if by == word {
            fence(Ordering::Acquire);
            self.word() == word
        } else {
            self.replace(word, by)
        };
        is_unchanged.then_some(key)
    }

    /// Deliver any report, or find out why not.
    pub(in crate::engine) fn deliver_any(&self, report: &Report) -> Result<Delivery, Undelivered> {
        let with_rest = |word: Word| match is_plain(report.events) {
            true => word,
            false => word.with(Flag::EXCEPTIONAL),
        };
        loop {
            let word = self.word();
            if !report.is_of(word) {
                return Err(Undelivered::Stale(word));
            }
            if !word.is_due() {
                if word.mode() != Mode::Kept || word.state() != State::Disabled {
                    return Err(Undelivered::Held);
                }
                let risen = with_rest(word.with(Flag::RISEN));
                if risen == word || self.replace(word, risen) {
                    return Err(Undelivered::Held);
                }
                continue;
            }
            let events = report.events & word.wanted();
            if events.is_empty() {
                return Err(Undelivered::Unwanted(word));
            }
            let by = match word.mode() {
                Mode::Kept => with_rest(word.delivered()),
                _ => word.delivered(),
            };
            if let Some(key) = self.deliver_word(word, by) {
                return Ok(Delivery { key, events, word });
            }
        }
    }

    /// Enable a registration that the system knows, in another way than the engine's lock does it. `None` if it is not
    /// one, or has another key.
    #[inline]
    pub(in crate::engine) fn enable(
        &self,
        key: usize,
        filter: EventFilter,
        mode: Mode,
    ) -> Option<Word> {
        let enabled = self.change(|word| {
            let can_be = word.can_be_enabled() && self.key() == key;
            can_be.then(|| word.enabled(filter, mode))
        });
        enabled.ok().map(|(_, word)| word)
    }

    /// Whether this is what a socket that the port owns has under this key and number.
    fn is_arming(&self, word: Word, key: usize, arming: Arming) -> bool {
        word.is_owned() && self.key() == key && word.arming() == arming
    }

    /// Whether a thread has dequeued, or [claimed](Self::claim_owned), the notification of this arming.
    pub(in crate::engine) fn is_dequeued(&self, key: usize, arming: Arming) -> bool {
        let word = self.word();
        self.is_arming(word, key, arming) && !word.is_enabled()
    }

    /// Have nobody dequeue the notification of this arming. False if a thread has it.
    pub(in crate::engine) fn claim_owned(&self, key: usize, arming: Arming) -> bool {
        let claimed = self.change(|word| {
            let is_this = self.is_arming(word, key, arming) && word.is_enabled();
            is_this.then(|| word.with_state(State::Disabled))
        });
        claimed.is_ok()
    }

    /// Enable a registration of a socket that the port owns, by this number. `None` if it is not one, or has another key.
    #[inline(always)]
    pub(in crate::engine) fn enable_owned(
        &self,
        fd: Fd,
        key: usize,
        (filter, mode): (EventFilter, Mode),
        arming: Arming,
        is_drained: bool,
    ) -> Option<Left> {
        loop {
            let word = self.word();
            let is_kept = mode == Mode::Kept && word.is_kept_for(filter);
            if !is_kept && !word.is_owned() || self.key() != key {
                return None;
            }
            let by = match is_kept {
                true => word.with_state(State::Enabled).without(Flag::RISEN),
                false => word.enabled(filter, mode).with(Flag::LATE),
            };
            let by = by.with_arming(arming);
            if self.replace(word, by) {
                return Some(match is_kept {
                    true if is_drained && word.is_quiet_since() => Left::Nothing,
                    true => Left::Poll(Interest { fd, word: by }),
                    false => Left::Arm,
                });
            }
        }
    }
}

/// What is left to do when a socket that the port owns was enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing holds, and the system reports what begins to.
    Nothing,
    /// Something may hold that was reported before: [poll](crate::engine::serve::Polls) it, or arm it.
    Poll(Interest),
    /// The system has not got it.
    Arm,
}

/// The result of arming an interest that may change meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is armed; or another thread has changed the interest, and what it wants is armed; or it was, and has ended since: it
    /// is not to be registered again.
    Armed,
    /// It is not armed. It may have ended.
    Failed(ArmError),
    /// The system knows it, and refused what another thread has enabled meanwhile: that is tried again later.
    Overtaken,
}

/// How many slots are made at once.
const BLOCK: u32 = if cfg!(interleavings) { 2 } else { 64 };

type Block = OnceLock<Box<[Slot; BLOCK as usize]>>;

/// How many blocks are found without a search: those of the first 65,536 descriptors.
const FIRST_BLOCKS: usize = 1024;

/// All registrations of a port.
#[derive(Debug)]
pub(crate) struct Table {
    first: Box<[Block; FIRST_BLOCKS]>,
    others: SharedPages<Block>,
}

impl Table {
    pub(in crate::engine) fn new() -> Self {
        Table {
            first: new_array(),
            others: SharedPages::new(),
        }
    }

    /// The slot of a number that has, or had, a registration.
    #[inline]
    pub(in crate::engine) fn slot(&self, fd: Fd) -> Option<&Slot> {
        let block = match self.first.get((fd.0 / BLOCK) as usize) {
            Some(block) => block,
            None => self.others.get(fd.0 / BLOCK)?,
        };
        let block = block.get()?;
        Some(&block[(fd.0 % BLOCK) as usize])
    }

    /// The slot of any number.
    pub(in crate::engine) fn entry(&self, fd: Fd) -> &Slot {
        let block = match self.first.get((fd.0 / BLOCK) as usize) {
            Some(block) => block,
            None => self.others.entry(fd.0 / BLOCK),
        };
        let block = block.get_or_init(new_array);
        &block[(fd.0 % BLOCK) as usize]
    }

    #[inline]
    pub(in crate::engine) fn word(&self, fd: Fd) -> Word {
        self.slot(fd).map_or(Word(0), Slot::word)
    }

    /// What is wanted of this number now; `None` without a registration.
    #[inline]
    #[allow(dead_code, reason = "not every backend asks")]
    pub(crate) fn interest(&self, fd: Fd) -> Option<Interest> {
        let word = self.word(fd);
        word.is_live().then_some(Interest { fd, word })
    }

    /// Arm an interest, and what is wanted in place of it as long as that changes meanwhile. What was armed last, or could
    /// not be, is the interest then.
    #[inline]
    pub(crate) fn arm_latest(
        &self,
        interest: &mut Interest,
        arm: impl FnMut(&Interest) -> Result<(), ArmError>,
    ) -> Outcome {
        match self.slot(interest.fd) {
            Some(slot) => slot.arm_latest(interest, arm),
            None => Outcome::Failed(ArmError::Stale),
        }
    }

    /// Whether this is wanted still, by the same arming, and was not reported meanwhile.
    #[inline]
    #[allow(dead_code, reason = "not every backend asks")]
    pub(crate) fn is_waiting(&self, interest: &Interest) -> bool {
        let word = self.word(interest.fd);
        let is_same = word.generation() == interest.word.generation();
        word.is_due() && is_same && word.arming() == interest.word.arming()
    }

    /// The numbers of all registrations, with their words.
    pub(in crate::engine) fn registered(&self) -> impl Iterator<Item = (Fd, &Slot)> {
        let first = self.first.iter().enumerate();
        let blocks = first
            .map(|(block, slots)| (block as u32, slots))
            .chain(self.others.iter());
        let blocks = blocks.filter_map(|(block, slots)| Some((block, slots.get()?)));
        let slots = blocks.flat_map(|(block, slots)| {
            let slots = slots.iter().enumerate();
            slots.map(move |(index, slot)| (Fd(block * BLOCK + index as u32), slot))
        });
        slots.filter(|(_, slot)| !matches!(slot.word().state(), State::Vacant | State::Removed))
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    /// The first thread to find out that the file is another one has not ended the registration yet when others count.
    #[test]
    fn g3_each_notification_is_checked_until_one_check_succeeds() {
        let slot = Slot::default();
        assert_eq!([(); 3].map(|()| slot.count_delivery()), [1, 2, 3]);
        slot.on_checked(2);
        assert_eq!(slot.count_delivery(), 4, "the third is not checked yet");
        slot.on_checked(4);
        assert_eq!(slot.count_delivery(), 1);
    }

    /// The answer of a batch's poll comes after another thread has had the socket.
    #[test]
    fn c3_an_answer_of_a_poll_is_for_the_arming_that_it_was_asked_for() {
        let slot = Slot::default();
        let key = 7;
        slot.begin(key, 0, |word| {
            word.with_state(State::Disabled)
                .with(Flag::OWNED)
                .with(Flag::KNOWN)
        });
        let to = (EventFilter::IN, Mode::Kept);
        let first = Arming::default().next();
        assert!(slot.enable_owned(Fd(3), key, to, first, false).is_some());
        slot.on_armed(slot.word().generation());
        let report = |polled| Report {
            fd: Fd(3),
            generation: slot.word().generation(),
            events: Events::IN,
            polled,
        };
        assert!(slot.deliver(&report(None)).is_some());
        let second = first.next();
        let left = slot.enable_owned(Fd(3), key, to, second, true);
        assert_eq!(left, Some(Left::Nothing));
        let late = report(Some(first));
        assert_eq!(slot.deliver(&late), None);
        assert!(matches!(
            slot.deliver_any(&late),
            Err(Undelivered::Stale(_))
        ));
        let delivered = slot.deliver(&report(Some(second)));
        assert_eq!(
            delivered.map(|it| it.word.overlapped()),
            Some(second.overlapped())
        );
    }

    /// Its thread is held up in the call that arms it, until it was notified and removed, and its key freed.
    #[test]
    fn g5_what_was_armed_and_has_ended_is_not_armed_again() {
        for armed in [Ok(()), Err(ArmError::Stale)] {
            let slot = Slot::default();
            let word = slot.begin(7, 0, |word| word.with_state(State::Enabled));
            let outcome = slot.arm_latest(&mut Interest { fd: Fd(3), word }, |_| {
                let ended = slot.change(|word| Some(word.cleared()));
                assert!(ended.is_ok());
                armed
            });
            let ended = armed.map_or_else(Outcome::Failed, |()| Outcome::Armed);
            assert_eq!(outcome, ended);
        }
    }

    #[test]
    fn a_registration_is_a_small_record() {
        // With its owner, 8 bytes, less than a cache line.
        assert!(size_of::<Slot>() <= 24);
    }
}
