//! Whether a number still stands for the socket that was registered under it.
//!
//! `epoll` watches open files, not descriptor numbers. Closing a number ends the watch only if no other
//! number, here or in a forked child, stands for the same file. So a report says that a file is ready, and
//! not that the number stands for it still. Two calls tell:
//!
//! - `epoll_ctl` knows files by their numbers: to add one again fails with `EEXIST` if this very file was
//!   added under this very number. It is certain, and one call for each socket.
//! - `poll` sees many numbers at once, and whether what they stand for is as was reported. Where it is not,
//!   the engine compares the sockets' identities. It does not see that a number was closed without REMOVE,
//!   its socket lives on elsewhere, and what has the number now is unregistered and ready in the same way.
//!
//! So a few reports are checked by the first, and many by the second, with one of them by the first in turn.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::{Data, Epoll, Errno, Memory, conditions, sys};
use crate::Events;
use crate::engine::{Mode, Report, Reports, Validity, Wait, Wanted};

/// How many reports are checked one by one, which is no dearer than together.
const ONE_BY_ONE: usize = 3;

impl Epoll {
    /// `epoll_ctl` — Whether the number stands for the socket that is in the set under it.
    ///
    /// `generation`: of the interest that it is about.
    ///
    /// # Errors
    ///
    /// What kept the kernel from saying so.
    pub(super) fn is_armed(
        &self,
        wanted: &Wanted,
        socket: u32,
        generation: u32,
    ) -> Result<bool, Errno> {
        let _probe = self.probe();
        match sys::control(&self.set, libc::EPOLL_CTL_ADD, socket, 0, Data::IGNORED) {
            Err(libc::EEXIST) => Ok(true),
            // It is closed, or something that cannot be in this set.
            Err(libc::EBADF | libc::EPERM | libc::EINVAL | libc::ELOOP) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => {
                // It is another one, and was not meant to be added.
                let delete = libc::EPOLL_CTL_DEL;
                let _ = sys::control(&self.set, delete, socket, 0, Data::IGNORED);
                // If a thread has armed it meanwhile, that is undone now. Of edges, one too many may come.
                let current = wanted.get(socket);
                if let Some(current) = current.filter(|it| it.generation() != generation) {
                    self.initial_edges.forget(socket);
                    let _ = wanted.follow(&current, |interest| self.add(interest));
                }
                Ok(false)
            }
        }
    }

    /// As long as this lives, no socket is in the set, or not in it, for the sake of a question.
    pub(super) fn probe(&self) -> MutexGuard<'_, ()> {
        self.probe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Find out the validity of reports, from the `first` on.
    pub(super) fn check(
        &self,
        wanted: &Wanted,
        wait: &Wait,
        memory: &mut Memory,
        reports: &mut Reports,
        first: usize,
    ) {
        let polls = &mut memory.polls;
        let reports = &mut reports.reports[first..];
        // Nobody closes a socket that the port owns, or that this call has borrowed.
        let is_doubted = |report: &Report| {
            report.validity == Validity::Valid
                && !wait.borrows(report.generation)
                && !Data::from_token(report.token).is(Mode::Kept)
        };
        polls.clear();
        for report in reports.iter().filter(|report| is_doubted(report)) {
            polls.push(libc::pollfd {
                fd: report.socket as i32,
                events: asked(report.events),
                revents: 0,
            });
        }
        if polls.is_empty() {
            return;
        }
        let count = polls.len();
        // The one that is asked about in any case.
        let sample = self.checks.fetch_add(1, Ordering::Relaxed) as usize % count;
        let is_known = count > ONE_BY_ONE && sys::poll_now(polls).is_ok();
        let doubted = reports.iter_mut().filter(|report| is_doubted(report));
        for (index, (report, poll)) in doubted.zip(&*polls).enumerate() {
            report.validity = if !is_known || index == sample {
                match self.is_armed(wanted, report.socket, report.generation) {
                    Ok(true) => Validity::Valid,
                    Ok(false) => Validity::Closed,
                    Err(_) => Validity::Doubtful,
                }
            } else if poll.revents & libc::POLLNVAL != 0 {
                Validity::Closed
            } else if holds(report, poll) {
                Validity::Valid
            } else {
                Validity::Doubtful
            };
        }
    }
}

fn asked(events: Events) -> i16 {
    let mut asked = 0;
    for (event, flag) in [
        (Events::IN, libc::POLLIN),
        (Events::OUT, libc::POLLOUT),
        (Events::HANGUP, libc::POLLRDHUP),
    ] {
        if events.contains(event) {
            asked |= flag;
        }
    }
    asked
}

/// Whether what a number stands for is in the state that was reported.
fn holds(report: &Report, poll: &libc::pollfd) -> bool {
    if poll.revents == poll.events && conditions::is_plain(conditions::found(poll.revents)) {
        return true;
    }
    conditions::of_socket(conditions::found(poll.revents), report.socket)
        .is_some_and(|found| found.contains(report.events))
}
