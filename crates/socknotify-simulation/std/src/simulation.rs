//! The scheduler, the clock, and what waits for the kernel.
//!
//! Each thread of a simulation is one of the system. One has the token and runs; it passes the token on at some of its
//! [points](point), and where it [blocks](block). Who gets it, after how many points, how long a step takes, and what fails on
//! demand, a generator of numbers says that begins with the seed. So a seed is the same run each time, as long as nothing runs
//! beside the simulation: there is one at a time in a process.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// What a run is like, beside its seed.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    /// How many processors threads see. They run as if there were one for each.
    pub processors: usize,
    /// All has ended after this time, in the simulation.
    pub within: Duration,
    /// Each thread continues soon after it could, as on a machine that is not busy: for rules that say how long something takes.
    pub is_fair: bool,
    /// Print each call of the kernel.
    pub is_told: bool,
    pub faults: Faults,
}

/// Of how many calls one fails, or returns without a reason; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// To watch a new descriptor: no memory, or too many.
    pub add: u32,
    /// To watch one in another way: no memory.
    pub modify: u32,
    /// To start a thread.
    pub spawn: u32,
    /// A wait returns without a reason.
    pub wait: u32,
    /// A timer goes off early, as those of some systems may.
    pub timer: u32,
}

/// A kind of call that may fail.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Add,
    Modify,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The lock at this address.
    Lock(usize),
    Condvar(usize),
    /// The set of descriptors that has this number.
    Set(i32),
    Time,
    /// The same, and uses a processor meanwhile.
    Computing,
    /// The end of a thread.
    End(usize),
    /// The end of all threads of a scope.
    Scope(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Runnable,
    Blocked(On),
    /// Its closure has returned, and what it has by thread is dropped.
    Finished,
    Ended,
}

struct Task {
    /// Once it runs.
    thread: Option<Thread>,
    scope: usize,
    status: Status,
    /// When its wait is over in any case.
    until: Option<u64>,
    has_timed_out: bool,
    /// It was woken for this set, and has not asked it yet.
    woken_for: Option<i32>,
    priority: u64,
}

/// How the next thread is chosen.
enum Policy {
    /// Any that can continue, after about so many points.
    Random(u64),
    /// Always the one with the highest priority, which becomes the lowest at these steps.
    Priorities(Vec<u64>),
}

#[derive(Default)]
struct State {
    /// The run. Threads that a failed one has left never continue.
    run: u64,
    current: usize,
    tasks: Vec<Task>,
    numbers: u64,
    policy: Option<Policy>,
    steps: u64,
    gap: u64,
    lowest: u64,
    timers: Vec<(OwnedFd, i32, Option<u64>)>,
    settings: Option<Settings>,
    /// What a panic said, until it is known whether it is handled.
    panic: String,
    outcome: Option<Result<u64, String>>,
}

static STATE: Mutex<State> = Mutex::new(State {
    run: 0,
    current: 0,
    tasks: Vec::new(),
    numbers: 0,
    policy: None,
    steps: 0,
    gap: 0,
    lowest: 0,
    timers: Vec::new(),
    settings: None,
    panic: String::new(),
    outcome: None,
});
static OVER: Condvar = Condvar::new();

/// How many points are left until a thread may lose the token. Only who has that changes these.
static LEFT: AtomicU64 = AtomicU64::new(0);
/// The time in nanoseconds, and how much of it a point takes.
static NOW: AtomicU64 = AtomicU64::new(BEGIN);
static STEP: AtomicU64 = AtomicU64::new(0);
static IS_TOLD: AtomicBool = AtomicBool::new(false);
static PROCESSORS: AtomicUsize = AtomicUsize::new(2);

const BEGIN: u64 = 1_000_000_000_000;
const NOBODY: usize = usize::MAX;
/// More points than any run has that ends.
const MOST_STEPS: u64 = 20_000_000;
/// After so many, threads with low priorities continue, too.
const MOST_HELD_UP: u64 = 100_000;

thread_local! {
    static ME: Cell<usize> = const { Cell::new(NOBODY) };
    /// Dropped after all else that the thread has: it was made first.
    static EXIT: RefCell<Option<Exit>> = const { RefCell::new(None) };
}

struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        let mut state = lock();
        state.end(ME.get());
        state.pass();
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the calling thread is in a simulation.
#[inline]
pub fn is_here() -> bool {
    ME.get() != NOBODY
}

