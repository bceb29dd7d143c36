//! The system's calls that dequeue and close, intercepted.
//!
//! `GetQueuedCompletionStatus`, its `Ex` and `CloseHandle` are in `kernelbase.dll`, which calls `ntdll.dll` through its
//! import table. Three entries of that table lead here instead. So every dequeue and every close is seen, whatever module
//! calls them.
//!
//! They are replaced when this library is loaded: a thread that waits before that would return with a packet that only
//! this library can read. Calls on ports that no socket was registered with go on to the system.

use std::ffi::CStr;
use std::ptr::with_exposed_provenance_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{mem, slice};

use windows_sys::Win32::Foundation::{HANDLE, HMODULE, NTSTATUS, STATUS_SUCCESS, STATUS_TIMEOUT};
use windows_sys::Win32::System::Diagnostics::Debug::IMAGE_DIRECTORY_ENTRY_IMPORT;
use windows_sys::Win32::System::IO::{IO_STATUS_BLOCK, OVERLAPPED_ENTRY};
use windows_sys::Win32::System::LibraryLoader::GetModuleHandleA;
use windows_sys::Win32::System::Memory::{
    MEMORY_BASIC_INFORMATION, PAGE_EXECUTE, PAGE_EXECUTE_READ, PAGE_EXECUTE_READWRITE,
    PAGE_EXECUTE_WRITECOPY, PAGE_READWRITE, VirtualProtect, VirtualQuery,
};
use windows_sys::Win32::System::SystemServices::IMAGE_IMPORT_DESCRIPTOR;

use super::kernel;
use super::port::Port;
use super::ports;

type Remove = unsafe extern "system" fn(
    HANDLE,
    *mut usize,
    *mut usize,
    *mut IO_STATUS_BLOCK,
    *const i64,
) -> NTSTATUS;
type RemoveEx = unsafe extern "system" fn(
    HANDLE,
    *mut OVERLAPPED_ENTRY,
    u32,
    *mut u32,
    *const i64,
    u8,
) -> NTSTATUS;
type Close = unsafe extern "system" fn(HANDLE) -> NTSTATUS;

/// What the entries led to before.
static REMOVE: AtomicUsize = AtomicUsize::new(0);
static REMOVE_EX: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// How long an alertable wait takes at most until the thread looks for what is not in the kernel's queue.
const ALERTABLE: Duration = Duration::from_millis(20);

/// When the library is loaded, or the program that it is linked into.
#[used]
#[unsafe(link_section = ".CRT$XCU")]
pub(super) static AT_START: extern "C" fn() = {
    extern "C" fn at_start() {
        if kernel::lacks_the_function() {
            install();
        }
    }
    at_start
};

/// Intercept the calls, if they are not intercepted yet. False if they cannot be.
pub(super) fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        kernel::stay_loaded();
        Port::say_closes();
        // SAFETY: the replacements have the types of what they replace, and are never unloaded.
        unsafe {
            let library = GetModuleHandleA(c"kernelbase.dll".as_ptr().cast());
            !library.is_null()
                && replace(library, c"NtClose", close as Close as usize, &CLOSE)
                && replace(
                    library,
                    c"NtRemoveIoCompletion",
                    remove as Remove as usize,
                    &REMOVE,
                )
                && replace(
                    library,
                    c"NtRemoveIoCompletionEx",
                    remove_ex as RemoveEx as usize,
                    &REMOVE_EX,
                )
        }
    })
}

/// Replace what a module imports under this name.
///
/// # Safety
///
/// The module is loaded, and the replacement is a function of the same type as the import.
unsafe fn replace(module: HMODULE, name: &CStr, by: usize, before: &AtomicUsize) -> bool {
    let base = module.cast::<u8>();
    // SAFETY: the headers and tables of a loaded module are as its format says; each list ends with 0.
    unsafe {
        let Some(imports) = kernel::directory(module, IMAGE_DIRECTORY_ENTRY_IMPORT) else {
            return false;
        };
        let mut from = imports.cast::<IMAGE_IMPORT_DESCRIPTOR>();
        while (*from).Name != 0 {
            let mut names = base
                .add((*from).Anonymous.OriginalFirstThunk as usize)
                .cast::<usize>();
            let mut place = base.add((*from).FirstThunk as usize).cast::<usize>();
            while *names != 0 {
                // The other imports are by number. Two bytes before the name are a hint.
                let is_named = *names & (1 << (usize::BITS - 1)) == 0;
                if is_named && CStr::from_ptr(base.add(*names + 2).cast()) == name {
                    before.store(*place, Ordering::Release);
                    return store(place, by);
                }
                names = names.add(1);
                place = place.add(1);
            }
            from = from.add(1);
        }
    }
    false
}

