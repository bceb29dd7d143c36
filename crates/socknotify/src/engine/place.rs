//! Places, and the threads that hold them: what each does, and what it keeps.
//!
//! A thread that blocks in a system call with packets in hand leaves its place to another. It cannot say so itself; so
//! others look at it ([`super::watch`]). A thread that has dequeued again since the last look needs no system call to be
//! understood. One that is seen to sleep in two looks at least [`SECOND_LOOK`] apart has left. One that has left and is
//! seen to run counts again. One that is *counted out* holds no place any more, whatever it does, until it dequeues.

use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::handover::Handover;
use crate::sys::thread_state::Progress;
use crate::sys::{Fd, process_time};

use super::scheduler::{Flag, Gate};
use super::sync::{Activity, AtomicU64, Look, Mutex, MutexGuard, ThreadState, lock, thread_local};
use super::watch::{FIRST_TICK, LastResort};
use crate::SlowThread;

/// A thread that is seen to sleep twice has left its place, if at least this time is between.
const SECOND_LOOK: Duration = Duration::from_micros(50);
/// What a running thread has not taken goes on to others after this time, if a place is idle.
const FLOWS_ON: Duration = Duration::from_millis(1);
/// One that has had its packets for less than this is looked at before others: it is the most likely to block.
const FRESH: Duration = Duration::from_millis(20);
/// How much one look may cost: 1 for each thread that holds a place, and so much more if its state has to be read.
pub(super) const MOST: usize = 48;
/// The same for those that dequeue, which look more often.
pub(super) const PEERS_MOST: usize = 16;
const STATE: usize = 8;
/// How many threads that have left their places one look takes in at most.
const MOST_LEFT: usize = 4;
/// Each is looked at after [`FIRST_TICK`], and then after twice the time before, up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// What a thread does, as far as a port is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It holds no place.
    Nothing,
    /// It has packets in hand, and a place.
    Packets,
    /// The same, but its place was found to be left.
    Left,
    /// It is in a call of the port.
    Call,
    /// It had packets in hand and a place, and was counted out.
    Over,
}

const DOINGS: [Doing; 5] = [
    Doing::Nothing,
    Doing::Packets,
    Doing::Left,
    Doing::Call,
    Doing::Over,
];

/// What a thread does in a port, and how many times it has dequeued, which tells one time from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn doing(self) -> Doing {
        DOINGS[(self.0 & 7) as usize]
    }

    fn with(self, doing: Doing) -> Self {
        Word(self.0 & !7 | doing as u64)
    }

    /// Whether the thread has returned with packets, or has come back for more, since it had this word.
    fn has_dequeued_since(self, before: Word) -> bool {
        let had_packets = matches!(before.doing(), Doing::Packets | Doing::Left | Doing::Over);
        self.0 >> 3 != before.0 >> 3 || had_packets && self.doing() == Doing::Call
    }

    fn counted(self) -> Self {
        Word(self.0.wrapping_add(8))
    }
}

/// Whether threads are known by their `ThreadId`. For one that another language has started, the standard library allocates to
/// have one, and memory checkers count that as possibly lost.
static NAMES_THREADS: AtomicBool = AtomicBool::new(true);

pub(crate) fn leave_threads_unnamed() {
    NAMES_THREADS.store(false, Ordering::Relaxed);
}

/// A thread, as a port sees it. Others may look at it.
pub(super) struct Holder {
    word: AtomicU64,
    /// Level-triggered registrations that were delivered to it, with their generations: they are armed again when it
    /// dequeues, or by whoever takes its place.
    levels: Mutex<Vec<(Fd, u32)>>,
    handover: Mutex<Option<Arc<dyn Handover>>>,
    thread: ThreadState,
    /// `None` if it was ending, or if nobody is told of slow threads.
    id: Option<ThreadId>,
}

impl Holder {
    fn new() -> Self {
        Holder {
            word: AtomicU64::new(0),
            levels: Mutex::new(Vec::new()),
            handover: Mutex::new(None),
            thread: ThreadState::of_this(),
            id: match NAMES_THREADS.load(Ordering::Relaxed) {
                true => with_thread(|_| std::thread::current().id()),
                false => None,
            },
        }
    }

    fn word(&self) -> Word {
        Word(self.word.load(Ordering::SeqCst))
    }

