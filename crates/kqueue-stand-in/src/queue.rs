//! One queue: filters, and those that are ready, in the order in which they became so.
//!
//! Linux wakes a queue through two `epoll` sets, one for each filter of a number, with `EPOLLET`: then the
//! filter of the number is looked at. The set for reading has the queue's number, so that the queue can be
//! watched itself, and has the other one in it: Linux allows no deeper nesting, where a queue is in a queue. An
//! `eventfd` in it is readable while filters are queued, and a `timerfd` has the next time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::knote::{self, Knote};
use super::{
    EV_ADD, EV_CLEAR, EV_DELETE, EV_DISABLE, EV_DISPATCH, EV_ENABLE, EV_ERROR, EV_ONESHOT,
    EV_RECEIPT, EVFILT_READ, EVFILT_TIMER, EVFILT_USER, EVFILT_WRITE, Rules, kevent, lock,
    note_descriptor,
};

type Key = (usize, i16);

/// A descriptor of a queue's.
struct Own(i32);

impl Own {
    fn new(number: i32) -> Result<Self, i32> {
        if number == -1 {
            return Err(errno());
        }
        note_descriptor(number, true);
        Ok(Own(number))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        note_descriptor(self.0, false);
        // SAFETY: it is a queue's, which does not use it any more.
        unsafe { libc::close(self.0) };
    }
}

pub(super) struct Queue {
    rules: Rules,
    number: i32,
    writes: Own,
    waker: Own,
    timer: Own,
    is_closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    knotes: BTreeMap<Key, Knote>,
    queued: VecDeque<Key>,
    /// Under which a filter's number is in its `epoll` set: reports of what had the number before are ignored.
    watches: HashMap<Key, u32>,
    latest_watch: u32,
    /// Timers.
    timed: BTreeSet<Key>,
    /// Filters of which Linux does not say when they become ready.
    silent: BTreeSet<Key>,
}

/// How often something is looked at that Linux does not report.
const INTERVAL: Duration = Duration::from_millis(5);

/// How many filters are silent, in all queues.
static SILENT: AtomicUsize = AtomicUsize::new(0);

/// In a child there is no queue.
pub(super) fn forget_silent() {
    SILENT.store(0, Ordering::Release);
}

/// Have every queue look at those, as one may be watched by another.
fn collect_silent() {
    let queues: Vec<_> = super::queues().values().cloned().collect();
    for queue in queues {
        let mut state = lock(&queue.state);
        if !state.silent.is_empty() {
            queue.collect(&mut state);
            queue.settle(&state);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        SILENT.fetch_sub(self.silent.len(), Ordering::AcqRel);
    }
}

fn errno() -> i32 {
    let error = std::io::Error::last_os_error();
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// What a descriptor refers to.
fn identity(number: i32) -> Result<u64, i32> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the memory is there for the call, and any bits are a value of the structure.
    let (done, inode) = unsafe {
        (
            libc::fstat(number, stat.as_mut_ptr()),
            stat.assume_init().st_ino,
        )
    };
    if done == -1 {
        return Err(errno());
    }
    Ok(inode)
}

/// Whether a number has this filter: a queue has none, nor the end of a pipe whose other end is closed.
fn may_write(number: i32) -> Result<(), i32> {
    if super::queue(number).is_some() {
        return Err(libc::EINVAL);
    }
    match knote::is_broken_pipe(number) {
        true => Err(libc::EBADF),
        false => Ok(()),
    }
}

fn add(set: i32, number: i32, flags: i32, data: u64) -> Result<(), i32> {
    let mut event = libc::epoll_event {
        events: flags as u32,
        u64: data,
    };
    // SAFETY: the event is there for the calls.
    unsafe {
        if libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, number, &mut event) == 0 {
            return Ok(());
        }
        if errno() == libc::EEXIST
            && libc::epoll_ctl(set, libc::EPOLL_CTL_MOD, number, &mut event) == 0
        {
            return Ok(());
        }
    }
    Err(errno())
}

