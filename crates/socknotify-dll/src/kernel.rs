//! What is asked of the kernel.

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
    // SAFETY: it only tells.
    unsafe { RtlDllShutdownInProgress() != 0 }
}

/// The system's `ProcessSocketNotifications`.
///
/// This library may have been installed under the system's name. What is found in itself is none. Where it
/// is linked statically and is loaded as a file too, that one is called: two would not know each other's
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

/// Whether two handles are of the same object. `None` if this system cannot tell.
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
    // SAFETY: a handle that is none is like no other.
    Some(unsafe { compare(port, other.as_raw_handle()) != 0 })
}

/// Above all statuses of the system's: a success, and an application's.
const OURS: u32 = 0x2000_0000;

/// How many marks there are. They begin with 0.
pub(super) const MARKS: u32 = OURS;

/// Post a packet with a mark. It is where the status of an operation would be, which the callers of the
/// system's functions are not shown, but for whether it is a success.
pub(super) fn post(port: &OwnedHandle, key: usize, bytes: u32, mark: u32) -> bool {
    let status = (OURS | mark) as NTSTATUS;
    // SAFETY: the packet points to nothing.
    unsafe { NtSetIoCompletion(port.as_raw_handle(), key, 0, status, bytes as usize) >= 0 }
}

/// The mark of a packet that was posted here. Takes it off.
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

/// A question for [`look`].
pub(super) fn question(socket: SOCKET) -> WSAPOLLFD {
    WSAPOLLFD {
        fd: socket,
        events: POLLRDNORM | POLLWRNORM,
        revents: 0,
    }
}

/// `WSAPoll` — Look what holds now. Nothing is found out if it fails.
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

/// What was found out. `None` if nothing was.
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
