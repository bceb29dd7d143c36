//! [`Request`]: an operation on a file, as it is passed to the system.

#![allow(unsafe_code, reason = "memory that belongs to the operation")]

use std::fs::File;
use std::io;
#[cfg(unix)]
use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;

use super::helpers::Device;
use super::system::{self, RawFile};

/// The maximum number of bytes of one transfer.
pub(super) const MOST: u32 = 1 << 30;

/// A read of no more may be done at once.
#[cfg(target_os = "linux")]
const AT_ONCE_BYTES: usize = 16 << 10;

/// The maximum of one system call that reads.
const PIECE: usize = 256 << 10;

/// The kind of operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    SyncAll,
    SyncData,
}

/// What matters here of the system of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nature {
    /// The system can begin an operation on the file without waiting for anything.
    pub(super) is_systems: bool,
    /// With which port the file is associated, where the system has to know it.
    #[cfg_attr(not(windows), allow(dead_code, reason = "only there it has a value"))]
    pub(super) association: Option<u64>,
    /// What a thread may have to wait for, for how long nobody knows.
    pub(super) device: Option<Device>,
}

/// An operation, as it is passed to the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) file: RawFile,
    pub(super) nature: Nature,
    pub(super) kind: Kind,
    pub(super) memory: Memory,
    pub(super) offset: u64,
}

/// The memory of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The bytes, or an array of [parts](Part) of them, if there are any.
    pub(super) first: *mut u8,
    /// How many bytes, of all parts together.
    pub(super) length: usize,
    pub(super) parts: usize,
}

impl Memory {
    pub(crate) fn of(bytes: *mut [u8]) -> Self {
        Memory {
            first: bytes.cast(),
            length: bytes.len(),
            parts: 0,
        }
    }

    pub(crate) fn of_parts(parts: &[Part]) -> Self {
        let lengths = parts.iter().map(|part| part.length);
        Memory {
            first: parts.as_ptr().cast_mut().cast(),
            length: lengths.fold(0, usize::saturating_add),
            parts: parts.len(),
        }
    }
}

/// `iovec` — A part of an operation's memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Part {
    pub(super) memory: *mut u8,
    pub(super) length: usize,
}

// SAFETY: as for a request.
unsafe impl Send for Part {}

impl Part {
    pub(super) fn new(memory: *mut u8, length: usize) -> Self {
        Part { memory, length }
    }

    /// Pieces of no more than so many bytes, of which one may have none.
    fn pieces(self, most: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let Part { memory, length } = self;
        (0..length.max(1)).step_by(most).map(move |at| {
            // A slice has an address even if it has no bytes.
            let memory = match length {
                0 => NonNull::dangling().as_ptr(),
                _ => memory.wrapping_add(at),
            };
            (memory, most.min(length - at))
        })
    }
}

#[cfg(unix)]
const _: () = assert!(
    size_of::<Part>() == size_of::<libc::iovec>()
        && offset_of!(Part, memory) == offset_of!(libc::iovec, iov_base)
        && offset_of!(Part, length) == offset_of!(libc::iovec, iov_len)
);

// SAFETY: its maker promises that nobody else uses its memory until the operation is complete.
unsafe impl Send for Request {}