/// Another thread may continue here.
#[inline]
pub fn point() {
    if !is_here() {
        return;
    }
    NOW.store(NOW.load(Relaxed) + STEP.load(Relaxed), Relaxed);
    match LEFT.load(Relaxed) {
        0 => switch(),
        left => LEFT.store(left - 1, Relaxed),
    }
}

/// Another thread continues here, if one can.
#[cold]
pub fn switch() {
    if is_here() {
        let mut state = lock();
        state.count_steps();
        state.pass();
        drop(wait_for_token(state));
    }
}

/// How many points there were until now.
pub fn steps() -> u64 {
    let state = lock();
    state.steps + state.gap - LEFT.load(Relaxed).min(state.gap)
}

/// The time, in nanoseconds.
pub fn now() -> u64 {
    NOW.load(Relaxed)
}

/// The time when this much has passed.
pub fn after(time: Duration) -> u64 {
    now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

pub fn processors() -> NonZero<usize> {
    NonZero::new(PROCESSORS.load(Relaxed)).expect("there is one")
}

/// Use a processor for this time.
pub fn compute(time: Duration) {
    block(On::Computing, Some(after(time)));
}

/// A number below this one, which the seed says.
pub fn random(below: u64) -> u64 {
    lock().random(below)
}

/// Wait until others have done what this waits for. False if the time is over.
pub fn block(on: On, until: Option<u64>) -> bool {
    let me = ME.get();
    if me == NOBODY {
        return true;
    }
    let mut state = lock();
    let mut until = until;
    let is_over = match on {
        On::End(index) => state.tasks[index].status == Status::Ended,
        On::Scope(scope) => state.has_ended(scope),
        _ => false,
    };
    if is_over {
        return true;
    }
    let mut is_spurious = false;
    if matches!(on, On::Condvar(_)) {
        let one_in = state.faults().wait;
        is_spurious = state.fails(one_in);
        if is_spurious {
            let soon = now() + state.random(100_000);
            until = Some(until.map_or(soon, |until| until.min(soon)));
        }
    }
    state.count_steps();
    let task = &mut state.tasks[me];
    task.status = Status::Blocked(on);
    task.until = until;
    task.has_timed_out = false;
    state.pass();
    let mut state = wait_for_token(state);
    !std::mem::take(&mut state.tasks[me].has_timed_out) || is_spurious
}

/// A lock is free.
pub fn unlocked(address: usize) {
    let mut state = lock();
    state.wake(|on| on == On::Lock(address));
}

/// Wake this many threads that wait for a condition.
pub fn notify(address: usize, most: usize) {
    point();
    let mut state = lock();
    let waiting = |task: &Task| task.status == Status::Blocked(On::Condvar(address));
    for _ in 0..most {
        let waiting: Vec<_> = (0..state.tasks.len())
            .filter(|&index| waiting(&state.tasks[index]))
            .collect();
        if waiting.is_empty() {
            return;
        }
        let index = waiting[state.random(waiting.len() as u64) as usize];
        state.continues(index);
    }
}

/// Wait for a set of descriptors, which `ask` asks without waiting: it returns how many are ready.
pub fn wait(
    set: &impl AsRawFd,
    timeout: Option<Duration>,
    mut ask: impl FnMut() -> usize,
) -> usize {
    if !is_here() {
        return ask();
    }
    let end = timeout.map(after);
    loop {
        point();
        {
            let mut state = lock();
            let one_in = state.faults().wait;
            state.tasks[ME.get()].woken_for = None;
            if timeout != Some(Duration::ZERO) && state.fails(one_in) {
                return 0;
            }
        }
        let count = ask();
        if count > 0 || end.is_some_and(|end| now() >= end) {
            return count;
        }
        block(On::Set(set.as_raw_fd()), end);
    }
}

/// An `eventfd` is a timer of the simulation.
pub fn add_timer(timer: &OwnedFd) -> io::Result<()> {
    let number = timer.as_raw_fd();
    let timer = timer.as_fd().try_clone_to_owned()?;
    let mut state = lock();
    state.timers.retain(|timer| timer.1 != number);
    state.timers.push((timer, number, None));
    Ok(())
}

/// It is readable after this time.
pub fn set_timer(timer: &OwnedFd, time: Duration) {
    point();
    let number = timer.as_raw_fd();
    let mut state = lock();
    let one_in = state.faults().timer;
    let time = match state.fails(one_in) {
        true => time / 2,
        false => time,
    };
    let timer = state.timers.iter_mut().find(|timer| timer.1 == number);
    timer.expect("it was added").2 = Some(after(time));
}

/// Whether this call is to fail, and how.
pub fn fault(call: Call) -> Option<i32> {
    if !is_here() {
        return None;
    }
    point();
    let mut state = lock();
    let Faults { add, modify, .. } = state.faults();
    match call {
        Call::Add => {
            let error = [libc::ENOMEM, libc::ENOSPC][state.random(2) as usize];
            state.fails(add).then_some(error)
        }
        Call::Modify => state.fails(modify).then_some(libc::ENOMEM),
    }
}

/// Say what happens, where the run is to say so: see [`Settings::is_told`].
pub fn tell(what: std::fmt::Arguments<'_>) {
    if IS_TOLD.load(Relaxed) && is_here() {
        let time = Duration::from_nanos(now() - BEGIN);
        eprintln!("{time:?} thread {}: {what}", ME.get());
    }
}

/// From here on this is what fails.
pub fn set_faults(faults: Faults) {
    if let Some(settings) = &mut lock().settings {
        settings.faults = faults;
    }
}

/// What a thread does, for others to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Running,
    Asleep,
    Ended,
}

