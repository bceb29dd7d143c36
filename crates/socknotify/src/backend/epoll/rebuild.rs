//! Rebuilding the set, to drop sockets that cannot be deleted from it.
//!
//! If a number is closed and its socket lives on under a duplicate, or in a child process, the kernel keeps
//! reporting it, and there is no number left to delete it by. Its reports are [stale](Stale). If they are repeated, the
//! set is rebuilt under the same number, and the threads that wait in the old one move to the new one.

use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Data, Epoll, Errno, Memory, sys};
use crate::Events;
use crate::engine::{Interest, Mode, Report, Reports, Validity, Wait, Wanted};
use crate::lock::lock;

/// Counts stale reports.
///
/// A few are normal: threads had them in hand when a registration ended. But those have one generation
/// each. So one stale report is chosen as the suspect. If it comes several times, its socket lives on somewhere.
#[derive(Debug)]
pub(super) struct Stale {
    suspect: Option<Data>,
    /// How many times it was reported, and how many others since.
    times: u32,
    others: u32,
    /// After how many others one of them becomes the suspect.
    patience: u32,
    /// How many times the suspect has to be reported for a rebuild.
    limit: u32,
}

impl Default for Stale {
    fn default() -> Self {
        Stale {
            suspect: None,
            times: 0,
            others: 0,
            patience: 1024,
            limit: 4,
        }
    }
}

impl Stale {
    /// Count a stale report. True if the set should be rebuilt.
    pub(super) fn note(&mut self, data: Data) -> bool {
        if self.suspect == Some(data) {
            self.times += 1;
            self.others = 0;
        } else if self.suspect.is_none() || self.others >= self.patience {
            // There may be several, each reported now and then.
            self.patience = self.patience.saturating_mul(2);
            self.suspect = Some(data);
            self.times = 1;
            self.others = 0;
        } else {
            self.others += 1;
        }
        self.times >= self.limit
    }

    /// Start again after a rebuild, or after one that failed in this many steps. The next one comes after as many stale
    /// reports, so that failed attempts cost no more than these.
    fn start_over(&mut self, steps: u32) {
        let start = Stale::default();
        *self = Stale {
            limit: start.limit.max(steps),
            ..start
        };
    }
}

/// Room for reports of sockets that are not registered any more.
const MORE: usize = 4096;

impl Epoll {
    pub(super) fn spare(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        lock(&self.spare)
    }

