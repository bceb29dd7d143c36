//! What is asked of the kernel.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, ERROR_INVALID_HANDLE, ERROR_SUCCESS, GetLastError,
    HANDLE, NTSTATUS,
};
use windows_sys::Win32::System::IO::{
    GetQueuedCompletionStatusEx, OVERLAPPED_ENTRY, PostQueuedCompletionStatus,
};
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleExA,
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use super::Function;

#[link(name = "ntdll")]
unsafe extern "system" {
    fn NtQueryIoCompletion(
        port: HANDLE,
        class: i32,
        information: *mut i32,
        length: u32,
        returned: *mut u32,
    ) -> NTSTATUS;
    fn NtQueryObject(
        handle: HANDLE,
        class: i32,
        information: *mut [u32; 14],
        length: u32,
        returned: *mut u32,
    ) -> NTSTATUS;
}

/// The system's `ProcessSocketNotifications`.
///
/// This library may have been installed under the system's name. What is found in itself is none.
pub(super) fn find_function() -> Option<Function> {
    [c"ws2_32.dll", c"mswsock.dll"]
        .into_iter()
        .find_map(|library| {
            // SAFETY: the names are strings that end. The libraries are the system's, and stay loaded; the
            // function has had this signature from its beginning.
            let function = unsafe {
                let name = library.as_ptr().cast();
                let library = LoadLibraryExA(name, null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32);
                if library.is_null() {
                    return None;
                }
                let function =
                    GetProcAddress(library, c"ProcessSocketNotifications".as_ptr().cast())?;
                std::mem::transmute::<unsafe extern "system" fn() -> isize, Function>(function)
            };
            let ours: Function = super::ProcessSocketNotifications;
            (module_of(function) != module_of(ours)).then_some(function)
        })
}

/// Keep this library loaded: threads of its own run in it.
pub(super) fn stay_loaded() {
    module_of(super::ProcessSocketNotifications);
}

/// The module that a function is in, which is never unloaded from here on.
fn module_of(function: Function) -> HANDLE {
    let mut module = null_mut();
    let flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN;
    // SAFETY: the address is in a module that is loaded, and not followed.
    unsafe { GetModuleHandleExA(flags, (function as *const ()).cast(), &mut module) };
    module
}

/// Another handle of a completion port.
pub(super) fn duplicate(port: HANDLE) -> Result<OwnedHandle, u32> {
    let mut handle = null_mut();
    // SAFETY: the handle is there for the call; what it returns is a new one.
    let duplicate = unsafe {
        let this = GetCurrentProcess();
        if DuplicateHandle(this, port, this, &mut handle, 0, 0, DUPLICATE_SAME_ACCESS) == 0 {
            return Err(ERROR_INVALID_HANDLE);
        }
        OwnedHandle::from_raw_handle(handle)
    };
    match depth(&duplicate) {
        Some(_) => Ok(duplicate),
        None => Err(ERROR_INVALID_HANDLE),
    }
}

/// How many packets wait in a port. `None` if it is none.
pub(super) fn depth(port: &OwnedHandle) -> Option<u64> {
    let mut depth = 0;
    // SAFETY: the value is there for the call, and as long as it says.
    let status = unsafe { NtQueryIoCompletion(port.as_raw_handle(), 0, &mut depth, 4, null_mut()) };
    (status >= 0).then(|| u64::try_from(depth).unwrap_or(0))
}

/// Whether this handle is the last one of its object.
pub(super) fn is_last(handle: &OwnedHandle) -> bool {
    // Attributes, access, and the number of handles, among others.
    let mut information = [0_u32; 14];
    let length = size_of_val(&information) as u32;
    // SAFETY: the memory is there for the call, and as long as it says.
    let status = unsafe {
        NtQueryObject(
            handle.as_raw_handle(),
            0,
            &mut information,
            length,
            null_mut(),
        )
    };
    status >= 0 && information[2] <= 1
}

/// `PostQueuedCompletionStatus`
pub(super) fn post(port: &OwnedHandle, key: usize, bytes: u32) -> io::Result<()> {
    // SAFETY: the packet points to nothing.
    match unsafe { PostQueuedCompletionStatus(port.as_raw_handle(), bytes, key, null_mut()) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// `GetQueuedCompletionStatusEx`
///
/// # Safety
///
/// There is room for as many entries, and for their number.
pub(super) unsafe fn take(
    port: HANDLE,
    entries: *mut OVERLAPPED_ENTRY,
    room: u32,
    timeout: u32,
    received: *mut u32,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match GetQueuedCompletionStatusEx(port, entries, room, received, timeout, 0) {
            0 => GetLastError(),
            _ => ERROR_SUCCESS,
        }
    }
}