/// The calling thread's number.
pub fn this_thread() -> Option<usize> {
    is_here().then(|| ME.get())
}

/// What a thread does now.
pub fn activity(index: usize) -> Activity {
    point();
    match lock().tasks[index].status {
        Status::Ended => Activity::Ended,
        Status::Blocked(On::Computing) | Status::Runnable | Status::Finished => Activity::Running,
        Status::Blocked(_) => Activity::Asleep,
    }
}

pub(crate) fn has_finished(index: usize) -> bool {
    matches!(lock().tasks[index].status, Status::Finished | Status::Ended)
}

/// A thread that is about to begin. If it does not, it has ended.
pub(crate) struct Begun(usize);

impl Begun {
    pub(crate) fn index(&self) -> usize {
        self.0
    }

    /// The calling thread is this one, and waits for the token.
    pub(crate) fn enter(self) {
        let index = self.0;
        std::mem::forget(self);
        ME.set(index);
        EXIT.with_borrow_mut(|exit| *exit = Some(Exit));
        let mut state = lock();
        state.tasks[index].thread = Some(thread::current());
        drop(wait_for_token(state));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        lock().end(self.0);
    }
}

pub(crate) fn begin(scope: usize) -> io::Result<Begun> {
    point();
    let mut state = lock();
    let one_in = state.faults().spawn;
    if state.fails(one_in) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    Ok(state.begin(scope))
}

pub(crate) fn begin_always() -> Begun {
    lock().begin(0)
}

/// The closure of this thread has returned.
pub(crate) fn finish(has_panicked: bool) {
    let mut state = lock();
    let me = ME.get();
    if has_panicked {
        let panic = state.panic.clone();
        state.fail(&format!("thread {me} has panicked: {panic}"));
        drop(state);
        leave();
    }
    state.tasks[me].status = Status::Finished;
    state.wake_scope(me);
}

/// A run that has failed goes no further.
fn leave() -> ! {
    loop {
        thread::park();
    }
}

/// Pass the token on if another thread has it now, and wait for it.
fn wait_for_token(mut state: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
    let (me, run) = (ME.get(), state.run);
    while state.current != me || state.outcome.is_some() || state.run != run {
        if state.outcome.is_some() || state.run != run {
            drop(state);
            leave();
        }
        drop(state);
        thread::park();
        state = lock();
    }
    state
}

impl State {
    fn settings(&self) -> &Settings {
        self.settings.as_ref().expect("there is a run")
    }

    fn faults(&self) -> Faults {
        self.settings().faults
    }

    fn fails(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.random(one_in.into()) == 0
    }

    /// SplitMix64.
    fn random(&mut self, below: u64) -> u64 {
        self.numbers = self.numbers.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut number = self.numbers;
        number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (number ^ number >> 31) % below
    }

    fn begin(&mut self, scope: usize) -> Begun {
        let priority = (1 << 32) + self.random(1 << 32);
        self.tasks.push(Task {
            thread: None,
            scope,
            status: Status::Runnable,
            until: None,
            has_timed_out: false,
            woken_for: None,
            priority,
        });
        Begun(self.tasks.len() - 1)
    }

    fn end(&mut self, index: usize) {
        self.tasks[index].status = Status::Ended;
        self.wake(|on| on == On::End(index));
        self.wake_scope(index);
    }

