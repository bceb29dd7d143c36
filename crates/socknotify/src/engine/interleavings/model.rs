//! A backend in memory, whose sockets become readable when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::WAITERS;
use crate::engine::{
    Arm, ArmError, Backend, DESCRIPTOR, Interest, Mode, Report, Reports, Table, ThisThread, Wait,
    Waited,
};
use crate::os::Fd;
use crate::support::sync::{LocalKey, thread_local};
use crate::{Entry, Error, EventFilter, Events, RegistrationError};

/// A backend that watches sockets which become readable when a test says so.
pub(crate) struct Model {
    kernel: Mutex<Kernel>,
    first_id: u64,
    waiters: usize,
    /// Whether it watches sockets, or descriptors that are none.
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Sockets,
    Others,
}

pub(super) const KINDS: [Kind; 2] = [Kind::Sockets, Kind::Others];

#[derive(Default)]
pub(super) struct Kernel {
    pub(super) sockets: [Socket; 2],
    woken: bool,
    /// A time is over that was asked for, as every time is soon.
    alarmed: bool,
    closed: bool,
    /// Threads that wait, oldest first.
    waiters: Vec<Arc<Condvar>>,
}

#[derive(Default)]
pub(super) struct Socket {
    /// How many other sockets have had the number.
    generation: u64,
    readable: bool,
    pub(super) interest: Option<Interest>,
    /// It is to be reported.
    is_due: bool,
    /// It was, and is not again until it is armed.
    is_silent: bool,
}

impl Kernel {
    fn is_due(&self) -> bool {
        self.woken || self.alarmed || self.closed || self.sockets.iter().any(|socket| socket.is_due)
    }

    /// Wake the newest waiter, if there is something for it.
    fn call(&mut self) {
        if self.is_due() {
            if let Some(newest) = self.waiters.pop() {
                newest.notify_one();
            }
        }
    }
}

impl Model {
    pub(super) fn new(kind: Kind) -> Self {
        Model {
            kernel: Mutex::new(Kernel::default()),
            first_id: Self::ids(4),
            waiters: WAITERS.load(Ordering::Relaxed),
            kind,
        }
    }

    /// The first of so many identities. The owners of sockets outlive one run of the model; so none may come twice.
    fn ids(count: u64) -> u64 {
        static IDS: AtomicU64 = AtomicU64::new(0);
        IDS.fetch_add(count, Ordering::Relaxed)
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    pub(crate) fn drain(&self, socket: u32) {
        let socket = &mut self.kernel().sockets[socket as usize];
        socket.readable = false;
        socket.is_due = false;
    }

    pub(crate) fn is_readable(&self, socket: u32) -> bool {
        self.kernel().sockets[socket as usize].readable
    }

    pub(crate) fn become_readable(&self, number: u32) {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[number as usize];
        socket.readable = true;
        socket.is_due = socket.interest.is_some() && !socket.is_silent;
        kernel.call();
    }

    /// Close a socket, and give its number to another.
    pub(super) fn replace(&self, number: u32) {
        let socket = &mut self.kernel().sockets[number as usize];
        *socket = Socket {
            generation: socket.generation + 1,
            ..Socket::default()
        };
    }
}

impl Backend for Model {
    type Memory = ();

    #[inline]
    fn thread() -> &'static LocalKey<ThisThread<Self>> {
        thread_local!(static THREAD: ThisThread<Model> = ThisThread::default());
        &THREAD
    }

    const KEEPS: bool = true;
    const SHARES: bool = true;

    fn waiters(&self) -> usize {
        self.waiters
    }

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        if self.kind == Kind::Others {
            return Err(RegistrationError::NotASocket);
        }
        let generation = self.kernel().sockets[fd.0 as usize].generation;
        Ok(self.first_id + u64::from(fd.0) + 2 * generation)
    }

    fn identify_any(&self, fd: Fd) -> Result<u64, RegistrationError> {
        match self.kind {
            Kind::Sockets => self.identify(fd),
            Kind::Others => Ok(DESCRIPTOR | Self::ids(1)),
        }
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let mut kernel = self.kernel();
        let socket = &mut kernel.sockets[interest.fd.0 as usize];
        if !is_new && socket.interest.is_none() {
            return Err(ArmError::Stale);
        }
        socket.interest = Some(*interest);
        socket.is_silent = !interest.is_enabled();
        socket.is_due = socket.readable
            && interest.is_enabled()
            && interest.word.filter().contains(EventFilter::IN);
        kernel.call();
        Ok(())
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        let socket = &mut self.kernel().sockets[fd.0 as usize];
        socket.is_due = false;
        let interest = socket.interest.take();
        interest.map(drop).ok_or(ArmError::Stale)
    }

    fn wait(
        &self,
        table: &Table,
        (): &mut (),
        batch: &mut [Arm],
        wait: &Wait,
        _packets: &mut Vec<Entry>,
        delivered: &mut impl Reports,
    ) -> Waited {
        let mut waited = Waited::default();
        let mut timeout = wait.timeout;
        for arm in batch {
            if arm.is_armed && !self.is_readable(arm.interest.fd.0) {
                continue;
            }
            // What is ready goes to the kernel's list.
            arm.outcome = table.arm_latest(&mut arm.interest, |interest| self.arm(interest, false));
            if arm.outcome != crate::engine::Outcome::Armed {
                timeout = Some(Duration::ZERO);
            }
        }
        if wait.room == 0 {
            return waited;
        }
        if timeout.is_some_and(|timeout| !timeout.is_zero()) {
            // A time is over at any moment, also if another thread takes what is due now.
            if !self.kernel().is_due() {
                thread::yield_now();
            }
            timeout = Some(Duration::ZERO);
        }
        let mut kernel = self.kernel();
        while !kernel.is_due() && timeout != Some(Duration::ZERO) {
            let waiter = Arc::new(Condvar::new());
            kernel.waiters.push(Arc::clone(&waiter));
            kernel = waiter.wait(kernel).unwrap();
        }
        waited.asked = true;
        waited.woken = std::mem::take(&mut kernel.woken);
        waited.alarmed = std::mem::take(&mut kernel.alarmed);
        let mut reports = Vec::new();
        for socket in kernel.sockets.iter_mut().filter(|socket| socket.is_due) {
            let Some(interest) = socket.interest else {
                continue;
            };
            if reports.len() == wait.room {
                waited.is_full = true;
                break;
            }
            socket.is_due = false;
            socket.is_silent = interest.word.mode() == Mode::Once;
            reports.push(Report {
                fd: interest.fd,
                generation: interest.word.generation(),
                events: Events::IN,
                polled: None,
            });
        }
        // As a kernel does: what is left is the next waiter's.
        kernel.call();
        drop(kernel);
        reports.into_iter().for_each(|report| delivered.add(report));
        waited
    }

    fn wake(&self) {
        let mut kernel = self.kernel();
        kernel.woken = true;
        kernel.call();
    }

    fn set_alarm(&self, _: Duration) -> Result<(), Error> {
        let mut kernel = self.kernel();
        kernel.alarmed = true;
        kernel.call();
        Ok(())
    }

    fn close(&self) {
        let mut kernel = self.kernel();
        kernel.closed = true;
        kernel.call();
    }
}
