//! Reads, writes and kinds of files on Windows.

#![allow(unsafe_code, reason = "handles, and memory that is lent to the kernel")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null;

pub(super) use std::os::windows::io::RawHandle as RawFile;

use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, ERROR_INVALID_FUNCTION, ERROR_IO_PENDING, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_OPERATION_ABORTED, HANDLE,
};
use windows_sys::Win32::Storage::FileSystem::{FILE_TYPE_DISK, GetFileType, ReadFile, WriteFile};
use windows_sys::Win32::System::IO::{GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, GetCurrentThread, SetThreadPriority, THREAD_PRIORITY_BELOW_NORMAL,
};

use super::request::Nature;
use crate::Error;

/// Whether this is a file, so that an operation on it always ends.
pub(super) fn check(file: &File) -> io::Result<Nature> {
    // SAFETY: the handle is open.
    let kind = unsafe { GetFileType(file.as_raw_handle()) };
    // A handle that may not read its file's attributes is not a directory's.
    let is_directory = || file.metadata().is_ok_and(|metadata| metadata.is_dir());
    match kind == FILE_TYPE_DISK && !is_directory() {
        true => Ok(Nature::default()),
        false => Err(failure(ERROR_INVALID_FUNCTION)),
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
pub(super) fn out_of_memory() -> io::Error {
    failure(ERROR_NOT_ENOUGH_MEMORY)
}

/// The error if the system lacks something now, and may have it later.
pub(super) fn shortage(_: &io::Error) -> Option<Error> {
    None
}

/// The error of a cancelled operation.
pub(super) fn cancelled() -> io::Error {
    failure(ERROR_OPERATION_ABORTED)
}

fn failure(code: u32) -> io::Error {
    io::Error::from_raw_os_error(code as i32)
}

/// `ReadFile`
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let handle = file.as_raw_handle();
    wait(handle, offset, |count, overlapped| {
        // SAFETY: the memory is there until the operation is over, for which `wait` waits.
        unsafe {
            ReadFile(
                handle,
                bytes.as_mut_ptr(),
                bytes.len() as u32,
                count,
                overlapped,
            )
        }
    })
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

/// `WriteFile`
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let handle = file.as_raw_handle();
    wait(handle, offset, |count, overlapped| {
        // SAFETY: as above.
        unsafe {
            WriteFile(
                handle,
                bytes.as_ptr(),
                bytes.len() as u32,
                count,
                overlapped,
            )
        }
    })
}

/// Begin an operation, and wait until it is complete, whether the handle is for overlapped operations or not.
fn wait(
    handle: HANDLE,
    offset: u64,
    begin: impl FnOnce(*mut u32, *mut OVERLAPPED) -> i32,
) -> io::Result<usize> {
    // SAFETY: it is a new event, without a name.
    let event = unsafe { CreateEventW(null(), 1, 0, null()) };
    if event.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else has it.
    let _event = unsafe { OwnedHandle::from_raw_handle(event) };
    // SAFETY: any bits are a value of the structure.
    let mut overlapped: OVERLAPPED = unsafe { std::mem::zeroed() };
    overlapped.Anonymous.Anonymous.Offset = offset as u32;
    overlapped.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    // The lowest bit says that it does not complete on a port.
    overlapped.hEvent = event.map_addr(|address| address | 1);
    let mut count = 0;
    let mut outcome = match begin(&mut count, &mut overlapped) {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    if matches!(&outcome, Err(error) if error.raw_os_error() == Some(ERROR_IO_PENDING as i32)) {
        // SAFETY: both are there for the call, which ends when the operation is over.
        outcome = match unsafe { GetOverlappedResult(handle, &overlapped, &mut count, 1) } {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
    }
    match outcome {
        Err(error) if error.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) => Ok(0),
        outcome => outcome.map(|()| count as usize),
    }
}