impl Queue {
    pub(super) fn new(rules: Rules) -> Result<Self, i32> {
        // SAFETY: the calls take no memory.
        let (number, writes, waker, timer) = unsafe {
            let set = || Own::new(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
            let waker = Own::new(libc::eventfd(0, flags))?;
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            let timer = Own::new(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?;
            (set()?, set()?, waker, timer)
        };
        for part in [&writes, &waker, &timer] {
            add(number.0, part.0, libc::EPOLLIN, 0)?;
        }
        let queue = Queue {
            rules,
            number: number.0,
            writes,
            waker,
            timer,
            is_closed: AtomicBool::new(false),
            state: Mutex::default(),
        };
        // It is closed by its number.
        std::mem::forget(number);
        Ok(queue)
    }

    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Ends all waits.
    pub(super) fn end_waits(&self) {
        let _state = lock(&self.state);
        self.is_closed.store(true, Ordering::Release);
        self.signal(true);
    }

    /// Closes the number.
    pub(super) fn close(&self) {
        drop(Own(self.number));
    }

    fn set(&self, filter: i16) -> i32 {
        match filter {
            EVFILT_READ => self.number,
            _ => self.writes.0,
        }
    }

    fn signal(&self, is_on: bool) {
        let mut value = 1_u64.to_ne_bytes();
        let memory = value.as_mut_ptr().cast();
        // SAFETY: the bytes are there for the calls.
        unsafe {
            match is_on {
                true => libc::write(self.waker.0, memory, 8),
                false => libc::read(self.waker.0, memory, 8),
            }
        };
    }

    pub(super) fn kevent(
        &self,
        changes: &[kevent],
        events: &mut Vec<kevent>,
        room: usize,
        end: Option<Instant>,
    ) -> Result<(), i32> {
        let mut state = lock(&self.state);
        // What was ready before is before what a change makes ready.
        self.collect(&mut state);
        for change in changes {
            let done = self.change(&mut state, change);
            if done.is_ok() && change.flags & EV_RECEIPT == 0 {
                continue;
            }
            if events.len() < room {
                events.push(kevent {
                    flags: EV_ERROR,
                    data: done.err().unwrap_or(0).into(),
                    ..*change
                });
            } else if done.is_err() {
                self.settle(&state);
                events.clear();
                return done;
            } else {
                break;
            }
        }
        if !events.is_empty() || room == 0 {
            // What it is not ready for must not make it readable.
            self.collect(&mut state);
            self.settle(&state);
            return Ok(());
        }
        loop {
            if SILENT.load(Ordering::Acquire) > 0 {
                drop(state);
                collect_silent();
                state = lock(&self.state);
            }
            self.collect(&mut state);
            state.fetch(events, room);
            self.settle(&state);
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !events.is_empty() || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            drop(state);
            self.sleep(match SILENT.load(Ordering::Acquire) {
                0 => left,
                _ => Some(left.unwrap_or(INTERVAL).min(INTERVAL)),
            })?;
            if self.is_closed.load(Ordering::Acquire) {
                return Err(libc::EBADF);
            }
            state = lock(&self.state);
        }
    }

    /// Wait until something may be ready. It is not taken: whoever has the lock does that.
    fn sleep(&self, timeout: Option<Duration>) -> Result<(), i32> {
        let time = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut poll = libc::pollfd {
            fd: self.number,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the structures are there for the call.
        match unsafe { libc::ppoll(&mut poll, 1, time, std::ptr::null()) } {
            -1 if errno() == libc::EINTR => Err(libc::EINTR),
            _ => Ok(()),
        }
    }

    /// Have the waker and the timer follow.
    fn settle(&self, state: &State) {
        self.signal(!state.queued.is_empty() || self.is_closed.load(Ordering::Acquire));
        let timers = state.timed.iter().filter_map(|key| state.knotes.get(key));
        let next = timers.filter_map(|knote| knote.due).min();
        let left = next.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        // SAFETY: any bits are a value of the structure, which is there for the call.
        unsafe {
            let mut setting: libc::itimerspec = std::mem::zeroed();
            setting.it_value.tv_sec = left.as_secs() as libc::time_t;
            setting.it_value.tv_nsec = left.subsec_nanos().into();
            libc::timerfd_settime(self.timer.0, 0, &setting, std::ptr::null_mut());
        }
    }

    /// Queue what has become ready.
    fn collect(&self, state: &mut State) {
        for filter in [EVFILT_READ, EVFILT_WRITE] {
            let set = self.set(filter);
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
            loop {
                // SAFETY: there is room for so many events.
                let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, 0) };
                for event in &events[..usize::try_from(count).unwrap_or(0)] {
                    let key = (event.u64 as u32 as usize, filter);
                    if state.watches.get(&key) == Some(&((event.u64 >> 32) as u32)) {
                        state.activate(key);
                    }
                }
                if count < 64 {
                    break;
                }
            }
        }
        let now = Instant::now();
        for key in state.timed.clone() {
            if let Some(knote) = state.knotes.get_mut(&key) {
                knote.expire(now);
            }
            state.activate(key);
        }
        for key in state.silent.clone() {
            if !state.is_there(key) {
                continue;
            }
            let knote = state.knotes.get(&key);
            if !knote.is_some_and(Knote::connects_in_silence) {
                state.forget_silent(key);
                state.activate(key);
            }
        }
    }

    fn change(&self, state: &mut State, change: &kevent) -> Result<(), i32> {
        let key = (change.ident, change.filter);
        if !matches!(
            change.filter,
            EVFILT_READ | EVFILT_WRITE | EVFILT_TIMER | EVFILT_USER
        ) {
            return Err(libc::EINVAL);
        }
        let identity = match Knote::is_of_descriptor(change.filter) {
            true => identity(change.ident as i32).inspect_err(|_| state.remove(key))?,
            false => 0,
        };
        if state
            .knotes
            .get(&key)
            .is_some_and(|it| it.identity != identity)
        {
            state.remove(key);
        }
        if change.flags & EV_DELETE != 0 {
            if !state.knotes.contains_key(&key) {
                return Err(libc::ENOENT);
            }
            if Knote::is_of_descriptor(change.filter) {
                let set = self.set(change.filter);
                let none = std::ptr::null_mut();
                // SAFETY: no event is needed to delete one.
                unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, change.ident as i32, none) };
            }
            state.remove(key);
            return Ok(());
        }
        match state.knotes.get_mut(&key) {
            Some(knote) => {
                let is_changed = change.flags & EV_ADD != 0
                    || change.filter == EVFILT_USER
                    || self.rules == Rules::NetBsd;
                if is_changed {
                    knote.overwrite(change);
                }
                if change.flags & EV_ENABLE != 0 {
                    knote.is_disabled = false;
                } else if change.flags & EV_DISABLE != 0 {
                    knote.is_disabled = true;
                    state.unqueue(key);
                }
                if !is_changed {
                    // Nor is it looked at: what it had was dropped with its event.
                    return Ok(());
                }
            }
            None if change.flags & EV_ADD == 0 => return Err(libc::ENOENT),
            None => {
                if change.filter == EVFILT_WRITE {
                    may_write(change.ident as i32)?;
                }
                if super::is_refused(change.filter) {
                    return Err(libc::ENOMEM);
                }
                let mut knote = Knote::new(change, identity);
                knote.is_disabled = change.flags & (EV_ENABLE | EV_DISABLE) == EV_DISABLE;
                if knote.due.is_some() {
                    state.timed.insert(key);
                } else if knote.connects_in_silence() {
                    state.silent.insert(key);
                    SILENT.fetch_add(1, Ordering::AcqRel);
                }
                state.knotes.insert(key, knote);
                self.watch(state, key);
            }
        }
        state.activate(key);
        Ok(())
    }

    /// Have Linux say when the filter is to be looked at.
    fn watch(&self, state: &mut State, key: Key) {
        let (number, filter) = key;
        let flags = match filter {
            EVFILT_READ => libc::EPOLLIN | libc::EPOLLRDHUP,
            EVFILT_WRITE => libc::EPOLLOUT,
            _ => return,
        };
        state.latest_watch += 1;
        state.watches.insert(key, state.latest_watch);
        let data = u64::from(state.latest_watch) << 32 | number as u64;
        // A file is ready at all times.
        let _ = add(self.set(filter), number as i32, flags | libc::EPOLLET, data);
    }
}

