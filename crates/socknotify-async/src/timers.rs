//! Time: [`sleep`], [`timeout`], [`interval`].

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use std::{fmt, io};

use pin_project_lite::pin_project;

use crate::context;
use crate::shared::{ALARM, Shared};
use crate::source::shut_down;
use crate::sync::{Waiter, lock};
use crate::wheel::{NEVER, Wheel};

/// The timers of a runtime. The port's alarm is set for the first of them.
pub(crate) struct Timers {
    start: Instant,
    /// Threads set theirs in different parts.
    parts: Box<[Part]>,
    /// When the alarm comes at the latest, in ticks.
    alarm: Mutex<u64>,
}

/// No two of them share what a processor writes to.
#[repr(align(128))]
struct Part(Mutex<Wheel<Waiter>>);

/// What identifies a timer: its part, and its number there.
type Key = (u32, u32);

/// Ticks are milliseconds: more timers go off with one alarm.
const TICKS: u32 = 1000;

impl Timers {
    /// No timers, in so many parts.
    pub(crate) fn new(parts: usize) -> Self {
        let part = || Part(Mutex::new(Wheel::new()));
        Timers {
            start: Instant::now(),
            parts: (0..parts).map(|_| part()).collect(),
            alarm: Mutex::new(NEVER),
        }
    }

    /// The first tick that begins at or after this time; the last one without a time.
    fn ticks_until(&self, time: Option<Instant>) -> u64 {
        let time = time.map_or(Duration::MAX, |it| it.saturating_duration_since(self.start));
        let parts = time.subsec_nanos().div_ceil(1_000_000_000 / TICKS);
        let ticks = time.as_secs().saturating_mul(TICKS.into());
        ticks.saturating_add(parts.into()).min(NEVER - 1)
    }

    fn part(&self, part: u32) -> MutexGuard<'_, Wheel<Waiter>> {
        lock(&self.parts[part as usize].0)
    }

    /// Wake the task at this time.
    fn set(&self, shared: &Shared, time: Option<Instant>, waiter: Waiter) -> Key {
        let at = self.ticks_until(time);
        let part = (shared.list().unwrap_or(0) % self.parts.len()) as u32;
        let (index, next) = self.part(part).set(at, waiter);
        self.alarm(shared, next);
        (part, index)
    }

    /// Wake its task at this time instead. False if it has gone off.
    fn reset(&self, shared: &Shared, (part, index): Key, time: Instant) -> bool {
        let at = self.ticks_until(Some(time));
        let next = self.part(part).reset(index, at);
        if let Some(next) = next {
            self.alarm(shared, next);
        }
        next.is_some()
    }

    fn unset(&self, (part, index): Key) {
        let waker = self.part(part).unset(index);
        // It may be a task's last, and run its `drop`.
        drop(waker);
    }

    /// Have the alarm come at this time, or before. False if it could not be set: the port is closed, or the system has no
    /// memory.
    pub(crate) fn alarm_by(&self, shared: &Shared, time: Instant) -> bool {
        self.alarm(shared, self.ticks_until(Some(time)))
    }

    fn alarm(&self, shared: &Shared, at: u64) -> bool {
        if at == NEVER {
            return true;
        }
        let mut alarm = lock(&self.alarm);
        if at >= *alarm {
            return true;
        }
        let time = Duration::from_secs(at / u64::from(TICKS))
            + Duration::from_secs(at % u64::from(TICKS)) / TICKS;
        let delay = time.saturating_sub(self.start.elapsed());
        let is_set = shared.with_port(|port| port.set_alarm(delay, ALARM)) == Ok(Ok(()));
        // If it could not be set, the next timer tries again, whatever its time.
        *alarm = if is_set { at } else { NEVER };
        is_set
    }

    /// The alarm has come. Returns the tasks to wake, the first first.
    pub(crate) fn on_alarm(&self, shared: &Shared) -> impl Iterator<Item = Waiter> {
        let now = self.start.elapsed().as_millis() as u64;
        // In this order: who sets a timer that is not seen here finds that the alarm is to be set.
        *lock(&self.alarm) = NEVER;
        let mut due = Vec::new();
        let mut next = NEVER;
        for part in &self.parts {
            let mut wheel = lock(&part.0);
            wheel.take_due(now, &mut due);
            next = next.min(wheel.next());
        }
        self.alarm(shared, next);
        due.sort_by_key(|&(at, _)| at);
        due.into_iter().map(|(_, waiter)| waiter)
    }

    /// The runtime shuts down.
    pub(crate) fn take_all(&self) -> Vec<Waiter> {
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(lock(&part.0).take_all());
        }
        all
    }
}

/// Waits for a while. See [`sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sleep {
    /// `None` if it never comes.
    deadline: Option<Instant>,
    timer: Option<(Key, Waiter)>,
    shared: Arc<Shared>,
    /// For [`context::spend`].
    was_refused: AtomicBool,
    /// The runtime had shut down when this was polled, in a task, with another waker than the task's.
    was_late: bool,
}

/// Waits for this long: never less, and up to some milliseconds more. Dropping the future cancels it.
///
/// The time is that of the runtime in which it is made, also where another executor polls it: in a task of another runtime, or
/// in `block_on` of any. If that runtime shuts down before, nobody would wake who waits: so the future panics there, as
/// operations on its sockets fail. A task of the runtime's own is cancelled instead.
///
/// # Panics
///
/// If this thread is in no runtime; and as a future, if the runtime shuts down.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
///
/// # fn main() -> std::io::Result<()> {
/// let runtime = socknotify_async::Runtime::new()?;
/// let begin = Instant::now();
/// runtime.block_on(async { socknotify_async::sleep(Duration::from_millis(5)).await });
/// assert!(begin.elapsed() >= Duration::from_millis(5));
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn sleep(time: Duration) -> Sleep {
    Sleep::new(Instant::now().checked_add(time))
}