    /// It begins a call. True if it still holds its place.
    #[inline]
    pub(super) fn begin_call(&self) -> bool {
        // Others change the word only from packets to left and back, and to over.
        let word = Word(self.word.load(Ordering::Relaxed));
        let before = Word(self.word.swap(word.with(Doing::Call).0, Ordering::AcqRel));
        before.doing() == Doing::Packets
    }

    /// It returns with packets.
    #[inline]
    pub(super) fn end_call(&self) {
        let word = Word(self.word.load(Ordering::Relaxed));
        self.word
            .store(word.counted().with(Doing::Packets).0, Ordering::Release);
    }

    /// It returns with nothing, and holds no place.
    pub(super) fn end_empty_call(&self) {
        let word = Word(self.word.load(Ordering::Relaxed));
        self.word
            .store(word.with(Doing::Nothing).0, Ordering::Release);
    }

    fn change(&self, from: Word, to: Doing) -> bool {
        let to = from.with(to).0;
        self.word
            .compare_exchange(from.0, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// It says itself that it leaves its place, and may come back. `None` if it has no packets in hand or was counted out,
    /// and false if its place was found to be left.
    fn lend(&self) -> Option<bool> {
        loop {
            let word = self.word();
            let has_place = match word.doing() {
                Doing::Packets => true,
                Doing::Left => false,
                Doing::Nothing | Doing::Call | Doing::Over => return None,
            };
            // Another thread may look at it.
            if self.change(word, Doing::Nothing) {
                return Some(has_place);
            }
        }
    }

    /// It dequeues elsewhere: so it was counted out for long enough.
    fn end_over(&self) {
        let word = self.word();
        if word.doing() == Doing::Over {
            self.change(word, Doing::Nothing);
        }
    }

    pub(super) fn levels(&self) -> MutexGuard<'_, Vec<(Fd, u32)>> {
        lock(&self.levels)
    }

    pub(super) fn set_handover(&self, handover: Option<&Arc<dyn Handover>>) {
        *lock(&self.handover) = handover.cloned();
    }

    /// How many packets its worker has taken, and the key of the one that it has.
    fn taken(&self) -> (usize, Option<usize>) {
        let handover = lock(&self.handover);
        handover.as_ref().map_or((0, None), |it| it.taken())
    }

    pub(super) fn handover(&self) -> Option<Arc<dyn Handover>> {
        lock(&self.handover).clone()
    }
}

/// A port, as far as a thread that holds a place in it is concerned.
pub(super) trait Places: Send + Sync {
    /// The thread has left its place.
    fn on_left(&self, holder: &Holder);

    /// The thread has ended.
    fn on_ended(&self, holder: &Arc<Holder>);
}

/// What a thread keeps of a port that it has dequeued from.
pub(super) struct Record {
    port: u32,
    places: Weak<dyn Places>,
    pub(super) holder: Arc<Holder>,
    /// Memory of its calls.
    pub(super) scratch: Option<Box<dyn Any>>,
}

impl Record {
    pub(super) fn new(port: u32, places: Weak<dyn Places>, holder: Arc<Holder>) -> Self {
        Record {
            port,
            places,
            holder,
            scratch: None,
        }
    }

