//! Conditions that the kernel reports although nobody wants them, and those that it does not report.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Data, Epoll, Timer, conditions, sys};
use crate::engine::{ArmError, Followed, Interest, Mode, Report, Reports, Validity, Wanted};
use crate::lock::lock;

impl Epoll {
    /// A report showed nothing wanted: hang-ups cannot be masked out. It would be repeated, or be the last one. So from
    /// here on the socket is watched for changes. False if the number stands for another socket than the reported one.
    pub(super) fn quiet(&self, wanted: &Wanted, interest: &Interest) -> bool {
        if !matches!(interest.mode(), Mode::Once | Mode::Level) {
            return true;
        }
        let followed = wanted.follow(interest, |current| {
            if current != interest {
                return self.arm_late(current);
            }
            let flags = conditions::flags(interest.filter(), Mode::Edge);
            let data = Data::of(interest).quiet();
            let modify = libc::EPOLL_CTL_MOD;
            let _members = self.members.read().unwrap_or_else(PoisonError::into_inner);
            let done = sys::control(&self.set, modify, interest.socket, flags, data);
            done.map_err(super::arm_error)
        });
        followed != Followed::Done(Err(ArmError::Stale))
    }

    /// Report the Unix sockets that have connected.
    pub(super) fn report_silent(&self, wanted: &Wanted, reports: &mut Reports) {
        let mut sockets = self.silent.lock();
        sockets.retain(|&socket| {
            let Some(interest) = wanted.get(socket) else {
                return false;
            };
            let mut poll = [conditions::question(&interest, true)];
            if sys::poll_now(&mut poll).is_err() {
                return true;
            }
            let flags = conditions::found(poll[0].revents);
            let Some(events) = conditions::of_socket(flags, socket) else {
                return true;
            };
            if poll[0].revents & libc::POLLNVAL == 0
                && events.intersects(interest.filter().wanted())
            {
                if interest.mode() == Mode::Level {
                    // A wanted condition holds: from now on it is watched as requested.
                    self.follow_late(wanted, &interest);
                }
                reports.reports.push(Report {
                    socket,
                    generation: interest.generation(),
                    events,
                    // The poll only knows the number.
                    validity: Validity::Doubtful,
                });
            }
            false
        });
        self.silent.count.store(sockets.len(), Ordering::Release);
        if sockets.is_empty() {
            self.timer.stop_ticking();
        }
    }
}

/// Unix stream sockets that are watched and not connected. When they connect, the kernel reports nothing. So they are
/// polled from time to time.
#[derive(Default)]
pub(super) struct Silent {
    count: AtomicUsize,
    sockets: Mutex<Vec<u32>>,
}

impl Silent {
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.sockets)
    }

    /// A socket that is not connected was reported.
    pub(super) fn note(&self, socket: u32, timer: &Timer) {
        if !sys::is_local(socket) {
            return;
        }
        let mut sockets = self.lock();
        if !sockets.contains(&socket) {
            sockets.push(socket);
            self.count.store(sockets.len(), Ordering::Release);
            timer.tick();
        }
    }
}
