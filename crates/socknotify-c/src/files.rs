//! Operations on files: `sn_read`, `sn_write`, and further functions for the Win32 names.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::{File, Metadata};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use socknotify::{CompletionPort, Entry, Error, Overlapped};

use crate::call::{self, entry_point};
use crate::code::{self, Code};
use crate::process::Process;

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
    if memory.is_null() {
        return Err(code::INVALID_PARAMETER);
    }
    begin_by(port, file, overlapped, |port, file| {
        // SAFETY: the caller vouches for it.
        unsafe {
            match kind {
                Kind::Read => port.read_at(file, memory, completion_key, overlapped),
                Kind::Write => port.write_at(file, memory, completion_key, overlapped),
            }
        }
    })
}

fn begin_by(
    port: *mut c_void,
    file: c_int,
    overlapped: *mut Overlapped,
    begin: impl FnOnce(&CompletionPort, BorrowedFd<'_>) -> Result<(), Error>,
) -> Result<(), Code> {
    check(overlapped)?;
    if file < 0 {
        return Err(code::INVALID_HANDLE);
    }
    overlapped.expose_provenance();
    let port = call::port(port)?;
    // SAFETY: it is not -1, and if it is not open, the port finds out.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    begin(&port, file).map_err(|error| match error {
        Error::Os(number) => of_number(number),
        error => error.code(),
    })
}

