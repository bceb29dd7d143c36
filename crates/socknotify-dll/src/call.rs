//! One call of `ProcessSocketNotifications`.

use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{ERROR_SUCCESS, HANDLE, WAIT_TIMEOUT};
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::Threading::INFINITE;

use super::bridge::Bridge;
use super::kernel;

pub(super) struct Call<'a> {
    bridge: &'a Bridge,
    dequeues: bool,
    /// Registrations that this call removes, and whose last notification is yet to be sent.
    leaving: Vec<u32>,
}

impl<'a> Call<'a> {
    pub(super) fn new(bridge: &'a Bridge, dequeues: bool) -> Self {
        Call {
            bridge,
            dequeues,
            leaving: Vec::new(),
        }
    }

    /// Apply one entry. Returns its result.
    pub(super) fn register(&mut self, entry: &SOCK_NOTIFY_REGISTRATION) -> u32 {
        let leaving = self.dequeues.then_some(&mut self.leaving);
        self.bridge.register(entry, leaving)
    }

    /// Take what is there, or wait for it.
    ///
    /// # Safety
    ///
    /// There is room for as many entries, and for their number.
    pub(super) unsafe fn dequeue(
        &mut self,
        port: HANDLE,
        entries: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: u32,
        received: *mut u32,
    ) -> u32 {
        let end = Instant::now() + Duration::from_millis(timeout.into());
        self.bridge.arm_due();
        // SAFETY: the caller's promise.
        let take =
            |call: &mut Self, timeout| unsafe { call.take(port, entries, room, timeout, received) };
        if timeout == 0 {
            return match take(self, 0) {
                WAIT_TIMEOUT => {
                    self.bridge.catch_up();
                    take(self, 0)
                }
                outcome => outcome,
            };
        }
        // What is removed is to come with what waits, if that is taken at once.
        if !self.leaving.is_empty() {
            let outcome = take(self, 0);
            if outcome != WAIT_TIMEOUT {
                return outcome;
            }
        }
        loop {
            let left = match timeout {
                INFINITE => INFINITE,
                _ => {
                    let left = end.saturating_duration_since(Instant::now());
                    left.as_nanos().div_ceil(1_000_000) as u32
                }
            };
            let outcome = take(self, left);
            if outcome != WAIT_TIMEOUT || left == 0 {
                return outcome;
            }
        }
    }

    /// Take packets. It is a time-out also if all of them were out of date.
    ///
    /// # Safety
    ///
    /// As for [`dequeue`](Self::dequeue).
    unsafe fn take(
        &mut self,
        port: HANDLE,
        entries: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: u32,
        received: *mut u32,
    ) -> u32 {
        // SAFETY: the caller's promise. As many entries are written as the number says.
        unsafe {
            let mut count = 0;
            let outcome = kernel::take(port, entries, room, timeout, &mut count);
            if outcome == ERROR_SUCCESS {
                let places = (0..count as usize).map(|index| entries.add(index));
                let mut taken = places.map(|place| place.read_unaligned()).collect();
                self.bridge.taken(&mut taken);
                for (index, packet) in taken.iter().enumerate() {
                    entries.add(index).write_unaligned(*packet);
                }
                count = taken.len() as u32;
            } else {
                count = 0;
            }
            self.bridge.send_last(&self.leaving);
            self.leaving.clear();
            received.write_unaligned(count);
            match outcome {
                ERROR_SUCCESS if count == 0 => WAIT_TIMEOUT,
                outcome => outcome,
            }
        }
    }
}
