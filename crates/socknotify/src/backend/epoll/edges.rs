//! The beginning of edges, when a registration is enabled.
//!
//! If a socket is added to a set with `EPOLLET`, the kernel reports a condition that holds already as if it had
//! just begun to hold. The contract allows no notification of it. So if a condition holds, the socket is also added
//! to a second set, whose first report is dropped at once: from then on it reports only edges. When the port's set,
//! which all threads share, first reports the socket, the second set says whether there was an edge.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::sys::{self, Data, Errno, Event};
use super::{arm_error, conditions};
use crate::engine::{ArmError, Interest, Mode, Readiness};
use crate::lock::lock;

/// The interests whose first report is still to come.
pub(super) struct InitialEdges {
    set: OwnedFd,
    count: AtomicUsize,
    entries: Mutex<Entries>,
}

/// An interest whose first report is still to come.
struct Initial {
    data: Data,
    /// An edge was seen meanwhile.
    has_risen: bool,
}

#[derive(Default)]
struct Entries {
    initial: HashMap<u32, Initial>,
    events: Vec<Event>,
}

/// How many reports of the second set are fetched at once.
const BATCH: usize = 64;

impl InitialEdges {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(InitialEdges {
            set: sys::epoll_create()?,
            count: AtomicUsize::new(0),
            entries: Mutex::default(),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }

    /// Arm an edge-triggered interest by `control`.
    pub(super) fn arm(
        &self,
        interest: &Interest,
        control: impl FnOnce() -> Result<(), ArmError>,
    ) -> Result<(), ArmError> {
        let entries = &mut *self.lock();
        let initial = entries.initial.get(&interest.socket);
        let is_carried = initial.is_some_and(|initial| initial.data == Data::of(interest));
        if !is_carried && !holds(interest) {
            self.remove(entries, interest.socket);
            // What begins to hold from here on is an edge.
            return control();
        }
        let armed = match is_carried {
            true => control(),
            false => self.begin(entries, interest, control),
        };
        armed.inspect_err(|_| self.remove(entries, interest.socket))
    }

    /// Tell edges from what holds now, of a socket that is armed, until its next interest is reported.
    pub(super) fn carry(&self, interest: &Interest) {
        let entries = &mut *self.lock();
        if self.begin(entries, interest, || Ok(())).is_err() {
            // To arm it fails in the same way.
            self.remove(entries, interest.socket);
        }
        // What the second set has dropped, the port's set reports.
        sys::let_wake_ups_end(interest.socket);
    }

    /// Have the second set watch a socket that `control` adds to the port's set.
    fn begin(
        &self,
        entries: &mut Entries,
        interest: &Interest,
        control: impl FnOnce() -> Result<(), ArmError>,
    ) -> Result<(), ArmError> {
        self.remove(entries, interest.socket);
        let initial = Initial {
            data: Data::of(interest),
            has_risen: false,
        };
        entries.initial.insert(interest.socket, initial);
        // Before the first report can come.
        self.count.store(entries.initial.len(), Ordering::Release);
        control()?;
        self.add(interest).map_err(arm_error)?;
        // Drop the second set's first report.
        self.collect(entries);
        if let Some(initial) = entries.initial.get_mut(&interest.socket) {
            initial.has_risen = false;
        }
        Ok(())
    }

    /// Add a socket that the port's set has to the second set.
    ///
    /// The order matters. The kernel passes an edge to the sets that watch the socket, the latest first. So a thread
    /// that gets the edge from the port's set finds it in the second one too.
    fn add(&self, interest: &Interest) -> Result<(), Errno> {
        let flags = conditions::flags(interest.filter(), Mode::Edge);
        let data = Data::of(interest);
        let control = |call| sys::control(&self.set, call, interest.socket, flags, data);
        let delete = || control(libc::EPOLL_CTL_DEL);
        match control(libc::EPOLL_CTL_ADD) {
            // Another socket may have had the number, and live on.
            Err(libc::EEXIST) => delete().and_then(|()| control(libc::EPOLL_CTL_ADD)),
            done => done,
        }
    }

    /// The interest of this number has ended.
    pub(super) fn forget(&self, socket: u32) {
        if !self.is_empty() {
            self.remove(&mut self.lock(), socket);
        }
    }

    fn remove(&self, entries: &mut Entries, socket: u32) {
        if entries.initial.remove(&socket).is_some() {
            // If it was closed, the set has dropped it.
            let delete = libc::EPOLL_CTL_DEL;
            let _ = sys::control(&self.set, delete, socket, 0, Data::IGNORED);
            self.count.store(entries.initial.len(), Ordering::Release);
        }
    }

    /// Record the edges that the second set has seen.
    fn collect(&self, entries: &mut Entries) {
        let Entries { initial, events } = entries;
        loop {
            sys::wait(&self.set, events, BATCH, Some(Duration::ZERO));
            for event in &*events {
                let data = event.data();
                if let Some(initial) = initial.get_mut(&data.socket()) {
                    initial.has_risen |= initial.data == data;
                }
            }
            if events.len() < BATCH {
                return;
            }
        }
    }

    /// Drop the events of the port's set that only show what held already.
    pub(super) fn suppress(&self, events: &mut Vec<Event>) {
        if !events.iter().any(|event| event.data().is(Mode::Edge)) {
            return;
        }
        let mut entries = self.lock();
        self.collect(&mut entries);
        events.retain(|event| {
            let data = event.data();
            match entries.initial.get(&data.socket()) {
                Some(&Initial {
                    data: it,
                    has_risen,
                }) if it == data => {
                    self.remove(&mut entries, data.socket());
                    has_risen
                }
                _ => true,
            }
        });
    }
}

/// Whether a wanted condition holds, or may.
fn holds(interest: &Interest) -> bool {
    let mut poll = [conditions::question(interest, true)];
    let is_known = sys::poll_now(&mut poll).is_ok();
    conditions::answer(&poll[0], interest, is_known) != Readiness::NotReady
}