impl Request {
    /// Read all of it, if it is short and in memory: to copy so little takes no longer than to queue it. Some kernels say 0 where
    /// there is more, so the end of a file is not known here.
    ///
    /// # Safety
    ///
    /// The memory is valid, and nobody else uses it meanwhile.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn read_at_once(&self) -> bool {
        let memory = self.memory;
        let is_short = memory.parts == 0 && (1..=AT_ONCE_BYTES).contains(&memory.length);
        // A device that copies itself would be waited for.
        if self.kind != Kind::Read || !is_short || system::is_unbuffered(self.file) {
            return false;
        }
        // SAFETY: by the promise, as the file is open.
        unsafe {
            let bytes = slice::from_raw_parts_mut(memory.first, memory.length);
            let read = system::read_cached(&system::borrow(self.file), bytes, self.offset);
            read == Some(memory.length)
        }
    }

    /// The system does not tell what is in memory.
    ///
    /// # Safety
    ///
    /// Nothing is asked for.
    #[cfg(not(target_os = "linux"))]
    pub(super) unsafe fn read_at_once(&self) -> bool {
        false
    }

    /// Perform it, and wait for it. A long read ends between two pieces if it is not to go on. It says when it is about to wait
    /// for a device.
    ///
    /// # Safety
    ///
    /// The memory is valid, and nobody else uses it meanwhile.
    pub(super) unsafe fn perform(
        &self,
        goes_on: &mut dyn FnMut() -> bool,
        waits: &dyn Fn(),
    ) -> io::Result<usize> {
        let memory = self.memory;
        let reads = self.kind == Kind::Read;
        if !reads {
            waits();
        }
        // SAFETY: by the promise, as the file is open.
        let file = unsafe { system::borrow(self.file) };
        let whole = [Part::new(memory.first, memory.length)];
        let parts = match self.kind {
            Kind::SyncAll => return file.sync_all().map(|()| 0),
            Kind::SyncData => return file.sync_data().map(|()| 0),
            _ if memory.parts == 0 => &whole,
            // SAFETY: by the promise.
            _ => unsafe { slice::from_raw_parts(memory.first.cast::<Part>(), memory.parts) },
        };
        // The kernel may copy a whole call without letting another thread have the processor, and not every system writes more.
        let most = if reads { PIECE } else { MOST as usize };
        let mut done = 0;
        for (memory, length) in parts.iter().flat_map(|part| part.pieces(most)) {
            if done > 0 && length > 0 && reads && !goes_on() {
                break;
            }
            let offset = self.offset + done as u64;
            // SAFETY: by the promise. Of what is written there is no reference that could change it.
            let count = unsafe {
                if reads {
                    let bytes = slice::from_raw_parts_mut(memory, length);
                    read_at(&file, bytes, offset, waits)
                } else {
                    system::write_at(&file, slice::from_raw_parts(memory, length), offset)
                }
            };
            let count = match count {
                // What was done is reported first.
                Err(_) if done > 0 => break,
                count => count?,
            };
            done += count;
            if count < length {
                break;
            }
        }
        Ok(done)
    }
}