    /// The thread leaves its place, if it holds one.
    fn leave(&self) {
        if self.holder.lend() == Some(true) {
            if let Some(places) = self.places.upgrade() {
                places.on_left(&self.holder);
            }
        }
        self.holder.end_over();
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.leave();
        if let Some(places) = self.places.upgrade() {
            places.on_ended(&self.holder);
        }
    }
}

/// A thread's relation to ports. When the thread ends, its place becomes free.
#[derive(Default)]
struct Thread {
    /// The port that it dequeued from last, unless it does so now.
    current: Option<Box<Record>>,
    #[allow(clippy::vec_box, reason = "they are moved as they are")]
    others: Vec<Box<Record>>,
}

impl Thread {
    /// The record of this port, if the thread dequeued from that last.
    fn current(&mut self, port: u32) -> Option<&mut Record> {
        self.current.as_deref_mut().filter(|it| it.port == port)
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::new(Thread::default());
}

/// `None` while the thread ends.
#[inline]
fn with_thread<R>(work: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let done = THREAD.try_with(|thread| Some(work(&mut *thread.try_borrow_mut().ok()?)));
    done.ok().flatten()
}

/// The thread's record of this port, made by `new` if there is none. A place in another port is left. `None` while the
/// thread ends.
#[inline]
pub(super) fn take(port: u32, new: impl FnOnce() -> Box<Record>) -> Option<Box<Record>> {
    let taken = with_thread(|thread| thread.current.take_if(|it| it.port == port))?;
    taken.or_else(|| change(port, new))
}

#[cold]
fn change(port: u32, new: impl FnOnce() -> Box<Record>) -> Option<Box<Record>> {
    let before = with_thread(|thread| thread.current.take())?;
    if let Some(before) = &before {
        before.leave();
    }
    let found = with_thread(|thread| {
        thread.others.extend(before);
        thread.others.retain(|it| it.places.strong_count() > 0);
        let index = thread.others.iter().position(|it| it.port == port)?;
        Some(thread.others.swap_remove(index))
    })?;
    Some(found.unwrap_or_else(new))
}

/// Put back the record of a call that ends.
#[inline]
pub(super) fn put(record: Box<Record>) {
    let inner = with_thread(|thread| thread.current.replace(record));
    // A call within this one was of another port. Its place is left.
    drop(inner);
}

/// Work with the memory of this thread's calls on this port, if there is some.
pub(super) fn with_scratch(port: u32, work: impl FnOnce(&mut Option<Box<dyn Any>>)) {
    let kept = with_thread(|thread| thread.current(port)?.scratch.take());
    let mut scratch = kept.flatten();
    work(&mut scratch);
    with_thread(|thread| {
        if let Some(current) = thread.current(port) {
            current.scratch = scratch;
        }
    });
}

/// Take the place in this port away from this thread, if it holds one. Also returns whether it has held it until now.
pub(super) fn lend(port: u32) -> Option<(Arc<Holder>, bool)> {
    with_thread(|thread| {
        let holder = &thread.current(port)?.holder;
        Some((Arc::clone(holder), holder.lend()?))
    })
    .flatten()
}

/// Give this thread the place back that it lent. False if it has dequeued meanwhile, and so has a place already, here
/// or in another port.
pub(super) fn restore(port: u32, holder: &Holder) -> bool {
    let word = holder.word();
    with_thread(|thread| thread.current(port).is_some()) == Some(true)
        && word.doing() == Doing::Nothing
        && holder.change(word, Doing::Packets)
}

/// A thread that was looked at.
struct Seen {
    holder: Arc<Holder>,
    word: Word,
    /// How many packets its worker has taken.
    taken: usize,
    /// When it was seen so first.
    since: Instant,
    /// When it was seen first with the packet that it has.
    busy_since: Instant,
    /// When it was first seen to sleep.
    asleep: Option<Instant>,
    progress: Progress,
    has_flowed_on: bool,
    /// After it has left: when it is looked at again, and how long that is after the look before.
    again: (Instant, Duration),
}

impl Seen {
    /// The thread sleeps, as far as can be seen; `None` if it has ended.
    fn is_blocked(&mut self, now: Instant) -> Option<bool> {
        match self.holder.thread.look() {
            Look::Running | Look::Unknown => {
                self.asleep = None;
                Some(false)
            }
            Look::Blocked => {
                let first = *self.asleep.get_or_insert(now);
                // The model checker knows no time.
                Some(cfg!(interleavings) || now.saturating_duration_since(first) >= SECOND_LOOK)
            }
            Look::Time(time) => Some(self.progress.is_missing(time, now)),
            Look::Ended => None,
        }
    }

    /// Look at the thread, which has packets in hand. Returns what it cost.
    fn look(
        &mut self,
        gate: &Gate,
        is_idle: bool,
        now: Instant,
        found: &mut Found,
        ended: &mut Vec<Arc<Holder>>,
    ) -> usize {
        let stays = now.saturating_duration_since(self.since);
        let computes = self.asleep.is_none() && self.holder.thread.activity() == Activity::Computed;
        let blocked = if computes {
            Some(false)
        } else {
            self.is_blocked(now)
        };
        if blocked == Some(false) {
            found.asleep |= self.asleep.is_some();
            let keeps_for_long = is_idle && stays >= FLOWS_ON && !cfg!(interleavings);
            if keeps_for_long && !std::mem::replace(&mut self.has_flowed_on, true) {
                found.keepers.push(Arc::clone(&self.holder));
            }
        } else {
            if self.holder.change(self.word, Doing::Left) {
                gate.leave_place();
                found.freed += 1;
                found.keepers.push(Arc::clone(&self.holder));
                found.after = Some(stays);
                self.word = self.word.with(Doing::Left);
                self.progress = Progress::default();
                self.again = (now + FIRST_TICK, FIRST_TICK);
            }
            if blocked.is_none() {
                ended.push(Arc::clone(&self.holder));
            }
        }
        if computes { 1 } else { 1 + STATE }
    }

