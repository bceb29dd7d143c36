//! Windows before build 20348, and Wine: polls of the socket driver.
//!
//! - A one-shot registration is one poll each time that it is armed, and nothing in between. So is a
//!   level-triggered one, and a connection that the port owns.
//! - An edge-triggered one is a poll too, begun again when a thread dequeues next. If a condition holds then, its
//!   [`Edges`](edges::Edges) tell whether it fell in between, and are watched if it did not.
//! - A wake-up is a packet, and so is whatever else completes on the port.
//!
//! A poll of a ready socket completes immediately, without a packet. The thread that began it takes the result if it
//! waits next, and has room for it. If not, it posts the packet itself.
//!
//! Polls refer to sockets, not to handles. [`closes`] knows which socket a handle's value refers to.
//!
//! The engine counts permits, so the kernel's limit is not used. To close, each woken thread posts again the packet that
//! wakes the next.
//!
//! # Arming again
//!
//! A socket has one poll that counts. If the socket is armed again for the same conditions, a poll that is pending stays.
//! Its result may be older than that, so what holds is then polled once more. A report is made for what is wanted when it
//! is dequeued: a thread that arms a socket all the time would otherwise make every report stale.
//!
//! Whoever arms a known registration begins the poll first, and then finds out, once for a batch, which sockets were
//! closed: one that is open after it was polled is the one that was polled.
//!
//! # Edges
//!
//! If a condition that was reported holds at the next poll too, it may have fallen in between, or not: to report it makes
//! every edge a level, and not to report it loses edges. The driver's record tells. If it did not fall, or if another
//! thread waits already, so that nobody would poll, the record is watched, by a packet for each edge, and the condition is
//! not polled until it was reported again. While a poll for it is pending, its record counts for nothing: the poll ends
//! with the next edge, which the record would report again. The record is read with each report, since otherwise it would
//! hold the edge that is reported.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

pub(crate) mod closes;
mod conditions;
mod device;
mod edge;
mod edges;
mod packets;
mod state;
mod winsock;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, HANDLE};
use windows_sys::Win32::Networking::WinSock::WSAEOPNOTSUPP;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use self::device::Poll;
use self::packets::{ALARM, CLOSED, Own, POLL, WAKE};
use self::state::{State, is_checked};
use crate::engine::{
    Arm, ArmError, Backend, Interest, Mode, Outcome, Report, Reports, Table, ThisThread, Wait,
    Waited,
};
use crate::os::Fd;
use crate::os::windows::codes;
use crate::os::windows::port::KernelPort;
use crate::support::lock::lock;
use crate::support::sync::{LocalKey, thread_local};
use crate::{Entry, Error, EventFilter, RegistrationError};

/// A completion port of the kernel, and the socket driver polled on it.
pub(crate) struct Afd {
    state: Mutex<State>,
    is_shared: bool,
    port: Arc<KernelPort>,
}

/// Memory of a call.
#[derive(Default)]
pub(crate) struct Memory {
    packets: Vec<OVERLAPPED_ENTRY>,
    ready: Vec<*mut Poll>,
    reports: Vec<Report>,
}

impl Afd {
    pub(crate) fn new() -> Result<Self, Error> {
        KernelPort::new()
            .and_then(|port| Self::on(port, false))
            .map_err(|error| codes::error(&error))
    }

    /// On this port. If it is shared, others post packets of their own to it, which come in turn.
    pub(crate) fn on(port: KernelPort, is_shared: bool) -> io::Result<Self> {
        let port = Arc::new(port);
        Ok(Afd {
            is_shared,
            state: Mutex::new(State::new(Arc::clone(&port))?),
            port,
        })
    }

    pub(crate) fn handle(&self) -> HANDLE {
        self.port.handle()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// `CreateIoCompletionPort` — Have operations on this handle complete on the port.
    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        let associated = self.port.associate(handle, key);
        associated.map_err(|error| codes::error(&error))
    }

    /// Packets that were taken from the port by somebody who cannot read them. The next thread that waits does.
    pub(crate) fn feed(&self, packets: &[OVERLAPPED_ENTRY]) {
        self.state().fed.extend(packets);
        self.wake();
    }

    /// Arm a batch. True if something could not be armed.
    fn arm_batch(&self, state: &mut State, table: &Table, batch: &mut [Arm]) -> bool {
        // The port arms levels again by itself: the number of a closed socket is not polled.
        let is_level = |interest: &Interest| interest.word.mode() == Mode::Level;
        if batch.iter().any(|arm| is_level(&arm.interest)) {
            closes::catch_up();
        }
        for arm in &mut *batch {
            arm.outcome = table.arm_latest(&mut arm.interest, |interest| {
                if is_level(interest) && state.has_closed(interest.fd) {
                    return Err(ArmError::Stale);
                }
                state.arm(interest, false)
            });
        }
        // A number may have been closed and used again until it was polled. If it was not closed by now, that socket
        // was polled.
        let is_unchecked = |arm: &Arm| arm.outcome == Outcome::Armed && !is_checked(&arm.interest);
        if batch.iter().any(is_unchecked) {
            closes::catch_up();
        }
        let mut has_failed = false;
        for arm in batch {
            if is_unchecked(arm) {
                if let Err(error) = state.check(arm.interest.fd) {
                    arm.outcome = Outcome::Failed(error);
                }
            }
            has_failed |= arm.outcome != Outcome::Armed;
        }
        has_failed
    }
}

impl Backend for Afd {
    type Memory = Memory;