/// `preadv`, with a packet.
///
/// # Safety
///
/// What [`CompletionPort::read_vectored_at`](socknotify::CompletionPort::read_vectored_at) asks for. Null pointers are
/// refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_readv(
    port: *mut c_void,
    file: c_int,
    parts: *const libc::iovec,
    count: u32,
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> u32 {
    entry_point(|| {
        let parts = self::parts(parts.cast::<IoSliceMut<'static>>(), count)?;
        begin_by(port, file, overlapped, |port, file| {
            // SAFETY: the caller vouches for it; and the standard library has parts of this layout.
            unsafe { port.read_vectored_at(file, parts, completion_key, overlapped) }
        })
    })
}

/// `pwritev`, with a packet.
///
/// # Safety
///
/// As for [`sn_readv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_writev(
    port: *mut c_void,
    file: c_int,
    parts: *const libc::iovec,
    count: u32,
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> u32 {
    entry_point(|| {
        let parts = self::parts(parts.cast::<IoSlice<'static>>(), count)?;
        begin_by(port, file, overlapped, |port, file| {
            // SAFETY: as above.
            unsafe { port.write_vectored_at(file, parts, completion_key, overlapped) }
        })
    })
}

/// `fsync` and `fdatasync`, with a packet.
///
/// # Safety
///
/// What [`CompletionPort::sync`](socknotify::CompletionPort::sync) asks for. Null pointers are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_sync(
    port: *mut c_void,
    file: c_int,
    only_data: c_int,
    completion_key: usize,
    overlapped: *mut Overlapped,
) -> u32 {
    entry_point(|| {
        begin_by(port, file, overlapped, |port, file| {
            // SAFETY: the caller vouches for it.
            unsafe { port.sync(file, only_data != 0, completion_key, overlapped) }
        })
    })
}

fn parts<P>(first: *const P, count: u32) -> Result<*const [P], Code> {
    if first.is_null() || !first.is_aligned() {
        return Err(code::INVALID_PARAMETER);
    }
    Ok(ptr::slice_from_raw_parts(first, count as usize))
}

/// Whether the pointer can be one.
fn check(overlapped: *const Overlapped) -> Result<(), Code> {
    match overlapped.is_null() || !overlapped.is_aligned() {
        true => Err(code::INVALID_PARAMETER),
        false => Ok(()),
    }
}

/// `CancelIoEx`. Nothing is read through the pointer.
#[unsafe(no_mangle)]
pub extern "C" fn sn_cancel(port: *mut c_void, overlapped: *const Overlapped) -> u32 {
    entry_point(|| {
        check(overlapped)?;
        match call::port(port)?.cancel_operation(overlapped) {
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

/// The system's own number of the error that an operation has ended with.
///
/// # Safety
///
/// `overlapped` is null or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sn_errno(overlapped: *const Overlapped) -> c_int {
    let mut number = libc::EINVAL;
    entry_point(|| {
        check(overlapped)?;
        // SAFETY: the caller vouches for it.
        let result = unsafe { (*overlapped).result() };
        // Only an operation in progress has an error without a number.
        number = result.map_or_else(
            |error| error.raw_os_error().unwrap_or(libc::EINPROGRESS),
            |_| 0,
        );
        Ok(())
    });
    number
}

/// How many bytes, or why not.
fn outcome(overlapped: &Overlapped) -> Result<u32, Code> {
    match overlapped.result() {
        Ok(_) if overlapped.is_end_of_file() => Err(code::HANDLE_EOF),
        Ok(count) => Ok(count as u32),
        // Only an operation in progress has no number. The system may say `EAGAIN`, too.
        Err(error) => Err(error.raw_os_error().map_or(code::IO_INCOMPLETE, of_number)),
    }
}

/// What a packet that was dequeued says of its operation. Other packets have nothing to say.
pub(crate) fn of_packet(packet: &Entry) -> Result<(), Code> {
    Overlapped::of_packet(packet).map_or(Ok(()), |overlapped| outcome(&overlapped).map(drop))
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
        libc::EOPNOTSUPP => code::NOT_SUPPORTED,
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

/// Only stores to atomics: it runs in a forked child.
pub(crate) fn forget_inherited() {
    let inherited = ASSOCIATIONS.swap(ptr::null_mut(), Ordering::AcqRel);
    if !inherited.is_null() {
        INHERITED.store(inherited, Ordering::Release);
    }
}

/// `None` before the first association of this process.
fn present() -> Option<&'static Associations> {
    // SAFETY: it is null or what `associations` has made, which is never freed.
    unsafe { ASSOCIATIONS.load(Ordering::Acquire).as_ref() }
}

fn associations() -> &'static Associations {
    // From now on, a forked child forgets them.
    Process::this();
    present().unwrap_or_else(|| {
        let new = Box::into_raw(Box::default());
        let null = ptr::null_mut();
        let set = ASSOCIATIONS.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire);
        let present = set.map_or_else(
            |other| {
                // SAFETY: it was made above, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                other
            },
            |_| new,
        );
        // SAFETY: it is not null, and never freed.
        unsafe { &*present }
    })
}

/// It ends with its file, whose number may become another's.
struct Association {
    port: usize,
    completion_key: usize,
    identity: Identity,
}

/// What tells a file from every other one, also from those that get its number and its inode after it.
#[derive(PartialEq, Eq)]
enum Identity {
    /// The kernel's own name of the file, which has the inode's generation.
    Handle(Handle),
    /// Where the file system has no such names.
    Inode {
        device: u64,
        inode: u64,
        birth: Option<SystemTime>,
        /// A name that only tells files apart.
        handle: Option<Handle>,
    },
}

impl Identity {
    fn of(file: c_int) -> io::Result<Self> {
        if let Some(handle) = Handle::of(file, 0) {
            return Ok(Identity::Handle(handle));
        }
        let metadata = metadata(file)?;
        Ok(Identity::Inode {
            device: metadata.dev(),
            inode: metadata.ino(),
            birth: metadata.created().ok(),
            handle: Handle::of(file, Handle::ONLY_IDENTIFIES),
        })
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(PartialEq, Eq)]
struct Handle {
    mount: c_int,
    file: FileHandle,
}

/// `struct file_handle`, with room for the longest one.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[repr(C)]
#[derive(PartialEq, Eq)]
struct FileHandle {
    bytes: u32,
    kind: c_int,
    name: [u8; 128],
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Handle {
    /// `AT_HANDLE_FID`, from Linux 6.5 on.
    const ONLY_IDENTIFIES: c_int = 0x200;

    /// `name_to_handle_at` - `None` if the file system has no such names, or the call is forbidden.
    fn of(file: c_int, flags: c_int) -> Option<Self> {
        let mut handle = Handle {
            mount: 0,
            file: FileHandle {
                bytes: 128,
                kind: 0,
                name: [0; 128],
            },
        };
        // SAFETY: the path ends, and there is room for a handle and for the number of a mount.
        let named = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file,
                c"".as_ptr(),
                &raw mut handle.file,
                &raw mut handle.mount,
                libc::AT_EMPTY_PATH | flags,
            )
        };
        (named == 0).then_some(handle)
    }
}

/// Elsewhere a file has no name that every user may ask for.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[derive(PartialEq, Eq)]
enum Handle {}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Handle {
    const ONLY_IDENTIFIES: c_int = 0;

    fn of(_file: c_int, _flags: c_int) -> Option<Self> {
        None
    }
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
        let kind = metadata.file_type();
        if !(kind.is_file() || kind.is_block_device()) {
            return Err(code::INVALID_HANDLE);
        }
        let association = Association {
            port: port.addr(),
            completion_key,
            identity: Identity::of(file).map_err(|_| code::INVALID_HANDLE)?,
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

/// The end of an association.
#[unsafe(no_mangle)]
pub extern "C" fn sn_dissociate(file: c_int) -> u32 {
    entry_point(|| {
        let associations = present().ok_or(code::NOT_FOUND)?.write();
        let mut associations = associations.unwrap_or_else(PoisonError::into_inner);
        associations.remove(&file).ok_or(code::NOT_FOUND)?;
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
    let identity = Identity::of(file).map_err(|_| code::INVALID_HANDLE)?;
    let associations = present().ok_or(code::INVALID_PARAMETER)?.read();
    let associations = associations.unwrap_or_else(PoisonError::into_inner);
    let found = associations.get(&file);
    let found = found.filter(|it| it.identity == identity);
    let (port, key) = found
        .map(|it| (it.port, it.completion_key))
        .ok_or(code::INVALID_PARAMETER)?;
    drop(associations);
    let port = ptr::without_provenance_mut(port);
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
