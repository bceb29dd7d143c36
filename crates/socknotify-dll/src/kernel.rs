//! Calls of the kernel.

use std::ffi::CStr;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, ERROR_ABANDONED_WAIT_0, ERROR_INVALID_HANDLE, HANDLE,
    HMODULE, NTSTATUS, STATUS_SUCCESS,
};
use windows_sys::Win32::System::Diagnostics::Debug::IMAGE_DIRECTORY_ENTRY_EXPORT;
#[cfg(target_pointer_width = "32")]
use windows_sys::Win32::System::Diagnostics::Debug::IMAGE_NT_HEADERS32 as IMAGE_NT_HEADERS;
#[cfg(target_pointer_width = "64")]
use windows_sys::Win32::System::Diagnostics::Debug::IMAGE_NT_HEADERS64 as IMAGE_NT_HEADERS;
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleA,
    GetModuleHandleExA, GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
};
use windows_sys::Win32::System::SystemServices::{IMAGE_DOS_HEADER, IMAGE_EXPORT_DIRECTORY};
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
    fn RtlDllShutdownInProgress() -> u8;
}

/// Whether the process is exiting. Then this is its only thread, and the others may have held locks.
pub(super) fn is_exiting() -> bool {
    // SAFETY: it only returns a value.
    unsafe { RtlDllShutdownInProgress() != 0 }
}

/// Whether the system has no `ProcessSocketNotifications`. Unlike [`find_function`] this loads nothing, so it can be asked while
/// this library is loaded.
pub(super) fn lacks_the_function() -> bool {
    // Programs name the first. It forwards to the second, which need not be loaded yet.
    [c"ws2_32.dll", c"mswsock.dll"].into_iter().all(|name| {
        // SAFETY: the name is a string that ends. This library needs the one, which keeps the other loaded.
        unsafe {
            let library = GetModuleHandleA(name.as_ptr().cast());
            library.is_null() || !exports(library, c"ProcessSocketNotifications")
        }
    })
}

/// Whether a module exports this name. `GetProcAddress` would load the module that an export is forwarded to.
///
/// # Safety
///
/// The module is loaded.
unsafe fn exports(module: HMODULE, name: &CStr) -> bool {
    let base = module.cast::<u8>();
    // SAFETY: the headers and tables of a loaded module are as its format says.
    unsafe {
        let Some(exports) = directory(module, IMAGE_DIRECTORY_ENTRY_EXPORT) else {
            return false;
        };
        let exports = exports.cast::<IMAGE_EXPORT_DIRECTORY>();
        let names = base.add((*exports).AddressOfNames as usize).cast::<u32>();
        (0..(*exports).NumberOfNames as usize).any(|index| {
            let at = names.add(index).read_unaligned();
            CStr::from_ptr(base.add(at as usize).cast()) == name
        })
    }
}

/// One of the tables of a module, if it has that.
///
/// # Safety
///
/// The module is loaded.
pub(super) unsafe fn directory(module: HMODULE, which: u16) -> Option<*mut u8> {
    let base = module.cast::<u8>();
    // SAFETY: the headers of a loaded module are as its format says.
    unsafe {
        let dos = base.cast::<IMAGE_DOS_HEADER>();
        let nt = base
            .add((*dos).e_lfanew as usize)
            .cast::<IMAGE_NT_HEADERS>();
        let directory = (*nt).OptionalHeader.DataDirectory[which as usize];
        (directory.VirtualAddress != 0).then(|| base.add(directory.VirtualAddress as usize))
    }
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

/// Keep this library loaded, because the system's calls lead to it.
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
    match depth(duplicate.as_raw_handle()) {
        Some(_) => Ok(duplicate),
        None => Err(ERROR_INVALID_HANDLE),
    }
}

/// How many packets a port has. `None` if the handle is no port's.
pub(super) fn depth(port: HANDLE) -> Option<i32> {
    let mut depth = 0_i32;
    // SAFETY: the value is there for the call, and as long as it says.
    let status = unsafe { NtQueryIoCompletion(port, 0, &mut depth, 4, null_mut()) };
    (status == STATUS_SUCCESS).then_some(depth)
}

/// What `RtlNtStatusToDosError` translates to `ERROR_ABANDONED_WAIT_0` everywhere. The status of that name it translates to
/// another error under Wine.
pub(super) const ABANDONED: NTSTATUS = (0x8007_0000 | ERROR_ABANDONED_WAIT_0) as NTSTATUS;

/// How many handles the object of this one has. 0 if that is unknown.
pub(super) fn handles(handle: HANDLE) -> u32 {
    // Attributes, access, and the number of handles, among others.
    let mut information = [0_u32; 14];
    let length = size_of_val(&information) as u32;
    // SAFETY: the memory is there for the call, and as long as it says.
    let status = unsafe { NtQueryObject(handle, 0, &mut information, length, null_mut()) };
    match status {
        STATUS_SUCCESS => information[2],
        _ => 0,
    }
}

/// Whether two handles refer to the same object. `None` if this system cannot compare them.
pub(super) fn is_same(port: HANDLE, other: HANDLE) -> Option<bool> {
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
    Some(unsafe { compare(port, other) != 0 })
}