/// `pread` — What is in memory first, and only for what is not the thread waits.
fn read_at(file: &File, bytes: &mut [u8], offset: u64, waits: &dyn Fn()) -> io::Result<usize> {
    let mut done = 0;
    loop {
        match system::read_cached(file, &mut bytes[done..], offset + done as u64) {
            // The end of the file. Linux 5.9 and 5.10 may say so elsewhere, too.
            Some(0) => break,
            Some(count) => done += count,
            None => {
                waits();
                break;
            }
        }
        if done == bytes.len() {
            return Ok(done);
        }
    }
    match system::read_at(file, &mut bytes[done..], offset + done as u64) {
        Ok(count) => Ok(done + count),
        // What was done is reported first.
        Err(_) if done > 0 => Ok(done),
        Err(error) => Err(error),
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use super::*;

    #[derive(Default)]
    struct Counted {
        goes_on: bool,
        pieces: Cell<usize>,
        waits: Cell<usize>,
    }

    impl Counted {
        fn perform(&self, request: &Request) -> io::Result<usize> {
            let mut goes_on = || {
                self.pieces.set(self.pieces.get() + 1);
                self.goes_on
            };
            let waits = || self.waits.set(self.waits.get() + 1);
            // SAFETY: each test has the memory.
            unsafe { request.perform(&mut goes_on, &waits) }
        }

        fn new(goes_on: bool) -> Self {
            Counted {
                goes_on,
                ..Self::default()
            }
        }
    }

    /// A file of this length, and what is in it.
    fn file_of(length: usize) -> io::Result<(File, Vec<u8>)> {
        let mut file = tempfile::tempfile()?;
        let content: Vec<u8> = (0..length).map(|index| (index / 1000) as u8).collect();
        file.write_all(&content)?;
        Ok((file, content))
    }

    fn read_request(file: &File, memory: &mut [u8], offset: u64) -> Request {
        Request {
            file: system::raw(file),
            nature: Nature::default(),
            kind: Kind::Read,
            memory: Memory::of(memory),
            offset,
        }
    }

    #[test]
    fn memory_without_bytes_needs_no_address() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        for kind in [Kind::Read, Kind::Write] {
            let none = std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0);
            let request = Request {
                kind,
                memory: Memory::of(none),
                ..read_request(&file, &mut [], 0)
            };
            assert_eq!(Counted::new(true).perform(&request)?, 0);
        }
        Ok(())
    }

    #[cfg(all(unix, target_pointer_width = "64"))]
    #[test]
    fn a_part_that_is_longer_than_one_transfer_is_written_in_pieces() -> io::Result<()> {
        let file = File::options().write(true).open("/dev/null")?;
        let mut memory = vec![0; MOST as usize + 1];
        let parts = [Part::new(memory.as_mut_ptr(), memory.len())];
        let request = Request {
            kind: Kind::Write,
            memory: Memory::of_parts(&parts),
            ..read_request(&file, &mut [], 0)
        };
        assert_eq!(Counted::new(true).perform(&request)?, memory.len());
        Ok(())
    }

    #[test]
    fn a_long_read_is_made_of_pieces_between_which_it_can_end() -> io::Result<()> {
        const LENGTH: usize = 2 * PIECE + 5;
        let (file, content) = file_of(LENGTH)?;
        for (length, offset) in [
            (LENGTH, 0),
            (3 * PIECE, 0),
            (2 * PIECE, 5),
            (PIECE, 0),
            (7, 0),
        ] {
            let mut memory = vec![0; length];
            let request = read_request(&file, &mut memory, offset as u64);
            let progress = Counted::new(true);
            let read = progress.perform(&request)?;
            assert_eq!(read, length.min(LENGTH - offset));
            assert_eq!(memory[..read], content[offset..][..read]);
            assert_eq!(progress.pieces.get(), length.div_ceil(PIECE) - 1);
            let progress = Counted::new(false);
            let read = progress.perform(&request)?;
            assert_eq!(read, length.min(PIECE));
            assert_eq!(progress.pieces.get(), usize::from(length > PIECE));
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_for_what_is_not_in_memory_a_read_waits() -> io::Result<()> {
        use std::os::unix::fs::FileExt;

        const LENGTH: usize = 256 << 10;
        let (file, content) = file_of(LENGTH)?;
        let can_tell = system::read_cached(&file, &mut [0], 0).is_some();
        let read = |length: usize| {
            let mut memory = vec![0; length];
            let request = read_request(&file, &mut memory, 0);
            let progress = Counted::new(true);
            let count = progress.perform(&request).expect("it can be read");
            assert_eq!(memory[..count], content);
            progress.waits.get() > 0
        };
        for length in [LENGTH, LENGTH + 5, 2 * PIECE + LENGTH] {
            assert_eq!(read(length), !can_tell, "{length}");
        }
        // The first page is in memory, and the others are not, as a rule.
        file.sync_all()?;
        let evict = || {
            for advice in [libc::POSIX_FADV_DONTNEED, libc::POSIX_FADV_RANDOM] {
                // SAFETY: no argument is a pointer.
                unsafe { libc::posix_fadvise(system::raw(&file), 0, 0, advice) };
            }
            file.read_exact_at(&mut [0], 0)
        };
        evict()?;
        let is_evicted = system::read_cached(&file, &mut [0], LENGTH as u64 / 2).is_none();
        // The system may keep what it is still at work on.
        let mut tries = 0..10;
        let waits = tries.any(|_| {
            evict().expect("it can be read");
            read(LENGTH)
        });
        assert!(waits || !is_evicted);
        Ok(())
    }
}