/// Store a value in memory that is read-only.
///
/// # Safety
///
/// The place is in the import table of a loaded module.
unsafe fn store(place: *mut usize, value: usize) -> bool {
    let mut memory = MEMORY_BASIC_INFORMATION::default();
    let mut before = 0;
    // SAFETY: the caller's promise. Other threads may run what is on the same page, and read the entry.
    unsafe {
        if VirtualQuery(place.cast(), &mut memory, size_of_val(&memory)) == 0 {
            return false;
        }
        let runs =
            PAGE_EXECUTE | PAGE_EXECUTE_READ | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY;
        let writable = if memory.Protect & runs == 0 {
            PAGE_READWRITE
        } else {
            PAGE_EXECUTE_READWRITE
        };
        if VirtualProtect(place.cast(), size_of::<usize>(), writable, &mut before) == 0 {
            return false;
        }
        AtomicUsize::from_ptr(place).store(value, Ordering::Release);
        VirtualProtect(place.cast(), size_of::<usize>(), before, &mut before);
    }
    true
}

/// `CloseHandle`
unsafe extern "system" fn close(handle: HANDLE) -> NTSTATUS {
    // SAFETY: it is stored before the import leads here, and has this type.
    let system = unsafe { mem::transmute::<usize, Close>(CLOSE.load(Ordering::Acquire)) };
    // SAFETY: the caller's promise.
    ports::close(handle, || unsafe { system(handle) })
}

/// `GetQueuedCompletionStatus`
unsafe extern "system" fn remove(
    port: HANDLE,
    key: *mut usize,
    overlapped: *mut usize,
    outcome: *mut IO_STATUS_BLOCK,
    timeout: *const i64,
) -> NTSTATUS {
    let mut packet = OVERLAPPED_ENTRY::default();
    let mut count = 0;
    // SAFETY: the caller's promise.
    unsafe {
        let status = remove_ex(port, &mut packet, 1, &mut count, timeout, 0);
        if status == STATUS_SUCCESS {
            let mut written = IO_STATUS_BLOCK {
                Information: packet.dwNumberOfBytesTransferred as usize,
                ..Default::default()
            };
            written.Anonymous.Pointer = with_exposed_provenance_mut(packet.Internal);
            key.write(packet.lpCompletionKey);
            overlapped.write(packet.lpOverlapped.expose_provenance());
            outcome.write(written);
        }
        status
    }
}

/// `GetQueuedCompletionStatusEx`
unsafe extern "system" fn remove_ex(
    handle: HANDLE,
    entries: *mut OVERLAPPED_ENTRY,
    room: u32,
    count: *mut u32,
    timeout_pointer: *const i64,
    is_alertable: u8,
) -> NTSTATUS {
    // SAFETY: it is stored before the import leads here, and has this type.
    let system = unsafe { mem::transmute::<usize, RemoveEx>(REMOVE_EX.load(Ordering::Acquire)) };
    // SAFETY: null, or a time.
    let ticks = unsafe { timeout_pointer.as_ref() };
    // The system's library passes no times that are not relative.
    let timeout = ticks.map(|ticks| Duration::from_nanos(ticks.min(&0).unsigned_abs() * 100));
    let begin = Instant::now();
    let left = || timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
    loop {
        let by_system = |timeout: *const i64| {
            // SAFETY: the caller's promise. The system writes as many packets as it counts.
            unsafe {
                let status = system(handle, entries, room, count, timeout, is_alertable);
                let taken: &mut [_] = match status {
                    STATUS_SUCCESS => slice::from_raw_parts_mut(entries, count.read() as usize),
                    // There need not be any memory.
                    _ => &mut [],
                };
                (status, taken)
            }
        };
        // SAFETY: the caller's promise.
        let dequeue = |port: &Port, timeout| unsafe { port.dequeue(entries, room, count, timeout) };
        let (status, taken) = match ports::find(handle) {
            Some(port) if is_alertable == 0 => {
                let status = dequeue(&port, left());
                ports::wake_those_in_system(handle, &port);
                return status;
            }
            Some(port) => {
                let status = dequeue(&port, Some(Duration::ZERO));
                let left = left();
                if status != STATUS_TIMEOUT || left == Some(Duration::ZERO) {
                    return status;
                }
                let slice = left.map_or(ALERTABLE, |left| left.min(ALERTABLE));
                let slice = -(slice.as_nanos().div_ceil(100) as i64);
                match by_system(&slice) {
                    (STATUS_TIMEOUT, _) => continue,
                    other => other,
                }
            }
            None => match ports::wait_in_system(handle, || by_system(timeout_pointer)) {
                Some(other) => other,
                None => continue,
            },
        };
        if status != STATUS_SUCCESS {
            return status;
        }
        if let Some(port) = ports::find(handle) {
            port.feed(taken);
            continue;
        }
        if !taken.iter().any(Port::is_own) {
            return STATUS_SUCCESS;
        }
        if let Some(port) = ports::find_same(handle) {
            port.feed(taken);
            continue;
        }
        // The port was closed meanwhile.
        return kernel::ABANDONED;
    }
}
