//! [`Request`]: an operation on a file, as it is passed to the system.

#![allow(unsafe_code, reason = "memory that belongs to the operation")]

use std::fs::File;
use std::io;
#[cfg(unix)]
use std::mem::offset_of;
use std::ptr::NonNull;
use std::slice;

use super::system::{self, Nature, RawFile};

/// The maximum number of bytes of one transfer.
pub(super) const MOST: u32 = 1 << 30;

/// A read of no more may be done at once.
#[cfg(target_os = "linux")]
const AT_ONCE_BYTES: u32 = 16 << 10;

/// The maximum of one system call that reads.
const PIECE: usize = 256 << 10;

/// The kind of operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// The memory is the [parts](Part).
    ReadParts,
    WriteParts,
    SyncAll,
    SyncData,
}

/// With which port a file is associated, where the system has to know it.
pub(super) type Association = Option<u64>;

/// An operation, as it is passed to the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) file: RawFile,
    pub(super) nature: Nature,
    #[cfg_attr(not(windows), allow(dead_code, reason = "only there it has a value"))]
    pub(super) association: Association,
    pub(super) kind: Kind,
    pub(super) memory: *mut u8,
    /// How many bytes, of all parts together.
    pub(super) length: u32,
    pub(super) parts: u32,
    pub(super) offset: u64,
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
    pub(super) fn with_file<R>(&self, work: impl FnOnce(&File) -> R) -> R {
        // SAFETY: the file is open, and not closed here.
        let file = unsafe { system::borrow(self.file) };
        work(&file)
    }

    /// The parts of its memory.
    ///
    /// # Safety
    ///
    /// It has parts, and they are valid.
    unsafe fn parts(&self) -> &[Part] {
        // SAFETY: by the promise. A vector is aligned also if it is empty.
        unsafe { slice::from_raw_parts(self.memory.cast(), self.parts as usize) }
    }

    /// Read all of it, if it is short and in memory: to copy so little takes no longer than to queue it. Some kernels say 0 where
    /// there is more, so the end of a file is not known here.
    ///
    /// # Safety
    ///
    /// The memory is valid, and nobody else uses it meanwhile.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn read_at_once(&self) -> bool {
        let is_short = (1..=AT_ONCE_BYTES).contains(&self.length);
        // A device that copies itself would be waited for.
        if self.kind != Kind::Read || !is_short || system::is_unbuffered(self.file) {
            return false;
        }
        // SAFETY: by the promise.
        let bytes = unsafe { slice::from_raw_parts_mut(self.memory, self.length as usize) };
        let read = self.with_file(|file| system::read_cached(file, bytes, self.offset));
        read == Some(bytes.len())
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
        let reads = matches!(self.kind, Kind::Read | Kind::ReadParts);
        if !reads {
            waits();
        }
        self.with_file(|file| {
            let whole = [Part::new(self.memory, self.length as usize)];
            let parts = match self.kind {
                Kind::SyncAll => return file.sync_all().map(|()| 0),
                Kind::SyncData => return file.sync_data().map(|()| 0),
                Kind::Read | Kind::Write => &whole,
                // SAFETY: by the promise.
                Kind::ReadParts | Kind::WriteParts => unsafe { self.parts() },
            };
            // The kernel may copy a whole call without letting another thread have the processor, and not every system writes more.
            let most = if reads { PIECE } else { MOST as usize };
            let mut done = 0;
            for (memory, length) in parts.iter().flat_map(|part| part.pieces(most)) {
                if done > 0 && reads && !goes_on() {
                    break;
                }
                let offset = self.offset + done as u64;
                // SAFETY: by the promise. Of what is written there is no reference that could change it.
                let count = unsafe {
                    if reads {
                        let bytes = slice::from_raw_parts_mut(memory, length);
                        read_at(file, bytes, offset, waits)
                    } else {
                        system::write_at(file, slice::from_raw_parts(memory, length), offset)
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
        })
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
            association: None,
            kind: Kind::Read,
            memory: memory.as_mut_ptr(),
            length: memory.len() as u32,
            parts: 0,
            offset,
        }
    }

    #[test]
    fn memory_without_bytes_needs_no_address() -> io::Result<()> {
        let file = tempfile::tempfile()?;
        for kind in [Kind::Read, Kind::Write] {
            let request = Request {
                file: system::raw(&file),
                nature: Nature::default(),
                association: None,
                kind,
                memory: std::ptr::null_mut(),
                length: 0,
                parts: 0,
                offset: 0,
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
        let mut parts = [Part::new(memory.as_mut_ptr(), memory.len())];
        let request = Request {
            kind: Kind::WriteParts,
            memory: parts.as_mut_ptr().cast(),
            length: MOST,
            parts: 1,
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
