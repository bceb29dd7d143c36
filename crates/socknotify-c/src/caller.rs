//! The caller's memory: the structures in it, and access that asks nothing of it but to be there.

use socknotify::{Entry, EventFilter, Operation, Registration, Trigger, interface};

use crate::code::{self, Code};

/// `SOCK_NOTIFY_REGISTRATION`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SockNotifyRegistration {
    /// A descriptor.
    pub socket: usize,
    /// What comes back in each notification.
    pub completion_key: usize,
    /// `SOCK_NOTIFY_REGISTER_EVENT_*`
    pub event_filter: u16,
    /// `SOCK_NOTIFY_OP_*`
    pub operation: u8,
    /// `SOCK_NOTIFY_TRIGGER_*`
    pub trigger_flags: u8,
    /// Where the outcome of this entry is written.
    pub registration_result: u32,
}

/// `OVERLAPPED_ENTRY`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct OverlappedEntry {
    /// The key of the registration, or of the posted packet.
    pub completion_key: usize,
    /// 0, or as posted.
    pub overlapped: usize,
    /// Always 0 here.
    pub internal: usize,
    /// The event mask, or as posted.
    pub transferred: u32,
}

/// `sn_port_state`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PortState {
    /// Of the structure, in bytes, as the program knows it; then, as the library does.
    pub size: u32,
    /// The concurrency value.
    pub concurrency: u32,
    /// Threads that have dequeued and not handled.
    pub running: u32,
    /// Threads that wait for a packet.
    pub waiting: u32,
    /// Packets in the queue.
    pub queued: u32,
    /// Registrations.
    pub registrations: u32,
    /// Threads that may run now.
    pub limit: u32,
}

/// What ENABLE takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Socket,
    Descriptor,
}

impl SockNotifyRegistration {
    /// The library's form of it.
    pub(crate) fn to_registration(self, kind: Kind) -> Registration<'static> {
        // No descriptor is negative: a value that is too large for one fails its entry.
        let socket = i32::try_from(self.socket).unwrap_or(-1);
        // SAFETY: whose socket it is, is for the caller in C to know.
        let mut registration = unsafe { Registration::from_raw(socket) };
        registration.completion_key = self.completion_key;
        registration.event_filter = EventFilter::from_bits_retain(self.event_filter);
        registration.operation = Operation::from_bits_retain(self.operation);
        registration.trigger = Trigger::from_bits_retain(self.trigger_flags);
        match kind {
            Kind::Socket => registration,
            Kind::Descriptor => interface::any_descriptor(registration),
        }
    }
}

impl From<Entry> for OverlappedEntry {
    fn from(entry: Entry) -> Self {
        OverlappedEntry {
            completion_key: entry.completion_key,
            overlapped: entry.overlapped,
            internal: 0,
            transferred: entry.transferred,
        }
    }
}

/// An array in the caller's memory, of plain values. It may be misaligned, and others may overlap it.
#[derive(Debug)]
pub(crate) struct CallerArray<T> {
    first: *mut T,
    len: usize,
}

impl<T> Clone for CallerArray<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CallerArray<T> {}

impl<T: Copy> CallerArray<T> {
    /// An array without elements is null, and no other is; nor does any wrap around the end of memory.
    ///
    /// # Safety
    ///
    /// Otherwise, that many elements from `first` on are there, as long as the array is used.
    pub(crate) unsafe fn new(first: *mut T, len: u32) -> Result<Self, Code> {
        let len = len as usize;
        let fits = len
            .checked_mul(size_of::<T>())
            .filter(|&size| size <= isize::MAX as usize)
            .is_some_and(|size| first.addr().checked_add(size).is_some());
        if first.is_null() != (len == 0) || !fits {
            return Err(code::INVALID_PARAMETER);
        }
        Ok(CallerArray { first, len })
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies of all elements, in order.
    pub(crate) fn values(self) -> impl ExactSizeIterator<Item = T> {
        // SAFETY: the index is within the array, which is there.
        (0..self.len).map(move |index| unsafe { self.first.add(index).read_unaligned() })
    }

    pub(crate) fn write(self, index: usize, value: T) {
        assert!(index < self.len);
        // SAFETY: the index is within the array, which is there.
        unsafe { self.first.add(index).write_unaligned(value) }
    }
}

impl CallerArray<SockNotifyRegistration> {
    /// Write the outcome of one entry, and leave the rest of it as it is.
    pub(crate) fn set_result(self, index: usize, result: Code) {
        assert!(index < self.len);
        // SAFETY: the index is within the array, which is there; no reference is made on the way.
        unsafe {
            (&raw mut (*self.first.add(index)).registration_result).write_unaligned(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::ptr;

    use super::*;

    #[test]
    fn the_layouts_are_those_of_the_windows_headers() {
        const WORD: usize = size_of::<usize>();
        type R = SockNotifyRegistration;
        let offsets = [
            offset_of!(R, socket),
            offset_of!(R, completion_key),
            offset_of!(R, event_filter),
            offset_of!(R, operation),
            offset_of!(R, trigger_flags),
            offset_of!(R, registration_result),
            size_of::<R>(),
        ];
        let two = 2 * WORD;
        assert_eq!(offsets, [0, WORD, two, two + 2, two + 3, two + 4, two + 8]);

        type E = OverlappedEntry;
        let offsets = [
            offset_of!(E, completion_key),
            offset_of!(E, overlapped),
            offset_of!(E, internal),
            offset_of!(E, transferred),
            size_of::<E>(),
        ];
        assert_eq!(offsets, [0, WORD, 2 * WORD, 3 * WORD, 4 * WORD]);
    }

    #[test]
    fn an_array_is_null_exactly_if_it_is_empty() {
        let mut value = 7_u32;
        let array = |first, len| {
            // SAFETY: nothing is read from what comes of it.
            unsafe { CallerArray::<u32>::new(first, len) }.map(CallerArray::len)
        };
        assert_eq!(array(&mut value, 1), Ok(1));
        assert_eq!(array(ptr::null_mut(), 0), Ok(0));
        assert_eq!(array(ptr::null_mut(), 1), Err(code::INVALID_PARAMETER));
        assert_eq!(array(&mut value, 0), Err(code::INVALID_PARAMETER));
    }

    #[test]
    fn an_array_does_not_wrap_around_the_end_of_memory() {
        let end = ptr::without_provenance_mut::<u32>(usize::MAX - 7);
        // SAFETY: nothing is read from what comes of it.
        assert!(unsafe { CallerArray::new(end, 1) }.is_ok());
        // SAFETY: as above.
        assert!(unsafe { CallerArray::new(end, 2) }.is_err());
    }

    #[test]
    fn misaligned_arrays_are_read_and_written() {
        let mut bytes = [0_u8; 9];
        // SAFETY: there are two values' worth of bytes from the second byte on.
        let array = unsafe { CallerArray::new(bytes.as_mut_ptr().add(1).cast::<u32>(), 2) };
        let array = array.expect("a good array");
        array.write(0, 0x0101_0101);
        array.write(1, 0x0202_0202);
        assert_eq!(
            array.values().collect::<Vec<_>>(),
            [0x0101_0101, 0x0202_0202]
        );
        assert_eq!(bytes, [0, 1, 1, 1, 1, 2, 2, 2, 2]);
    }
}
