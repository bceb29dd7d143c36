//! One call of `ProcessSocketNotifications`.

use std::time::{Duration, Instant};

use windows_sys::Win32::Foundation::{ERROR_ABANDONED_WAIT_0, ERROR_SUCCESS, WAIT_TIMEOUT};
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::Threading::INFINITE;

use super::bridge::Bridge;
use super::kernel;

/// How often a waiting thread checks whether its port was closed, in milliseconds.
///
/// It waits with the library's handle, which must not be closed meanwhile.
const SLICE: u32 = 250;

pub(super) struct Call<'a> {
    bridge: &'a Bridge,
    dequeues: bool,
    /// Something was enabled, and may be ready.
    has_enabled: bool,
    /// Registrations that this call removes, and whose last notification was not sent yet.
    leaving: Vec<u32>,
}

impl<'a> Call<'a> {
    pub(super) fn new(bridge: &'a Bridge, dequeues: bool) -> Self {
        Call {
            bridge,
            dequeues,
            has_enabled: false,
            leaving: Vec::new(),
        }
    }

    /// Apply one entry. Returns its result.
    pub(super) fn register(&mut self, entry: &SOCK_NOTIFY_REGISTRATION) -> u32 {
        let leaving = self.dequeues.then_some(&mut self.leaving);
        let result = self.bridge.register(entry, leaving);
        self.has_enabled |= result == ERROR_SUCCESS;
        result
    }

    /// Have notifications of all ready sockets sent to the caller's port, for the next call that dequeues.
    pub(super) fn send_ready(&self) {
        if self.has_enabled {
            self.bridge.catch_up();
        }
    }

    /// Take packets, or wait for them.
    ///
    /// # Safety
    ///
    /// There is room for as many entries, and for their number.
    pub(super) unsafe fn dequeue(
        &mut self,
        entries: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: u32,
        received: *mut u32,
    ) -> u32 {
        let end = Instant::now() + Duration::from_millis(timeout.into());
        loop {
            self.bridge.arm_all();
            self.bridge.catch_up();
            let left = match timeout {
                INFINITE => INFINITE,
                _ => {
                    let left = end.saturating_duration_since(Instant::now());
                    left.as_nanos().div_ceil(1_000_000) as u32
                }
            };
            // A removal is merged with a queued packet, if that is taken at once.
            let slice = match self.leaving.is_empty() {
                true => left.min(SLICE),
                false => 0,
            };
            // SAFETY: the caller's promise.
            match unsafe { self.take(entries, room, slice, received) } {
                // All packets were out of date, and there may be more.
                None => {}
                Some(WAIT_TIMEOUT) if left > 0 => {}
                Some(outcome) => return outcome,
            }
            if self.bridge.is_closed() {
                return ERROR_ABANDONED_WAIT_0;
            }
        }
    }

    /// Take packets. `None` if all of them were out of date.
    ///
    /// # Safety
    ///
    /// As for [`dequeue`](Self::dequeue).
    unsafe fn take(
        &mut self,
        entries: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: u32,
        received: *mut u32,
    ) -> Option<u32> {
        // SAFETY: the caller's promise. As many entries are written as the number says.
        unsafe {
            let mut count = 0;
            let outcome = kernel::take(self.bridge.port(), entries, room, timeout, &mut count);
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
            (outcome != ERROR_SUCCESS || count > 0).then_some(outcome)
        }
    }
}