    /// Whether a thread that has left its place runs again.
    fn runs_again(&mut self, now: Instant) -> bool {
        if self.holder.thread.activity() == Activity::StoodStill {
            return false;
        }
        match self.holder.thread.look() {
            Look::Running => true,
            Look::Time(time) => self.progress.has_grown(time, now),
            Look::Blocked | Look::Ended | Look::Unknown => false,
        }
    }
}

/// What a look at all threads of a port has found.
#[derive(Default)]
pub(super) struct Found {
    /// A thread has dequeued since the last look, or is in a call.
    pub(super) moved: bool,
    /// A thread was seen to sleep, and has to be looked at again soon.
    pub(super) asleep: bool,
    /// How many places may have become free.
    pub(super) freed: usize,
    /// Threads that have left their places, or run for long, with what others could take.
    pub(super) keepers: Vec<Arc<Holder>>,
    /// How long the last one that left had been seen before.
    pub(super) after: Option<Duration>,
}

/// A thread that has packets in hand.
pub(super) struct Busy {
    holder: Arc<Holder>,
    doing: Doing,
    time: Duration,
    key: Option<usize>,
}

impl Busy {
    /// Whether it is one of these, by thread and by how long it has had its packets.
    pub(super) fn is(&self, one_of: &mut dyn FnMut(ThreadId, Duration) -> bool) -> bool {
        self.holder.id.is_some_and(|id| one_of(id, self.time))
    }

    /// What is known of it, and the key of the packet that its worker has taken last.
    pub(super) fn describe(&self) -> Option<(SlowThread, Option<usize>)> {
        let seen = self.holder.thread.describe();
        let thread = SlowThread {
            thread: self.holder.id?,
            id: seen.id,
            name: seen.name,
            time: self.time,
            has_left: self.doing == Doing::Left,
            is_counted_out: self.doing == Doing::Over,
            system_call: seen.system_call,
        };
        Some((thread, self.key))
    }
}

/// The threads that have dequeued from a port.
#[derive(Default)]
pub(super) struct Roster {
    threads: Vec<Seen>,
    /// Where the next look begins with those that have had packets for long, those that have them since lately, and those
    /// that have left.
    next: [usize; 2],
    next_left: usize,
    last_resort: LastResort,
    /// A thread has dequeued, or a place was found free, since the rule of last resort was asked: whoever has seen it.
    has_moved: bool,
}

impl Roster {
    pub(super) fn add(&mut self) -> Arc<Holder> {
        let holder = Arc::new(Holder::new());
        self.push(Arc::clone(&holder));
        holder
    }

    fn push(&mut self, holder: Arc<Holder>) {
        self.threads.push(Seen {
            holder,
            word: Word(0),
            taken: 0,
            since: Instant::now(),
            busy_since: Instant::now(),
            asleep: None,
            progress: Progress::default(),
            has_flowed_on: false,
            again: (Instant::now(), FIRST_TICK),
        });
    }

    pub(super) fn remove(&mut self, holder: &Arc<Holder>) {
        self.threads
            .retain(|seen| !Arc::ptr_eq(&seen.holder, holder));
    }

    pub(super) fn holders(&self) -> Vec<Arc<Holder>> {
        let threads = self.threads.iter();
        threads.map(|seen| Arc::clone(&seen.holder)).collect()
    }

    fn count(&self, doing: Doing) -> usize {
        let threads = self.threads.iter();
        threads
            .filter(|seen| seen.holder.word().doing() == doing)
            .count()
    }

    /// How many threads have left their places and did not come back.
    pub(super) fn left(&self) -> usize {
        self.count(Doing::Left)
    }

    /// How many threads are counted out.
    pub(super) fn counted_out(&self) -> usize {
        self.count(Doing::Over)
    }