    /// Whoever waits for all threads of a scope continues, if this was the last one.
    fn wake_scope(&mut self, index: usize) {
        let scope = self.tasks[index].scope;
        if self.has_ended(scope) {
            self.wake(|on| on == On::Scope(scope));
        }
    }

    fn has_ended(&self, scope: usize) -> bool {
        let mut tasks = self.tasks.iter().filter(|task| task.scope == scope);
        tasks.all(|task| matches!(task.status, Status::Finished | Status::Ended))
    }

    fn wake(&mut self, is_woken: impl Fn(On) -> bool) {
        for index in 0..self.tasks.len() {
            if matches!(self.tasks[index].status, Status::Blocked(on) if is_woken(on)) {
                self.continues(index);
            }
        }
    }

    /// A thread need not wait any more.
    fn continues(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        if let Status::Blocked(On::Set(set)) = task.status {
            task.woken_for = Some(set);
        }
        task.status = Status::Runnable;
        task.until = None;
        if matches!(self.policy, Some(Policy::Priorities(_))) || self.settings().is_fair {
            LEFT.store(0, Relaxed);
        }
    }

    fn count_steps(&mut self) {
        self.steps += self.gap - LEFT.load(Relaxed).min(self.gap);
    }

    /// Give the token to the thread that continues.
    fn pass(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        if self.steps > MOST_HELD_UP {
            // Nobody is held up for ever.
            self.policy = Some(Policy::Random(12));
        }
        let Some(next) = self.next() else { return };
        let random = self.random(1 << 32);
        let steps = self.steps;
        self.gap = match self.policy.as_mut().expect("there is a run") {
            Policy::Random(mean) => random % (2 * *mean),
            Policy::Priorities(changes) => {
                changes.retain(|&step| step > steps);
                let next = changes.iter().min().map_or(64, |step| step - steps);
                next.min(1 + random % 64)
            }
        };
        LEFT.store(self.gap, Relaxed);
        self.current = next;
        if next != ME.get() {
            if let Some(thread) = &self.tasks[next].thread {
                thread.unpark();
            }
        }
    }

    /// Whoever continues. `None` if nobody is left, or nobody ever can.
    fn next(&mut self) -> Option<usize> {
        loop {
            self.see_what_is_due();
            let runnable = |task: &Task| matches!(task.status, Status::Runnable | Status::Finished);
            let can: Vec<_> = (0..self.tasks.len())
                .filter(|&index| runnable(&self.tasks[index]))
                .collect();
            let limit = BEGIN + self.settings().within.as_nanos() as u64;
            if can.is_empty() && self.tasks.iter().all(|it| it.status == Status::Ended) {
                self.outcome = Some(Ok(self.numbers ^ now()));
                OVER.notify_all();
                return None;
            }
            if self.steps > MOST_STEPS || now() > limit {
                self.fail("it does not end");
                return None;
            }
            if !can.is_empty() {
                return Some(self.choose(&can));
            }
            // Nothing happens until then.
            let waits = self.tasks.iter().filter_map(|task| task.until);
            let timers = self.timers.iter().filter_map(|timer| timer.2);
            let Some(next) = waits.chain(timers).min() else {
                self.fail("nobody can continue");
                return None;
            };
            NOW.store(next.max(now()), Relaxed);
        }
    }

    fn choose(&mut self, can: &[usize]) -> usize {
        let is_change = |changes: &[u64]| changes.iter().any(|&step| step <= self.steps);
        match self.policy.as_ref().expect("there is a run") {
            Policy::Random(_) => can[self.random(can.len() as u64) as usize],
            Policy::Priorities(changes) => {
                if is_change(changes) {
                    self.lowest -= 1;
                    let (current, lowest) = (self.current, self.lowest);
                    self.tasks[current].priority = lowest;
                }
                let highest = can.iter().max_by_key(|&&index| self.tasks[index].priority);
                *highest.expect("there is one")
            }
        }
    }

