//! A port that sockets are registered with: the caller's, with the library's engine on it.
//!
//! The driver's polls complete on the caller's port itself. Whoever dequeues there has the engine translate them.

use std::cell::Cell;
use std::os::windows::io::RawSocket;
use std::time::Duration;

use port::{
    CompletionPort, Entry, Error, EventFilter, Operation, Registration, RegistrationError, Trigger,
    interface,
};
use windows_sys::Win32::Foundation::{
    ERROR_SUCCESS, HANDLE, NTSTATUS, STATUS_INVALID_HANDLE, STATUS_INVALID_PARAMETER,
    STATUS_SUCCESS, STATUS_TIMEOUT,
};
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::kernel;

/// How many packets one call dequeues at most.
const ROOM: usize = 65_536;

thread_local! {
    /// Memory of this thread's calls.
    static ENTRIES: Cell<Vec<Entry>> = const { Cell::new(Vec::new()) };
}

pub(super) struct Port {
    port: CompletionPort,
}

impl Port {
    pub(super) fn new(handle: HANDLE) -> Result<Self, u32> {
        let handle = kernel::duplicate(handle)?;
        let port = interface::port_on(handle).map_err(Error::code)?;
        Ok(Port { port })
    }

    /// The library's own handle of it.
    pub(super) fn handle(&self) -> HANDLE {
        interface::kernel_port(&self.port)
    }

    /// Whether the program has several handles of it.
    pub(super) fn has_duplicates(&self) -> bool {
        // One of the program's, and the library's.
        kernel::handles(self.handle()) > 2
    }

    /// Release the threads that wait in it, and free its sockets.
    pub(super) fn close(&self) {
        self.port.close();
    }

    /// Have a thread that waits in the system's call return from there.
    pub(super) fn wake(&self) {
        interface::wake(&self.port);
    }

    /// Whether a packet is one that only the library can read.
    pub(super) fn is_own(packet: &OVERLAPPED_ENTRY) -> bool {
        interface::is_own(packet)
    }

    /// From here on, [`closing`](Self::closing) is called before any handle is closed.
    pub(super) fn say_closes() {
        interface::say_closes();
    }

    /// A handle is about to be closed, which may be a socket that is registered.
    pub(super) fn closing(handle: HANDLE) {
        interface::closing(handle.addr());
    }

    /// Packets that were taken from it by the system's call.
    pub(super) fn feed(&self, packets: &[OVERLAPPED_ENTRY]) {
        interface::feed(&self.port, packets);
    }

    /// Apply entries, and dequeue. Each entry gets its result.
    ///
    /// # Safety
    ///
    /// There are so many entries, and there is room for so many packets. Neither need be aligned.
    pub(super) unsafe fn process(
        &self,
        registrations: *mut SOCK_NOTIFY_REGISTRATION,
        registration_count: u32,
        packets: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let places = (0..registration_count as usize).map(|index| {
            // SAFETY: the caller's promise.
            unsafe { registrations.add(index) }
        });
        // SAFETY: as above.
        let read = |place: *mut SOCK_NOTIFY_REGISTRATION| unsafe { place.read_unaligned() };
        let mut batch: Vec<_> = places
            .clone()
            .map(|place| convert(&read(place)).0)
            .collect();
        // SAFETY: as above.
        let outcome = unsafe { self.dequeue_with(&mut batch, packets, room, timeout) };
        for (place, registration) in places.zip(&batch) {
            let mut entry = read(place);
            let result = convert(&entry).1.and_then(|()| registration.result());
            entry.registrationResult =
                result.map_or_else(RegistrationError::code, |()| ERROR_SUCCESS);
            // SAFETY: as above.
            unsafe { place.write_unaligned(entry) };
        }
        outcome
    }

    /// Dequeue, for one of the system's calls.
    ///
    /// # Safety
    ///
    /// There is room for so many packets, and for their number.
    pub(super) unsafe fn dequeue(
        &self,
        packets: *mut OVERLAPPED_ENTRY,
        room: u32,
        count: *mut u32,
        timeout: Option<Duration>,
    ) -> NTSTATUS {
        if room == 0 {
            return STATUS_INVALID_PARAMETER;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let outcome = self.dequeue_with(&mut [], packets, room, timeout);
            count.write_unaligned(outcome.unwrap_or(0));
            match outcome {
                Ok(_) => STATUS_SUCCESS,
                Err(Error::TimedOut) => STATUS_TIMEOUT,
                Err(Error::Closed) => kernel::ABANDONED,
                Err(_) => STATUS_INVALID_HANDLE,
            }
        }
    }

    /// # Safety
    ///
    /// As for [`process`](Self::process).
    unsafe fn dequeue_with(
        &self,
        batch: &mut [Registration<'_>],
        packets: *mut OVERLAPPED_ENTRY,
        room: u32,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let room = (room as usize).min(ROOM);
        // While the thread ends, its memory may be gone.
        let mut memory = ENTRIES.try_with(Cell::take).unwrap_or_default();
        if memory.len() < room {
            memory.resize(room, Entry::default());
        }
        let outcome = self.port.process(batch, &mut memory[..room], timeout);
        let outcome = outcome.map(|entries| {
            for (index, entry) in entries.iter().enumerate() {
                let packet = OVERLAPPED_ENTRY {
                    lpCompletionKey: entry.completion_key,
                    lpOverlapped: std::ptr::with_exposed_provenance_mut(entry.overlapped),
                    Internal: interface::status(entry) as u32 as usize,
                    dwNumberOfBytesTransferred: entry.transferred,
                };
                // SAFETY: the caller's promise. There are no more than there is room for.
                unsafe { packets.add(index).write_unaligned(packet) };
            }
            entries.len() as u32
        });
        let _ = ENTRIES.try_with(|kept| kept.set(memory));
        outcome
    }
}

/// An entry for the engine, and why it is refused if the engine would take more than the function.
fn convert(
    entry: &SOCK_NOTIFY_REGISTRATION,
) -> (Registration<'static>, Result<(), RegistrationError>) {
    // SAFETY: the caller passes its own sockets.
    let mut registration = unsafe { Registration::from_raw(entry.socket as RawSocket) };
    let filter = EventFilter::from_bits_retain(entry.eventFilter);
    let trigger = Trigger::from_bits_retain(entry.triggerFlags);
    let operation = Operation::from_bits_retain(entry.operation);
    let is_enable = operation == Operation::ENABLE;
    if is_enable && !EventFilter::ALL.contains(filter) {
        return (registration, Err(RegistrationError::InvalidFilter));
    }
    if is_enable && !Trigger::ALL.contains(trigger) {
        return (registration, Err(RegistrationError::InvalidTrigger));
    }
    registration.operation = operation;
    registration.completion_key = entry.completionKey.addr();
    registration.event_filter = filter;
    registration.trigger = trigger;
    (registration, Ok(()))
}
