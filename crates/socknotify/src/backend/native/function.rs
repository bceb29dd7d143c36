//! `ProcessSocketNotifications`, looked up at run time, and checks of its types.

use std::mem;
use std::ptr::null_mut;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::SOCK_NOTIFY_REGISTRATION;
use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExA,
};

/// `ProcessSocketNotifications`, which only new systems have. To start on others, a program has to look it up at run
/// time.
pub(super) type Function = unsafe extern "system" fn(
    HANDLE,
    u32,
    *mut SOCK_NOTIFY_REGISTRATION,
    u32,
    u32,
    *mut OVERLAPPED_ENTRY,
    *mut u32,
) -> u32;

/// The system's function, if it has it.
pub(super) fn find() -> Option<Function> {
    static FUNCTION: OnceLock<Option<Function>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // The first forwards it to the second.
        let libraries = [c"ws2_32.dll", c"mswsock.dll"];
        libraries.into_iter().find_map(|library| {
            // SAFETY: the names are strings that end. The libraries are the system's, and stay loaded;
            // the function has had this signature from its beginning.
            unsafe {
                let name = library.as_ptr().cast();
                let library = LoadLibraryExA(name, null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32);
                if library.is_null() {
                    return None;
                }
                let name = c"ProcessSocketNotifications".as_ptr().cast();
                let function = GetProcAddress(library, name)?;
                Some(mem::transmute::<
                    unsafe extern "system" fn() -> isize,
                    Function,
                >(function))
            }
        })
    })
}

/// The names and layouts of the Windows interface, compared with `windows-sys`.
const _: () = {
    use std::mem::offset_of;

    use windows_sys::Win32::Networking::WinSock as published;

    use crate::{EventFilter, Events, Operation, Trigger};

    let _: Function = published::ProcessSocketNotifications;

    type R = SOCK_NOTIFY_REGISTRATION;
    let word = size_of::<usize>();
    assert!(offset_of!(R, socket) == 0 && offset_of!(R, completionKey) == word);
    assert!(offset_of!(R, eventFilter) == 2 * word && offset_of!(R, operation) == 2 * word + 2);
    assert!(offset_of!(R, triggerFlags) == 2 * word + 3);
    assert!(offset_of!(R, registrationResult) == 2 * word + 4 && size_of::<R>() == 2 * word + 8);

    assert!(EventFilter::IN.bits() as u32 == published::SOCK_NOTIFY_REGISTER_EVENT_IN);
    assert!(EventFilter::OUT.bits() as u32 == published::SOCK_NOTIFY_REGISTER_EVENT_OUT);
    assert!(EventFilter::HANGUP.bits() as u32 == published::SOCK_NOTIFY_REGISTER_EVENT_HANGUP);
    assert!(Events::IN.bits() == published::SOCK_NOTIFY_EVENT_IN);
    assert!(Events::OUT.bits() == published::SOCK_NOTIFY_EVENT_OUT);
    assert!(Events::HANGUP.bits() == published::SOCK_NOTIFY_EVENT_HANGUP);
    assert!(Events::ERR.bits() == published::SOCK_NOTIFY_EVENT_ERR);
    assert!(Events::REMOVE.bits() == published::SOCK_NOTIFY_EVENT_REMOVE);
    assert!(Operation::ENABLE.bits() as u32 == published::SOCK_NOTIFY_OP_ENABLE);
    assert!(Operation::DISABLE.bits() as u32 == published::SOCK_NOTIFY_OP_DISABLE);
    assert!(Operation::REMOVE.bits() as u32 == published::SOCK_NOTIFY_OP_REMOVE);
    assert!(Trigger::ONESHOT.bits() as u32 == published::SOCK_NOTIFY_TRIGGER_ONESHOT);
    assert!(Trigger::PERSISTENT.bits() as u32 == published::SOCK_NOTIFY_TRIGGER_PERSISTENT);
    assert!(Trigger::LEVEL.bits() as u32 == published::SOCK_NOTIFY_TRIGGER_LEVEL);
    assert!(Trigger::EDGE.bits() as u32 == published::SOCK_NOTIFY_TRIGGER_EDGE);
};