/// Waits until this time. See [`sleep`].
///
/// # Panics
///
/// As [`sleep`].
#[track_caller]
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::new(Some(deadline))
}

impl Sleep {
    #[track_caller]
    fn new(deadline: Option<Instant>) -> Self {
        Sleep {
            deadline,
            timer: None,
            shared: context::expect(),
            was_refused: AtomicBool::new(false),
            was_late: false,
        }
    }

    /// When it ends. `None` if that is too far away to be represented.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Waits until this time instead, also if it has ended before.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
        let shared = &self.shared;
        let timer = self.timer.as_ref().filter(|_| shared.is_here());
        if timer.is_some_and(|(key, _)| !shared.timers.reset(shared, *key, deadline)) {
            self.unset();
        }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|it| Instant::now() >= it)
    }

    fn unset(&mut self) {
        if let Some((key, _)) = self.timer.take() {
            if self.shared.is_here() {
                self.shared.timers.unset(key);
            }
        }
    }

    /// Fails if the runtime has shut down.
    ///
    /// # Panics
    ///
    /// In a forked child.
    pub(crate) fn try_poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.is_over() {
            // One that has waited need not wait for the budget of its task.
            let has_waited = self.timer.is_some();
            self.unset();
            return match has_waited {
                true => Poll::Ready(Ok(())),
                false => context::spend(cx, &self.was_refused).map(Ok),
            };
        }
        let timer = self.timer.as_ref();
        if timer.is_none_or(|(_, waker)| !waker.will_wake(cx.waker())) {
            self.unset();
            let shared = &self.shared;
            shared.check_process();
            let waiter = Waiter::new(cx.waker());
            let key = shared.timers.set(shared, self.deadline, waiter.clone());
            self.timer = Some((key, waiter));
        }
        if !self.shared.is_closed() {
            return Poll::Pending;
        }
        // A task of the runtime's is cancelled next. Anyone else would wait for ever.
        if self.shared.is_polling() {
            if context::is_polled(cx.waker()) {
                return Poll::Pending;
            }
            // It may be part of the task, or be polled by an executor in there, which polls it again.
            if !std::mem::replace(&mut self.was_late, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(Err(shut_down()))
    }
}

impl Future for Sleep {
    type Output = ();

    /// # Panics
    ///
    /// If the runtime shuts down before the time has come, unless one of its tasks polls this, which is cancelled then; and in a
    /// forked child.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let outcome = self.try_poll(cx);
        outcome.map(|outcome| assert!(outcome.is_ok(), "the runtime has shut down"))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.unset();
    }
}

pin_project! {
    /// A future that has to be ready in time. See [`timeout`].
    #[must_use = "futures do nothing unless they are awaited"]
    #[derive(Debug)]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

/// Awaits a future for this long at most. If it takes longer, the future is dropped with this one.
///
/// A future that is ready at its first poll is in time, however short the time.
///
/// # Panics
///
/// As [`sleep`], unless the future is ready first: what waits for a socket of the runtime that shuts down is, with an error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use socknotify_async::timeout;
///
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// assert_eq!(timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));
/// let late = timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
/// assert!(late.is_err());
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn timeout<F: Future>(time: Duration, future: F) -> Timeout<F> {
    Timeout {
        future,
        sleep: sleep(time),
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let was_spent = context::is_spent();
        if let Poll::Ready(value) = this.future.poll(cx) {
            return Poll::Ready(Ok(value));
        }
        // What never waits spends all of each poll's budget, and leaves nothing of it.
        if context::is_spent() && !was_spent && this.sleep.is_over() {
            return Poll::Ready(Err(Elapsed(())));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed(())))
    }
}

/// The time of a [`timeout`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time is over")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(error: Elapsed) -> Self {
        io::Error::new(io::ErrorKind::TimedOut, error)
    }
}

/// Once per period. See [`interval`].
#[derive(Debug)]
pub struct Interval {
    period: Duration,
    sleep: Sleep,
}

/// Once per period, first after one period. A tick that would be late by a whole period is left out; so ticks are
/// multiples of the period after the beginning. The shortest period is a millisecond.
///
/// # Panics
///
/// As [`sleep`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// # socknotify_async::Runtime::new()?.block_on(async {
/// let mut interval = socknotify_async::interval(Duration::from_millis(2));
/// let first = interval.tick().await;
/// assert!(interval.tick().await >= first + Duration::from_millis(2));
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    let period = period.max(Duration::from_millis(1));
    Interval {
        period,
        sleep: sleep(period),
    }
}

impl Interval {
    /// Waits for the next tick, and returns its time. Cancelled, it takes none.
    pub async fn tick(&mut self) -> Instant {
        std::future::poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// The same, for those who write futures by hand.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        // Without a time it is never ready.
        let tick = self.sleep.deadline.unwrap_or_else(Instant::now);
        let missed = tick.elapsed().as_nanos() / self.period.as_nanos();
        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
        let later = self.period.saturating_mul(missed.saturating_add(1));
        self.sleep.deadline = tick.checked_add(later);
        Poll::Ready(tick)
    }
}
