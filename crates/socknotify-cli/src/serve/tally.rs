//! What the server counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::output;

/// Why a client was let go that would have stayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It sent nothing for too long.
    Idle,
    /// Its request was not complete in time, or it did not take its answers in time.
    Slow,
    /// What it sent was no request that is understood here.
    Garbage,
    /// The head of its request was too large.
    TooLarge,
    /// The connection broke.
    Reset,
    /// The system would not watch it.
    Refused,
    /// A file could not be read, or became shorter while it was sent.
    File,
    /// It was not finished when the time was over that the server has to end.
    Cut,
}

/// Numbers that all threads count, or that one of them has counted for itself.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) dropped: Dropped,
    pub(crate) requests: u64,
    pub(crate) notifications: u64,
    pub(crate) dequeues: u64,
}

/// Clients that were let go, by reason.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Dropped {
    idle: u64,
    slow: u64,
    garbage: u64,
    too_large: u64,
    reset: u64,
    refused: u64,
    file: u64,
    cut_off: u64,
}

impl Dropped {
    pub(crate) fn count(&mut self, reason: Reason) {
        self.count_all(reason, 1);
    }

    pub(crate) fn count_all(&mut self, reason: Reason, clients: usize) {
        *match reason {
            Reason::Idle => &mut self.idle,
            Reason::Slow => &mut self.slow,
            Reason::Garbage => &mut self.garbage,
            Reason::TooLarge => &mut self.too_large,
            Reason::Reset => &mut self.reset,
            Reason::Refused => &mut self.refused,
            Reason::File => &mut self.file,
            Reason::Cut => &mut self.cut_off,
        } += clients as u64;
    }

    fn total(&self) -> u64 {
        self.idle
            + self.slow
            + self.garbage
            + self.too_large
            + self.reset
            + self.refused
            + self.file
            + self.cut_off
    }
}

impl Counts {
    const NUMBERS: usize = 12;

    fn numbers(&mut self) -> [&mut u64; Self::NUMBERS] {
        let Dropped {
            idle,
            slow,
            garbage,
            too_large,
            reset,
            refused,
            file,
            cut_off,
        } = &mut self.dropped;
        [
            &mut self.accepted,
            &mut self.requests,
            &mut self.notifications,
            &mut self.dequeues,
            idle,
            slow,
            garbage,
            too_large,
            reset,
            refused,
            file,
            cut_off,
        ]
    }
}

/// The totals of all threads. A thread adds what it has counted once in a turn of its loop, so that
/// threads do not contend for one number with each request.
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; Counts::NUMBERS]);

impl Tally {
    /// Moves what a thread has counted into the totals.
    pub(crate) fn collect(&self, counts: &mut Counts) {
        for (total, number) in self.0.iter().zip(counts.numbers()) {
            if *number > 0 {
                total.fetch_add(std::mem::take(number), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn totals(&self) -> Counts {
        let mut counts = Counts::default();
        for (total, number) in self.0.iter().zip(counts.numbers()) {
            *number = total.load(Ordering::Relaxed);
        }
        counts
    }
}

/// The figures that the server reports.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Connections at this moment.
    pub(crate) open: usize,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// Lines that the access log has left out.
    pub(crate) unlogged: u64,
    /// Threads that have not ended when the server does.
    #[serde(skip)]
    pub(crate) left_behind: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            accepted,
            dropped,
            requests,
            notifications,
            dequeues,
        } = &self.counts;
        writeln!(f, "connections    {accepted:>12}")?;
        writeln!(f, "still open     {:>12}", self.open)?;
        writeln!(f, "requests       {requests:>12}")?;
        writeln!(f, "notifications  {notifications:>12}")?;
        writeln!(f, "dequeues       {dequeues:>12}")?;
        write!(f, "dropped        {:>12}", dropped.total())?;
        let reasons = [
            ("idle", dropped.idle),
            ("slow", dropped.slow),
            ("garbage", dropped.garbage),
            ("too large", dropped.too_large),
            ("reset", dropped.reset),
            ("refused", dropped.refused),
            ("file", dropped.file),
            ("cut off", dropped.cut_off),
        ];
        for (reason, count) in reasons.into_iter().filter(|&(_, count)| count > 0) {
            write!(f, "\n  {reason:<12} {count:>12}")?;
        }
        if self.unlogged > 0 {
            write!(f, "\nnot logged     {:>12}", self.unlogged)?;
        }
        if self.left_behind > 0 {
            let threads = output::count(self.left_behind, "thread");
            write!(f, "\nleft behind    {threads:>12}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_adds_up() {
        let tally = Tally::default();
        for _ in 0..3 {
            let mut counts = Counts {
                accepted: 1,
                requests: 2,
                ..Counts::default()
            };
            counts.dropped.count(Reason::TooLarge);
            tally.collect(&mut counts);
            tally.collect(&mut counts);
        }
        let totals = tally.totals();
        assert_eq!((totals.accepted, totals.requests), (3, 6));
        assert_eq!((totals.dropped.too_large, totals.dropped.total()), (3, 3));
    }
}
