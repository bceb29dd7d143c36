//! Reads, writes and kinds of files on Windows.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};

pub(super) use std::os::windows::io::RawHandle as RawFile;

use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, ERROR_INVALID_FUNCTION, ERROR_IO_PENDING, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_OPERATION_ABORTED, HANDLE, STATUS_PENDING,
};
use windows_sys::Win32::Storage::FileSystem::{FILE_TYPE_DISK, GetFileType, ReadFile, WriteFile};
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, GetCurrentThread, SetThreadPriority, THREAD_PRIORITY_BELOW_NORMAL,
};

use super::request::{Kind, Nature};
use crate::Error;

/// Whether this is a file, so that an operation on it always ends.
pub(super) fn check(file: &File) -> io::Result<Nature> {
    // SAFETY: the handle is open.
    let kind = unsafe { GetFileType(file.as_raw_handle()) };
    // A handle that may not read its file's attributes is not a directory's.
    let is_directory = || file.metadata().is_ok_and(|metadata| metadata.is_dir());
    match kind == FILE_TYPE_DISK && !is_directory() {
        true => Ok(Nature::default()),
        false => Err(io::Error::from_raw_os_error(ERROR_INVALID_FUNCTION as i32)),
    }
}

/// The handle of a file.
pub(super) fn raw(file: &File) -> RawFile {
    file.as_raw_handle()
}

/// The file with this handle.
///
/// # Safety
///
/// It is open, and stays open.
pub(super) unsafe fn borrow(file: RawFile) -> ManuallyDrop<File> {
    // SAFETY: by the promise. It is not closed.
    ManuallyDrop::new(unsafe { File::from_raw_handle(file) })
}

/// The error of an operation for which the system has no memory.
pub(super) const OUT_OF_MEMORY: i32 = ERROR_NOT_ENOUGH_MEMORY as i32;

/// The error of a cancelled operation.
pub(super) const CANCELLED: i32 = ERROR_OPERATION_ABORTED as i32;

/// The error if the system lacks something now, and may have it later.
pub(super) fn shortage(_: &io::Error) -> Option<Error> {
    None
}

/// `ReadFile`
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    // SAFETY: this is the only reference.
    unsafe { transfer(Kind::Read, file, bytes, offset) }
}

/// `WriteFile`
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let bytes = &raw const *bytes;
    // SAFETY: they are only read.
    unsafe { transfer(Kind::Write, file, bytes.cast_mut(), offset) }
}

/// Whether [`read_cached`] ever reads anything.
pub(super) const CAN_READ_CACHED: bool = false;

/// The system does not tell what is in memory.
pub(super) fn read_cached(_: &File, _: &mut [u8], _offset: u64) -> Option<usize> {
    None
}

/// `SetThreadPriority` — Other threads of the process come before this one.
pub(super) fn lower_priority() {
    // SAFETY: the handle refers to this thread.
    unsafe { SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL) };
}

/// What the kernel uses for an operation at this offset.
pub(super) fn overlapped(offset: u64) -> OVERLAPPED {
    // SAFETY: any bits are a value of the structure.
    let mut overlapped: OVERLAPPED = unsafe { std::mem::zeroed() };
    // Until the kernel says otherwise.
    overlapped.Internal = STATUS_PENDING as usize;
    overlapped.Anonymous.Anonymous.Offset = offset as u32;
    overlapped.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    overlapped
}

/// `ReadFile`, `WriteFile` — Begin an operation, which may be complete at once. Its result is in `overlapped`.
///
/// # Safety
///
/// The handle is open. The kernel alone uses the memory and `overlapped` until it has completed the operation.
pub(super) unsafe fn begin(
    kind: Kind,
    handle: HANDLE,
    bytes: *mut [u8],
    overlapped: *mut OVERLAPPED,
) -> io::Result<()> {
    let (memory, length) = (bytes.cast(), bytes.len() as u32);
    // SAFETY: by the promise.
    let begun = unsafe {
        match kind {
            Kind::Read => ReadFile(handle, memory, length, null_mut(), overlapped),
            _ => WriteFile(handle, memory, length, null_mut(), overlapped),
        }
    };
    let error = io::Error::last_os_error();
    match begun != 0 || error.raw_os_error() == Some(ERROR_IO_PENDING as i32) {
        true => Ok(()),
        false => Err(error),
    }
}

/// The result of an operation that the kernel refuses: at the end of the file no bytes.
pub(super) fn unless_at_end(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) {
        true => Ok(0),
        false => Err(error),
    }
}

/// Begin an operation, and wait until it is complete, whether the handle is for overlapped operations or not.
///
/// # Safety
///
/// The memory is valid, and nobody else uses it meanwhile.
unsafe fn transfer(kind: Kind, file: &File, bytes: *mut [u8], offset: u64) -> io::Result<usize> {
    let handle = file.as_raw_handle();
    // SAFETY: it is a new event, without a name.
    let event = unsafe { CreateEventW(null(), 1, 0, null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else has it.
    let _event = unsafe { OwnedHandle::from_raw_handle(event) };
    let mut overlapped = overlapped(offset);
    // The lowest bit says that it does not complete on a port.
    overlapped.hEvent = event.map_addr(|address| address | 1);
    let mut count = 0;
    // SAFETY: all are there until the operation is over, for which the second call waits.
    let done = unsafe {
        begin(kind, handle, bytes, &mut overlapped).and_then(|()| {
            match GetOverlappedResult(handle, &overlapped, &mut count, 1) {
                0 => Err(io::Error::last_os_error()),
                _ => Ok(count as usize),
            }
        })
    };
    done.or_else(unless_at_end)
}
