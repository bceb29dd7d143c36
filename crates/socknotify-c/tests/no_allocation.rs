//! The C interface keeps its memory from one call to the next.
#![cfg(unix)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::{io, ptr};

use socknotify_c::caller::{OverlappedEntry, SockNotifyRegistration};
use socknotify_c::{code, sn_close_port, sn_create_port, sn_process};

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn arming_again_and_dequeuing_allocates_nothing() -> io::Result<()> {
    let (here, there) = UnixDatagram::pair()?;
    there.send(b"stays")?;
    let mut port = ptr::null_mut();
    // SAFETY: `port` can be written to.
    assert_eq!(unsafe { sn_create_port(0, &mut port) }, code::SUCCESS);
    let turn = || {
        let mut registration = SockNotifyRegistration {
            socket: here.as_raw_fd() as usize,
            completion_key: 1,
            event_filter: 1,
            operation: 1,
            trigger_flags: 1 | 4,
            registration_result: u32::MAX,
        };
        let mut entries = [OverlappedEntry::default(); 4];
        let mut received = 0;
        let room = entries.as_mut_ptr();
        // SAFETY: there is one registration and room for four entries.
        let outcome =
            unsafe { sn_process(port, 1, &mut registration, u32::MAX, 4, room, &mut received) };
        assert_eq!((outcome, registration.registration_result), (0, 0));
        assert_eq!((received, entries[0].completion_key), (1, 1));
    };
    for _ in 0..10 {
        turn();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..1000 {
        turn();
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(sn_close_port(port), code::SUCCESS);
    Ok(())
}