    /// Those that have packets in hand.
    pub(super) fn busy(&mut self) -> Vec<Busy> {
        let now = Instant::now();
        self.has_moved |= self.find_changes(now, &mut Found::default());
        self.has_moved |= self.find_taken(now, |_| true);
        let threads = self.threads.iter().map(|seen| Busy {
            holder: Arc::clone(&seen.holder),
            doing: seen.word.doing(),
            time: now.saturating_duration_since(seen.busy_since),
            key: seen.holder.taken().1,
        });
        threads
            .filter(|it| matches!(it.doing, Doing::Packets | Doing::Left | Doing::Over))
            .collect()
    }

    /// The indices of all threads, in turn.
    fn from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.threads.len();
        let first = first.min(count);
        (first..count).chain(0..first)
    }

    /// Look at some of those that have left their places: one that runs counts again.
    fn look_at_left(&mut self, gate: &Gate, now: Instant, found: &mut Found) {
        let mut most = MOST_LEFT;
        for index in self.from(self.next_left) {
            let seen = &mut self.threads[index];
            let word = seen.holder.word();
            let is_due = || cfg!(interleavings) || now >= seen.again.0;
            if word.doing() != Doing::Left || !is_due() {
                continue;
            }
            if most == 0 {
                self.next_left = index;
                break;
            }
            most -= 1;
            if !seen.runs_again(now) {
                let pause = (seen.again.1 * 2).min(LONGEST_PAUSE);
                seen.again = (now + pause, pause);
                continue;
            }
            // First the place, which the thread may leave as soon as it has it.
            gate.return_place();
            if !seen.holder.change(word, Doing::Packets) {
                gate.leave_place();
                // Meanwhile it may have looked taken to others.
                found.freed += 1;
            } else {
                seen.word = word.with(Doing::Packets);
                seen.since = now;
                seen.asleep = None;
            }
        }
    }

    /// Look at all threads, as far as that costs no more than `most`. With 0, only find out whether one moves. `is_idle`: a
    /// place is not used.
    pub(super) fn look(&mut self, gate: &Gate, is_idle: bool, most: usize) -> Found {
        let now = Instant::now();
        let mut found = Found::default();
        self.look_at_left(gate, now, &mut found);
        self.has_moved |= self.find_changes(now, &mut found);
        // The thread that watches looks also at one that has dequeued since: it comes back a millisecond later.
        let is_close = most > PEERS_MOST || cfg!(interleavings);
        // The model checker knows no time.
        let is_fresh =
            |seen: &Seen| cfg!(interleavings) || now.saturating_duration_since(seen.since) < FRESH;
        let has_old = self
            .threads
            .iter()
            .any(|seen| seen.word.doing() == Doing::Packets && !is_fresh(seen));
        let mut left = most;
        let mut ended = Vec::new();
        for kind in [1, 0] {
            let mut first_skipped = None;
            let kept_back = if kind == 1 && has_old { most / 2 } else { 0 };
            for index in self.from(self.next[kind]) {
                let seen = &mut self.threads[index];
                let is_new = seen.since == now && !is_close;
                let is_other_kind = is_fresh(seen) != (kind == 1);
                if seen.word.doing() != Doing::Packets || is_new || is_other_kind {
                    continue;
                }
                // One that was seen to sleep is looked at in any case.
                if left <= kept_back && seen.asleep.is_none() {
                    first_skipped.get_or_insert(index);
                    continue;
                }
                let cost = seen.look(gate, is_idle, now, &mut found, &mut ended);
                left = left.saturating_sub(cost);
            }
            self.next[kind] = first_skipped.unwrap_or(0);
        }
        for holder in ended {
            self.remove(&holder);
        }
        let is_any_left = self.left() > 0;
        if is_any_left != gate.load().has(Flag::LEFT) {
            gate.set(Flag::LEFT, is_any_left);
        }
        self.has_moved |= found.freed > 0;
        found
    }

    /// See who does something else than at the last look. True if a thread has dequeued.
    fn find_changes(&mut self, now: Instant, found: &mut Found) -> bool {
        let mut has_dequeued = false;
        for seen in &mut self.threads {
            let word = seen.holder.word();
            if word != seen.word {
                found.moved |= matches!(word.doing(), Doing::Packets | Doing::Call);
                has_dequeued |= word.has_dequeued_since(seen.word);
                seen.word = word;
                seen.since = now;
                seen.busy_since = now;
                seen.asleep = None;
                seen.progress = Progress::default();
                seen.has_flowed_on = false;
            }
        }
        has_dequeued
    }