    #[inline]
    fn thread() -> &'static LocalKey<ThisThread<Self>> {
        thread_local!(static THREAD: ThisThread<Afd> = ThisThread::default());
        &THREAD
    }

    const KEEPS: bool = false;
    // A socket has one record of its edges.
    const SHARES: bool = false;
    const CONDITIONS: EventFilter = EventFilter::ALL.union(EventFilter::PRIORITY);

    fn identify(&self, fd: Fd) -> Result<u64, RegistrationError> {
        // A handle that is no socket has no kind.
        winsock::kind(fd).map_err(|error| refusal(&error))?;
        if !winsock::is_base(fd).map_err(|error| refusal(&error))? {
            return Err(RegistrationError::Os(WSAEOPNOTSUPP));
        }
        closes::identify(fd).map_err(|error| refusal(&error))
    }

    fn arm(&self, interest: &Interest, is_new: bool) -> Result<(), ArmError> {
        let mut state = self.state();
        let mut armed = state.arm(interest, is_new);
        if armed.is_ok() && !is_new && !is_checked(interest) {
            closes::catch_up();
            armed = state.check(interest.fd);
        }
        state.leave();
        armed
    }

    fn disarm(&self, fd: Fd) -> Result<(), ArmError> {
        closes::catch_up();
        let mut state = self.state();
        let checked = state.check(fd);
        state.drop_record(fd);
        checked
    }

    fn wait(
        &self,
        table: &Table,
        memory: &mut Memory,
        batch: &mut [Arm],
        wait: &Wait,
        others: &mut Vec<Entry>,
        delivered: &mut impl Reports,
    ) -> Waited {
        let Memory {
            packets,
            ready,
            reports,
        } = memory;
        let mut waited = Waited::default();
        let mut state = self.state();
        let has_failed = !batch.is_empty() && self.arm_batch(&mut state, table, batch);
        if wait.room == 0 {
            state.leave();
            return waited;
        }
        let must_retry = state.poll_again();
        ready.append(&mut state.ready);
        if ready.is_empty() || !wait.may_skip || self.is_shared {
            let mut timeout = wait.timeout;
            if has_failed || !ready.is_empty() {
                timeout = Some(Duration::ZERO);
            } else if must_retry {
                timeout = Wait::until_retry(wait.timeout);
            }
            loop {
                if state.fed.is_empty() {
                    let waits = usize::from(timeout != Some(Duration::ZERO));
                    state.waiting += waits;
                    drop(state);
                    self.port.take(packets, wait.room, timeout);
                    state = self.state();
                    state.waiting -= waits;
                } else {
                    let count = state.fed.len().min(wait.room);
                    packets.clear();
                    packets.extend(state.fed.drain(..count));
                }
                waited.asked = true;
                waited.is_full = packets.len() >= wait.room;
                for packet in &*packets {
                    state.sort(table, packet, reports, others, &mut waited);
                }
                ready.append(&mut state.ready);
                let is_nothing = reports.is_empty()
                    && ready.is_empty()
                    && others.is_empty()
                    && !waited.woken
                    && !waited.alarmed;
                if !(is_nothing && waited.is_full) {
                    break;
                }
                // All were polls that do not count any more. There may be more packets behind them.
                timeout = Some(Duration::ZERO);
            }
        }
        // To end one may begin another one.
        while reports.len() + others.len() < wait.room {
            let Some(poll) = ready.pop().or_else(|| state.ready.pop()) else {
                break;
            };
            // SAFETY: it has no packet, and nobody else has taken it.
            reports.extend(unsafe { state.end_poll(table, poll) });
        }
        state.ready.append(ready);
        match reports.is_empty() && others.is_empty() {
            // It begins to wait again.
            true => state.post_ready(),
            false => state.leave(),
        }
        drop(state);
        reports.drain(..).for_each(|report| delivered.add(report));
        waited
    }

    fn wake(&self) {
        self.port.insist(WAKE.key(), 0);
    }

    fn prepare_alarm(&self) -> Result<(), Error> {
        self.port.alarm(ALARM.key()).map(drop)
    }

    fn set_alarm(&self, after: Duration) -> Result<(), Error> {
        self.port.alarm(ALARM.key())?.set(after);
        Ok(())
    }

    fn close(&self) {
        // Only one port at a time can record the edges of a socket.
        self.state().close();
        // Whoever dequeues it posts it again.
        self.port.insist(CLOSED.key(), 0);
    }
}

impl Drop for Afd {
    fn drop(&mut self) {
        let mut state = self.state();
        state.close();
        for poll in std::mem::take(&mut state.ready) {
            // SAFETY: these have no packets.
            unsafe { state.devices.end(poll) };
        }
        // The kernel uses the memory of the others until their packets were dequeued.
        let mut packets = Vec::new();
        let patience = Duration::from_secs(1);
        while state.devices.pending() > 0 {
            self.port.take(&mut packets, 256, Some(patience));
            if packets.is_empty() {
                break;
            }
            for packet in packets
                .iter()
                .filter(|packet| Own::of(packet.lpCompletionKey) == Some(POLL))
            {
                // SAFETY: under this key there are polls, and each packet is taken once.
                unsafe { state.devices.end(packet.lpOverlapped.cast::<Poll>()) };
            }
        }
    }
}

/// Whether a packet with this key is for this backend alone.
pub(crate) fn is_own(key: usize) -> bool {
    Own::of(key).is_some()
}

fn refusal(error: &io::Error) -> RegistrationError {
    match codes::code(error) {
        // The driver's error for a handle that is no socket.
        ERROR_INVALID_PARAMETER => RegistrationError::NotASocket,
        code => codes::refusal(code),
    }
}

#[cfg(test)]
mod tests;