impl State {
    fn unqueue(&mut self, key: Key) {
        if let Some(knote) = self.knotes.get_mut(&key) {
            if std::mem::take(&mut knote.is_queued) {
                self.queued.retain(|&queued| queued != key);
            }
        }
    }

    fn remove(&mut self, key: Key) {
        self.unqueue(key);
        self.knotes.remove(&key);
        self.watches.remove(&key);
        self.timed.remove(&key);
        self.forget_silent(key);
    }

    fn forget_silent(&mut self, key: Key) {
        if self.silent.remove(&key) {
            SILENT.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether the descriptor refers to what the filter was added for. If not, that was closed, and the filter is
    /// gone.
    fn is_there(&mut self, key: Key) -> bool {
        let Some(knote) = self.knotes.get(&key) else {
            return false;
        };
        let is_there =
            !Knote::is_of_descriptor(key.1) || identity(key.0 as i32) == Ok(knote.identity);
        if !is_there {
            self.remove(key);
        }
        is_there
    }

    /// Queue a filter, if it is ready and enabled.
    fn activate(&mut self, key: Key) {
        if !self.is_there(key) {
            return;
        }
        if let Some(knote) = self.knotes.get_mut(&key) {
            if !knote.is_disabled && !knote.is_queued && knote.state().is_some() {
                knote.is_queued = true;
                self.queued.push_back(key);
            }
        }
    }

    /// Take from the queue. Filters are looked at again, but for those that are deleted with their event.
    fn fetch(&mut self, events: &mut Vec<kevent>, room: usize) {
        for _ in 0..self.queued.len() {
            if events.len() == room {
                return;
            }
            let Some(&key) = self.queued.front() else {
                return;
            };
            if !self.is_there(key) {
                continue;
            }
            self.queued.pop_front();
            let Some(knote) = self.knotes.get_mut(&key) else {
                continue;
            };
            knote.is_queued = false;
            let is_deleted = knote.flags & EV_ONESHOT != 0;
            let Some(state) = knote.state().or_else(|| is_deleted.then(Knote::stale)) else {
                continue;
            };
            events.push(knote.event(state));
            knote.reset();
            if is_deleted {
                self.remove(key);
            } else if knote.flags & EV_CLEAR != 0 {
                // The next change is waited for.
            } else if knote.flags & EV_DISPATCH != 0 {
                knote.is_disabled = true;
            } else {
                knote.is_queued = true;
                self.queued.push_back(key);
            }
        }
    }
}
