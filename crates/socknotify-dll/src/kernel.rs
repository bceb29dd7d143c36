//! Calls of the kernel.

use std::ffi::CStr;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;
use std::sync::OnceLock;

use port::Events;
use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, ERROR_INVALID_HANDLE, ERROR_SUCCESS, GetLastError,
    HANDLE, NTSTATUS,
};
use windows_sys::Win32::Networking::WinSock::{
    POLLERR, POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM, SO_TYPE, SOCK_STREAM, SOCKET, SOL_SOCKET,
    WSAPOLLFD, WSAPoll, getsockopt,
};
use windows_sys::Win32::System::IO::{GetQueuedCompletionStatusEx, OVERLAPPED_ENTRY};
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleA,
    GetModuleHandleExA, GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
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
    fn NtSetIoCompletion(
        port: HANDLE,
        key: usize,
        overlapped: usize,
        status: NTSTATUS,
        bytes: usize,
    ) -> NTSTATUS;
    fn NtQueryObject(
        handle: HANDLE,
        class: i32,
        information: *mut [u32; 14],
        length: u32,
        returned: *mut u32,
    ) -> NTSTATUS;
    fn RtlDllShutdownInProgress() -> u8;
}

/// Whether the process is exiting. Then this is its only thread, and the others may have held locks.
pub(super) fn is_exiting() -> bool {
    // SAFETY: it only returns a value.
    unsafe { RtlDllShutdownInProgress() != 0 }
}

/// The system's `ProcessSocketNotifications`.
///
/// This library may be installed under the system's name; it does not take its own function for the system's. If it is
/// linked statically and also loaded as a DLL, it calls the DLL's, because two copies would not know each other's
/// registrations.
pub(super) fn find_function() -> Option<Function> {
    // SAFETY: the names are strings that end.
    let libraries = unsafe {
        let load = |name: &CStr| {
            LoadLibraryExA(
                name.as_ptr().cast(),
                null_mut(),
                LOAD_LIBRARY_SEARCH_SYSTEM32,
            )
        };
        [
            load(c"ws2_32.dll"),
            load(c"mswsock.dll"),
            GetModuleHandleA(c"socknotify.dll".as_ptr().cast()),
        ]
    };
    let ours: Function = super::ProcessSocketNotifications;
    for library in libraries.into_iter().filter(|library| !library.is_null()) {
        // SAFETY: the name is a string that ends, and the library is loaded.
        let found =
            unsafe { GetProcAddress(library, c"ProcessSocketNotifications".as_ptr().cast()) };
        let Some(found) = found else { continue };
        // SAFETY: the function has had this signature from its beginning.
        let function =
            unsafe { std::mem::transmute::<unsafe extern "system" fn() -> isize, Function>(found) };
        let is_ours = module_of(function) == module_of(ours);
        return (!is_ours).then_some(function);
    }
    None
}

/// Keep this library loaded, because its threads run in it.
pub(super) fn stay_loaded() {
    module_of(super::ProcessSocketNotifications);
}

/// The module of a function, which is never unloaded from here on.
fn module_of(function: Function) -> HANDLE {
    let mut module = null_mut();
    let flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN;
    // SAFETY: the address is in a loaded module, and not dereferenced.
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

/// The number of packets in a port's queue. `None` if the handle is no port.
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

/// Whether two handles refer to the same object. `None` if this system cannot compare them.
pub(super) fn is_same(port: HANDLE, other: &OwnedHandle) -> Option<bool> {
    type Compare = unsafe extern "system" fn(HANDLE, HANDLE) -> i32;
    static COMPARE: OnceLock<Option<Compare>> = OnceLock::new();
    let compare = (*COMPARE.get_or_init(|| {
        // SAFETY: the names are strings that end; the library is never unloaded, and the function has had
        // this signature from its beginning.
        unsafe {
            let library = GetModuleHandleA(c"kernelbase.dll".as_ptr().cast());
            let function = GetProcAddress(library, c"CompareObjectHandles".as_ptr().cast())?;
            Some(std::mem::transmute::<
                unsafe extern "system" fn() -> isize,
                Compare,
            >(function))
        }
    }))?;
    // SAFETY: an invalid handle equals no other.
    Some(unsafe { compare(port, other.as_raw_handle()) != 0 })
}

/// Above all statuses of the system: a success code of an application.
const OURS: u32 = 0x2000_0000;

/// The number of marks, from 0 on.
pub(super) const MARKS: u32 = OURS;

/// Post a packet with a mark, in the field for the status of an operation. The system's functions only report whether
/// that is a success.
pub(super) fn post(port: &OwnedHandle, key: usize, bytes: u32, mark: u32) -> bool {
    let status = (OURS | mark) as NTSTATUS;
    // SAFETY: the packet points to nothing.
    unsafe { NtSetIoCompletion(port.as_raw_handle(), key, 0, status, bytes as usize) >= 0 }
}

/// Take the mark of a packet that was posted here, and clear it.
pub(super) fn take_mark(packet: &mut OVERLAPPED_ENTRY) -> Option<u32> {
    let status = packet.Internal as u32;
    if !packet.lpOverlapped.is_null() || status & !(MARKS - 1) != OURS {
        return None;
    }
    packet.Internal = 0;
    Some(status & (MARKS - 1))
}

/// Whether a socket is a stream.
pub(super) fn is_stream(socket: SOCKET) -> bool {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as i32;
    // SAFETY: the value is there for the call, and as long as it says.
    let status = unsafe {
        let value = (&raw mut value).cast();
        getsockopt(socket, SOL_SOCKET, SO_TYPE, value, &mut length)
    };
    status == 0 && value == SOCK_STREAM
}

/// An entry for [`look`].
pub(super) fn question(socket: SOCKET) -> WSAPOLLFD {
    WSAPOLLFD {
        fd: socket,
        events: POLLRDNORM | POLLWRNORM,
        revents: 0,
    }
}

/// `WSAPoll` — Find the conditions that hold now. On failure nothing is known.
pub(super) fn look(questions: &mut [WSAPOLLFD]) {
    if questions.is_empty() {
        return;
    }
    // SAFETY: the memory is there for the call, and as long as it says.
    if unsafe { WSAPoll(questions.as_mut_ptr(), questions.len() as u32, 0) } < 0 {
        for question in questions {
            question.revents = POLLNVAL;
        }
    }
}

/// The conditions that were found. `None` if nothing is known.
pub(super) fn answer(question: &WSAPOLLFD, is_stream: bool) -> Option<Events> {
    let is = |events: i16| question.revents & events != 0;
    if is(POLLNVAL) {
        return None;
    }
    let mut events = Events::empty();
    events.set(Events::IN, is(POLLRDNORM | POLLHUP));
    events.set(Events::OUT, is(POLLWRNORM) && !is(POLLERR));
    if is_stream {
        events.set(Events::HANGUP, is(POLLHUP));
        events.set(Events::ERR, is(POLLERR));
    }
    Some(events)
}

/// `GetQueuedCompletionStatusEx`
///
/// # Safety
///
/// There is room for as many entries, and for their number.
pub(super) unsafe fn take(
    port: &OwnedHandle,
    entries: *mut OVERLAPPED_ENTRY,
    room: u32,
    timeout: u32,
    received: *mut u32,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match GetQueuedCompletionStatusEx(port.as_raw_handle(), entries, room, received, timeout, 0)
        {
            0 => GetLastError(),
            _ => ERROR_SUCCESS,
        }
    }
}