    /// See who of those that do this has taken from what it had in hand. True if a thread has.
    fn find_taken(&mut self, now: Instant, does: impl Fn(Doing) -> bool) -> bool {
        let mut has_taken = false;
        let threads = self.threads.iter_mut();
        for seen in threads.filter(|seen| does(seen.word.doing())) {
            let taken = seen.holder.taken().0;
            if std::mem::replace(&mut seen.taken, taken) != taken {
                seen.busy_since = now;
                has_taken = true;
            }
        }
        has_taken
    }

    /// The thread that watches has looked, after it meant to wait for `nap`. If the time has come, count out the thread that
    /// has held its place longest. Returns in what time it will have come, if nobody moves.
    pub(super) fn count_out_if_due(
        &mut self,
        gate: &Gate,
        places: usize,
        nap: Duration,
        found: &mut Found,
    ) -> Duration {
        let now = Instant::now();
        // One that blocks takes nothing.
        let runs = |doing| matches!(doing, Doing::Packets | Doing::Over);
        let has_moved = self.find_taken(now, runs) | std::mem::take(&mut self.has_moved);
        let counts = (self.counted_out(), places);
        let spent = process_time().unwrap_or_default();
        let rule = &mut self.last_resort;
        let due_in = rule.due_in((now, spent), nap, has_moved, counts);
        if due_in.is_zero() {
            self.count_out(gate, found);
        }
        due_in
    }

    /// Count out the thread that has held its place longest.
    pub(super) fn count_out(&mut self, gate: &Gate, found: &mut Found) {
        let holds = |seen: &&mut Seen| seen.word.doing() == Doing::Packets;
        let longest = self.threads.iter_mut().filter(holds);
        let Some(seen) = longest.min_by_key(|seen| seen.since) else {
            return;
        };
        if seen.holder.change(seen.word, Doing::Over) {
            gate.leave_place();
            found.freed += 1;
            found.keepers.push(Arc::clone(&seen.holder));
            seen.word = seen.word.with(Doing::Over);
        }
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Peers look too, and what they have seen is nothing new for the thread that watches.
    #[test]
    fn f6_who_has_dequeued_counts_whoever_has_seen_it() {
        const PERIOD: Duration = Duration::from_millis(12);
        let (gate, holder) = (Gate::new(), Arc::new(Holder::new()));
        let mut roster = Roster::default();
        roster.push(Arc::clone(&holder));
        let dequeue = || {
            holder.begin_call();
            holder.end_call();
        };
        assert!(gate.take_place(1));
        let mut is_counted_out = |is_peer_first: bool| {
            if is_peer_first {
                roster.look(&gate, false, 0);
            }
            let mut found = roster.look(&gate, false, 0);
            roster.count_out_if_due(&gate, 1, 10 * PERIOD, &mut found);
            roster.counted_out() > 0
        };
        dequeue();
        assert!(!is_counted_out(false));
        thread::sleep(PERIOD);
        dequeue();
        assert!(!is_counted_out(true));
        thread::sleep(PERIOD);
        assert!(is_counted_out(true), "nobody has dequeued");
    }

    #[test]
    fn f4_a_thread_that_blocks_among_many_is_found_in_a_few_looks() {
        const PLACES: usize = 64;
        if ThreadState::of_this().look() != Look::Running {
            eprintln!("skipped: this system does not show what threads do");
            return;
        }
        let (end, ended) = channel::<()>();
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            tell.send(Arc::new(Holder::new())).expect("it is awaited");
            let _ = ended.recv();
        });
        let sleeper = told.recv().expect("it is sent");
        for place in 0..PLACES {
            let gate = Gate::new();
            let mut roster = Roster::default();
            for index in 0..PLACES {
                let holder = match index == place {
                    true => Arc::clone(&sleeper),
                    // This thread runs whenever it looks.
                    false => Arc::new(Holder::new()),
                };
                holder.begin_call();
                holder.end_call();
                assert!(gate.take_place(PLACES));
                roster.push(holder);
            }
            let mut looks = 0;
            while roster.look(&gate, false, MOST).freed == 0 {
                looks += 1;
                // Half of a look is for those that have had packets for long.
                assert!(looks <= 2 * (PLACES * (1 + STATE) / MOST + 3), "{place}");
                thread::sleep(SECOND_LOOK);
            }
            assert_eq!(gate.load().holders(), PLACES - 1);
            assert_eq!(roster.left(), 1);
        }
        drop(end);
        thread.join().expect("no panic");
    }
}
