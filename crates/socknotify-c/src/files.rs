//! Operations on files: `sn_read`, `sn_write`, and further functions for the Win32 names.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::{File, Metadata};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};

use socknotify::{Entry, Error, Origin, Overlapped};

use crate::call::{self, entry_point};
use crate::code::{self, Code};

/// What is to be done.
#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

/// `ReadFile`, with an offset.
///
/// # Safety
///
/// What [`CompletionPort::read_at`](socknotify::CompletionPort::read_at) asks for. Null pointers are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_read(
    port: *mut c_void,
    file: c_int,
    memory: *mut c_void,
    length: u32,
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> u32 {
    let memory = ptr::slice_from_raw_parts_mut(memory.cast(), length as usize);
    // SAFETY: the caller vouches for it.
    entry_point(|| unsafe { begin(Kind::Read, port, file, memory, completion_key, overlapped) })
}

/// `WriteFile`, with an offset.
///
/// # Safety
///
/// As for [`sn_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_write(
    port: *mut c_void,
    file: c_int,
    memory: *const c_void,
    length: u32,
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> u32 {
    let memory = ptr::slice_from_raw_parts_mut(memory.cast_mut().cast(), length as usize);
    // SAFETY: the caller vouches for it.
    entry_point(|| unsafe { begin(Kind::Write, port, file, memory, completion_key, overlapped) })
}

/// # Safety
///
/// As for [`sn_read`].
unsafe fn begin(
    kind: Kind,
    port: *mut c_void,
    file: c_int,
    memory: *mut [u8],
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> Result<(), Code> {
    check(overlapped)?;
    if memory.is_null() {
        return Err(code::INVALID_PARAMETER);
    }
    if file < 0 {
        return Err(code::INVALID_HANDLE);
    }
    overlapped.expose_provenance();
    let port = call::port(port)?;
    // SAFETY: it is not -1, and if it is not open, the port finds out.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: the caller vouches for it.
    let begun = unsafe {
        match kind {
            Kind::Read => port.read_at(file, memory, completion_key, overlapped),
            Kind::Write => port.write_at(file, memory, completion_key, overlapped),
        }
    };
    begun.map_err(|error| match error {
        Error::Os(number) => of_number(number),
        error => error.code(),
    })
}

/// Whether the pointer can be one.
fn check(overlapped: *const Overlapped) -> Result<(), Code> {
    match overlapped.is_null() || !overlapped.is_aligned() {
        true => Err(code::INVALID_PARAMETER),
        false => Ok(()),
    }
}

/// `CancelIoEx`.
///
/// # Safety
///
/// `overlapped` is null or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_cancel(port: *mut c_void, overlapped: *const Overlapped) -> u32 {
    entry_point(|| {
        check(overlapped)?;
        // SAFETY: the caller vouches for it.
        match unsafe { call::port(port)?.cancel_operation(overlapped) } {
            true => Ok(()),
            false => Err(code::NOT_FOUND),
        }
    })
}

/// `GetOverlappedResult`, without a wait.
///
/// # Safety
///
/// `overlapped` is null or can be read, and `transferred` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_result(overlapped: *const Overlapped, transferred: *mut u32) -> u32 {
    entry_point(|| {
        let transferred = NonNull::new(transferred).ok_or(code::INVALID_PARAMETER)?;
        check(overlapped)?;
        // SAFETY: the caller vouches for it.
        let outcome = outcome(unsafe { &*overlapped });
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { transferred.write_unaligned(outcome.unwrap_or(0)) };
        outcome.map(drop)
    })
}

/// How many bytes, or why not.
fn outcome(overlapped: &Overlapped) -> Result<u32, Code> {
    match overlapped.result() {
        Ok(_) if overlapped.is_end_of_file() => Err(code::HANDLE_EOF),
        Ok(count) => Ok(count as u32),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(code::IO_INCOMPLETE),
        Err(error) => Err(error.raw_os_error().map_or(code::GEN_FAILURE, of_number)),
    }
}

/// What a packet that was dequeued says of its operation. Other packets have nothing to say.
pub(crate) fn of_packet(packet: &Entry) -> Result<(), Code> {
    if packet.origin() != Some(Origin::Completion) {
        return Ok(());
    }
    let overlapped: *const Overlapped = ptr::with_exposed_provenance(packet.overlapped);
    // SAFETY: who has begun the operation has promised that it is there until its packet was dequeued, which is now.
    outcome(unsafe { &*overlapped }).map(drop)
}

/// The code for an error number of the system.
fn of_number(number: i32) -> Code {
    match number {
        libc::ECANCELED => code::OPERATION_ABORTED,
        libc::EBADF | libc::ESPIPE | libc::EISDIR => code::INVALID_HANDLE,
        libc::EACCES | libc::EPERM | libc::EROFS => code::ACCESS_DENIED,
        libc::ENOSPC | libc::EDQUOT => code::DISK_FULL,
        libc::EFBIG => code::FILE_TOO_LARGE,
        libc::EIO => code::IO_DEVICE,
        libc::ENOMEM => code::NOT_ENOUGH_MEMORY,
        libc::EINVAL | libc::EFAULT => code::INVALID_PARAMETER,
        _ => code::GEN_FAILURE,
    }
}