    /// What is due by time, and who is to be told what a set has.
    fn see_what_is_due(&mut self) {
        let now = now();
        for (timer, _, at) in &mut self.timers {
            if at.is_some_and(|at| at <= now) {
                *at = None;
                write_one(timer);
            }
        }
        for index in 0..self.tasks.len() {
            if self.tasks[index].until.is_some_and(|until| until <= now) {
                self.continues(index);
                self.tasks[index].has_timed_out = true;
                self.tasks[index].woken_for = None;
            }
        }
        let mut sets: Vec<i32> = Vec::new();
        for task in &self.tasks {
            match task.status {
                Status::Blocked(On::Set(set)) if !sets.contains(&set) => sets.push(set),
                _ => {}
            }
        }
        for set in sets {
            let is_on_its_way = self.tasks.iter().any(|task| task.woken_for == Some(set));
            if !is_on_its_way && is_readable(set) {
                let waits = |task: &Task| task.status == Status::Blocked(On::Set(set));
                let waiting: Vec<_> = (0..self.tasks.len())
                    .filter(|&index| waits(&self.tasks[index]))
                    .collect();
                let index = waiting[self.random(waiting.len() as u64) as usize];
                self.continues(index);
            }
        }
    }

    fn fail(&mut self, why: &str) {
        let mut report = format!("{why}, at {:?}", Duration::from_nanos(now() - BEGIN));
        for (index, task) in self.tasks.iter().enumerate() {
            let name = task.thread.as_ref().and_then(|thread| thread.name());
            let name = name.unwrap_or_default();
            let _ = write!(report, "\n  {index} {name}: {:x?}", task.status);
        }
        self.outcome = Some(Err(report));
        OVER.notify_all();
    }
}

fn write_one(eventfd: &OwnedFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: it reads so many bytes of this array.
    unsafe { libc::write(eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Whether a set has something to report.
fn is_readable(set: i32) -> bool {
    let mut poll = libc::pollfd {
        fd: set,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: there is one.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 && poll.revents & libc::POLLIN != 0 }
}

/// Threads that run one at a time wake each other in a third of the time there. They inherit this.
fn stay_on_one_processor() {
    // SAFETY: all zeros is a set without processors, and the system reads one of this size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if let Ok(processor @ 0..1024) = usize::try_from(libc::sched_getcpu()) {
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
}

/// What panics say is kept, and not printed: most of them are meant.
fn keep_panics() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if is_here() {
                tell(format_args!("{info}"));
                // The scheduler's own panics leave it locked.
                if let Ok(mut state) = STATE.try_lock() {
                    state.panic = info.to_string();
                } else {
                    before(info);
                }
            } else {
                before(info);
            }
        }));
    });
}

/// Run this, with all threads that it starts, until all have ended.
///
/// Returns a number that tells runs apart.
///
/// # Errors
///
/// A thread has panicked, nobody can continue, or it does not end.
pub fn run(settings: Settings, main: impl FnOnce() + Send + 'static) -> Result<u64, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keep_panics();
    let mut state = lock();
    *state = State {
        run: state.run + 1,
        numbers: settings.seed,
        lowest: 1 << 32,
        ..State::default()
    };
    let kind = state.random(4);
    state.policy = Some(match kind {
        _ if settings.is_fair => Policy::Random(4),
        0 => {
            let length = 1 << (7 + state.random(8));
            let changes = (0..3).map(|_| 1 + state.random(length));
            Policy::Priorities(changes.collect())
        }
        1 => Policy::Random(2),
        2 => Policy::Random(12),
        _ => Policy::Random(100),
    });
    let step = match settings.is_fair {
        true => 20,
        false => [5, 50, 500][state.random(3) as usize],
    };
    NOW.store(BEGIN, Relaxed);
    STEP.store(step, Relaxed);
    LEFT.store(0, Relaxed);
    IS_TOLD.store(settings.is_told, Relaxed);
    PROCESSORS.store(settings.processors, Relaxed);
    state.settings = Some(settings);
    let begun = state.begin(0);
    drop(state);
    let first = thread::Builder::new().name("main".into()).spawn(move || {
        stay_on_one_processor();
        begun.enter();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(main));
        finish(outcome.is_err());
    });
    let first = first.map_err(|error| error.to_string())?;
    let mut state = lock();
    let mut steps = u64::MAX;
    while state.outcome.is_none() {
        // Whoever has the token passes it on within a moment.
        let waited = OVER.wait_timeout(state, Duration::from_secs(120));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.outcome.is_none() && std::mem::replace(&mut steps, state.steps) == state.steps {
            let current = state.current;
            state.fail(&format!("thread {current} waits outside of the simulation"));
        }
    }
    let outcome = state.outcome.clone().expect("it is over");
    state.timers.clear();
    drop(state);
    if outcome.is_ok() {
        let _ = first.join();
    }
    outcome
}