    /// Have the exposed set show this one. Call it with the lock on the spare set held.
    pub(super) fn expose(&self) -> Result<(), Errno> {
        let flags = libc::EPOLLIN as u32;
        match sys::add(&self.exposed, &self.set, flags, Data::IGNORED) {
            Err(libc::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// Rebuild the set. Edges that the old one has seen are added to the reports.
    ///
    /// If the kernel has no room for a second set, nothing changes, and the next attempt waits for more stale
    /// reports.
    pub(super) fn rebuild(&self, wanted: &Wanted, memory: &mut Memory, reports: &mut Reports) {
        let mut spare = self.spare();
        reports.wants_exclusive = false;
        let mut steps = 0;
        if let Ok(new) = spare.take().map_or_else(sys::epoll_create, Ok) {
            if self.rebuild_as(&new, wanted, memory, reports).is_err() {
                steps = u32::try_from(wanted.iter().count()).unwrap_or(u32::MAX);
            }
            // The next spare set gets the same number. A new number could be that of a registered socket that was
            // closed, whose registration ends only when another socket has the number.
            let next = sys::epoll_create().and_then(|next| sys::replace(&new, &next));
            *spare = next.is_ok().then_some(new);
        }
        self.stale().start_over(steps);
    }

    /// A report is stale.
    #[cold]
    pub(super) fn on_stale(
        &self,
        wanted: &Wanted,
        data: Data,
        current: Option<Interest>,
        reports: &mut Reports,
    ) {
        if let Some(current) = current.filter(|it| it.mode() != Mode::Edge) {
            // A thread that re-arms a batch may not have armed it yet.
            self.follow_late(wanted, &current);
        }
        reports.wants_exclusive |= self.stale().note(data);
    }

    fn stale(&self) -> MutexGuard<'_, Stale> {
        lock(&self.stale)
    }

    fn rebuild_as(
        &self,
        new: &OwnedFd,
        wanted: &Wanted,
        memory: &mut Memory,
        reports: &mut Reports,
    ) -> Result<(), Errno> {
        self.add_own(new)?;
        // Nothing else changes meanwhile: the engine's lock is held.
        let is_edge = |interest: &Interest| interest.mode() == Mode::Edge;
        for interest in wanted.iter().filter(is_edge) {
            self.add_again(new, &interest, reports)?;
        }
        // What the new set reports of them now either held all the time, or the old one reports it too, if only later.
        let room = wanted.iter().count() + MORE;
        let mut events = Vec::new();
        sys::wait(new, &mut events, room, Some(Duration::ZERO));
        for event in &events {
            sys::let_wake_ups_end(event.data().socket());
        }
        // An edge that both sets have seen is queued once.
        self.fetch(&self.set, room, wanted, memory, reports);
        self.fetch(new, room, wanted, memory, reports);
        // These come last: their reports are handled in the set that they are in.
        for interest in wanted.iter().filter(|it| !is_edge(it)) {
            self.add_again(new, &interest, reports)?;
        }
        self.replace_set(new)
    }

    /// Add an interest of this set to a new one; or report that its number stands for another socket.
    fn add_again(
        &self,
        new: &OwnedFd,
        interest: &Interest,
        reports: &mut Reports,
    ) -> Result<(), Errno> {
        let Interest { socket, .. } = *interest;
        add_to(new, interest)?;
        // Adding uses the number, which can become another socket's at any time. If the number stands for the
        // socket in the old set after that, it did before.
        if !self.is_armed(socket)? {
            let delete = libc::EPOLL_CTL_DEL;
            let _ = sys::control(new, delete, socket, 0, Data::IGNORED);
            reports.reports.push(Report {
                socket,
                generation: interest.generation(),
                events: Events::empty(),
                validity: Validity::Closed,
            });
        }
        Ok(())
    }

    /// Add all present reports of a set.
    fn fetch(
        &self,
        set: &OwnedFd,
        room: usize,
        wanted: &Wanted,
        memory: &mut Memory,
        reports: &mut Reports,
    ) {
        sys::wait(set, &mut memory.events, room, Some(Duration::ZERO));
        self.read(wanted, &mut memory.events, &Wait::NOW, reports);
    }

    /// Put a new set in the place of this one.
    fn replace_set(&self, new: &OwnedFd) -> Result<(), Errno> {
        // In the old set the waker stays signalled, so threads that wait there leave,
        sys::signal(&self.waker);
        let flags = libc::EPOLLIN as u32;
        let modify = libc::EPOLL_CTL_MOD;
        sys::control_own(&self.set, modify, &self.waker, flags, Data::WAKER)?;
        // and threads that wait from here on use the new one, under the old number. Another loop must not see
        // the waker of the old set, which a forked child may keep open.
        let is_exposed = self.is_exposed.load(Ordering::Acquire);
        if is_exposed {
            let delete = libc::EPOLL_CTL_DEL;
            let _ = sys::control_own(&self.exposed, delete, &self.set, 0, Data::IGNORED);
        }
        sys::replace(&self.set, new)?;
        if is_exposed {
            let _ = self.expose();
        }
        // If there was a wake-up at this moment, the new set has dropped it, and perhaps a tick of the timer.
        sys::signal(&self.waker);
        self.timer.renew();
        Ok(())
    }
}

fn add_to(set: &OwnedFd, interest: &Interest) -> Result<(), Errno> {
    let flags = super::conditions::flags(interest.filter(), interest.mode());
    let data = match interest.mode() {
        // Its first report is dropped here, so that all others are edges.
        Mode::Edge => Data::of(interest).quiet(),
        _ => Data::of(interest),
    };
    match sys::control(set, libc::EPOLL_CTL_ADD, interest.socket, flags, data) {
        // It was closed just now.
        Err(error @ (libc::ENOMEM | libc::ENOSPC)) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use super::*;

    fn data(socket: u32, generation: u32) -> Data {
        Data::new(socket, generation)
    }

    #[test]
    fn a_socket_that_lives_on_is_found_among_thousands() {
        let mut stale = Stale::default();
        let found = (0..20).find(|_| (0..10_000).any(|socket| stale.note(data(socket, 1))));
        assert!(found.is_some());
    }

    #[test]
    fn reports_that_come_late_are_of_one_generation_each() {
        let mut stale = Stale::default();
        assert!((0..100_000).all(|generation| !stale.note(data(1, generation))));
    }

    #[test]
    fn a_try_in_vain_costs_no_more_than_the_reports_before_it() {
        let mut stale = Stale::default();
        for (steps, times) in [(0, 4), (3, 4), (100, 100), (1000, 1000), (0, 4)] {
            stale.start_over(steps);
            assert!((1..times).all(|_| !stale.note(data(1, 1))));
            assert!(stale.note(data(1, 1)));
        }
    }
}