/// The ports of files that are associated with one.
type Associations = RwLock<BTreeMap<c_int, Association>>;

/// Null until the first file is associated, in a process and in each forked child. What this is set to is never freed.
static ASSOCIATIONS: AtomicPtr<Associations> = AtomicPtr::new(ptr::null_mut());

/// Those that a forked child has inherited, and does not use: it cannot use its parent's ports, and a thread that only
/// the parent has may hold the lock.
static INHERITED: AtomicPtr<Associations> = AtomicPtr::new(ptr::null_mut());

extern "C" fn forget_inherited() {
    let inherited = ASSOCIATIONS.swap(ptr::null_mut(), Ordering::AcqRel);
    if !inherited.is_null() {
        INHERITED.store(inherited, Ordering::Release);
    }
}

fn associations() -> &'static Associations {
    let mut present = ASSOCIATIONS.load(Ordering::Acquire);
    if present.is_null() {
        if INHERITED.load(Ordering::Acquire).is_null() {
            // SAFETY: the handler only stores to atomics, which is allowed in a forked child. Twice does no harm.
            unsafe { libc::pthread_atfork(None, None, Some(forget_inherited)) };
        }
        let new = Box::into_raw(Box::default());
        let set = ASSOCIATIONS.compare_exchange(present, new, Ordering::AcqRel, Ordering::Acquire);
        present = set.map_or_else(
            |other| {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            },
            |_| new,
        );
    }
    // SAFETY: it is not null, and never freed.
    unsafe { &*present }
}

/// It ends with its file, whose number may become another's.
#[derive(Clone, Copy)]
struct Association {
    port: usize,
    completion_key: usize,
    identity: (u64, u64),
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn metadata(file: c_int) -> io::Result<Metadata> {
    if file < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is not closed here; and if it is not open, the system says so.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(file) });
    file.metadata()
}

/// `CreateIoCompletionPort`, for a file.
#[unsafe(no_mangle)]
pub extern "C" fn sn_associate(port: *mut c_void, file: c_int, completion_key: usize) -> u32 {
    entry_point(|| {
        drop(call::port(port)?);
        let metadata = metadata(file).map_err(|_| code::INVALID_HANDLE)?;
        if !metadata.is_file() {
            return Err(code::INVALID_HANDLE);
        }
        let association = Association {
            port: port.addr(),
            completion_key,
            identity: identity(&metadata),
        };
        let mut associations = self::associations()
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Those of ports that were closed are of no use.
        associations.retain(|_, it| call::port(ptr::without_provenance_mut(it.port)).is_ok());
        associations.insert(file, association);
        Ok(())
    })
}

/// `ReadFile`
///
/// # Safety
///
/// As for [`sn_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_read_associated(
    file: c_int,
    memory: *mut c_void,
    length: u32,
    overlapped: *mut Overlapped,
) -> u32 {
    let memory = ptr::slice_from_raw_parts_mut(memory.cast(), length as usize);
    // SAFETY: the caller vouches for it.
    entry_point(|| unsafe { begin_associated(Kind::Read, file, memory, overlapped) })
}

/// `WriteFile`
///
/// # Safety
///
/// As for [`sn_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_write_associated(
    file: c_int,
    memory: *const c_void,
    length: u32,
    overlapped: *mut Overlapped,
) -> u32 {
    let memory = ptr::slice_from_raw_parts_mut(memory.cast_mut().cast(), length as usize);
    // SAFETY: the caller vouches for it.
    entry_point(|| unsafe { begin_associated(Kind::Write, file, memory, overlapped) })
}

/// # Safety
///
/// As for [`sn_read`].
unsafe fn begin_associated(
    kind: Kind,
    file: c_int,
    memory: *mut [u8],
    overlapped: *mut Overlapped,
) -> Result<(), Code> {
    let metadata = metadata(file).map_err(|_| code::INVALID_HANDLE)?;
    let associations = self::associations()
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    let found = associations.get(&file).copied();
    drop(associations);
    let found = found.filter(|it| it.identity == identity(&metadata));
    let association = found.ok_or(code::INVALID_PARAMETER)?;
    let port = ptr::without_provenance_mut(association.port);
    let key = association.completion_key;
    // SAFETY: the caller vouches for it.
    unsafe { begin(kind, port, file, memory, key, overlapped) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// With a port of this process.
    fn associates(file: &File) -> bool {
        let mut port = ptr::null_mut();
        // SAFETY: there is room for the handle.
        let made = unsafe { crate::sn_create_port(1, &mut port) };
        made == code::SUCCESS && sn_associate(port, file.as_raw_fd(), 7) == code::SUCCESS
    }

    #[test]
    fn a_forked_child_waits_for_no_lock_of_its_parent() -> io::Result<()> {
        let file = File::open(std::env::current_exe()?)?;
        let locked = associations().write();
        // SAFETY: the child makes these calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the signal ends a child that waits.
            unsafe {
                libc::alarm(10);
                libc::_exit(i32::from(!associates(&file)));
            }
        }
        drop(locked);
        let mut status = -1;
        // SAFETY: there is room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        Ok(())
    }
}
