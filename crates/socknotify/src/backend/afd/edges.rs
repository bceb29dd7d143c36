//! Conditions that begin to hold, for one socket.
//!
//! A poll reports what holds. It does not show that data were read and more has arrived, nor that a
//! send found no room and there is room again: polls from time to time can miss that the condition has fallen.
//! The driver's event selection does not: after a receive, or a send that found no room, the driver records the
//! condition again. It costs an event object per socket, so it is used for edge-triggered registrations only. Watching
//! this event takes another one, a wait in the system's thread pool, and a thread switch for each edge, so that is begun
//! only if a poll cannot tell of the next edge.
//!
//! `WSAEventSelect` does the same, but first makes the socket non-blocking.
//!
//! The end of a stream and errors never fall. Polls report them.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{
    FD_ACCEPT, FD_CONNECT, FD_CONNECT_BIT, FD_OOB, FD_READ, FD_WRITE, WSAEnumNetworkEvents,
    WSANETWORKEVENTS,
};
use windows_sys::Win32::System::IO::PostQueuedCompletionStatus;
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEINWAITTHREAD,
    WaitForSingleObject,
};

use super::device::{self, select_events};
use crate::os::windows::port::KernelPort;
use crate::os::{self, Fd};

#[link(name = "ntdll")]
unsafe extern "system" {
    fn RtlDllShutdownInProgress() -> u8;
}

/// Where the packet of an edge goes.
struct Destination {
    port: HANDLE,
    key: usize,
    fd: Fd,
    /// A packet is on its way.
    posted: AtomicBool,
}

/// A socket whose edges are recorded, until this is dropped. The number must still refer to the same socket then.
pub(super) struct Edges {
    fd: Fd,
    event: OwnedHandle,
    wait: Option<Wait>,
    destination: *mut Destination,
    /// The number may be another's.
    is_closed: bool,
}

// SAFETY: the handles belong to the process, and the destination is only read.
unsafe impl Send for Edges {}

impl Edges {
    /// Begin to record the edges of a socket. What holds counts as one.
    pub(super) fn new(port: &KernelPort, key: usize, fd: Fd) -> io::Result<Self> {
        let event = new_event()?;
        let destination = Box::into_raw(Box::new(Destination {
            port: port.handle(),
            key,
            fd,
            posted: AtomicBool::new(false),
        }));
        let edges = Edges {
            fd,
            event,
            wait: None,
            destination,
            is_closed: false,
        };
        select_events(os::handle(fd), edges.event.as_raw_handle(), RECORDED)?;
        Ok(edges)
    }

    /// If there may be an edge, from the last [`take`](Self::take) on, a packet is queued on the port, with the key, and the
    /// socket's number in place of a pointer.
    pub(super) fn watch(&mut self) -> io::Result<()> {
        if self.wait.is_some() {
            return Ok(());
        }
        // SAFETY: the destination and the event live longer than the wait.
        self.wait = Some(unsafe { Wait::begin(&self.event, self.destination)? });
        Ok(())
    }

    /// `WSAEnumNetworkEvents` — The driver's conditions that have begun to hold since the last call; in the first call, those that
    /// held at the beginning.
    pub(super) fn take(&self) -> u32 {
        // What is recorded from here on has a packet of its own.
        // SAFETY: the destination lives as long as this.
        unsafe { (*self.destination).posted.store(false, Ordering::SeqCst) };
        let mut found = WSANETWORKEVENTS::default();
        // SAFETY: the structure is there for the call.
        if unsafe { WSAEnumNetworkEvents(os::handle(self.fd).addr(), 0, &mut found) } != 0 {
            return 0;
        }
        let seen = found.lNetworkEvents as u32;
        let connected = seen & FD_CONNECT != 0 && found.iErrorCode[FD_CONNECT_BIT as usize] == 0;
        let bits = |is: bool, bits: u32| if is { bits } else { 0 };
        bits(seen & FD_READ != 0, device::RECEIVE)
            | bits(seen & FD_ACCEPT != 0, device::ACCEPT)
            | bits(seen & FD_OOB != 0, device::RECEIVE_EXPEDITED)
            | bits(seen & FD_WRITE != 0 || connected, device::SEND)
    }

    /// End it for a socket that was closed. There is no call for its number, which may be another's: where the system checks
    /// handles strictly, one that is none ends the process.
    pub(super) fn end_of_closed(mut self) {
        self.is_closed = true;
    }
}

/// What the driver is to record.
const RECORDED: u32 = device::RECEIVE
    | device::RECEIVE_EXPEDITED
    | device::SEND
    | device::ACCEPT
    | device::CONNECT
    | device::CONNECT_FAIL;

impl Drop for Edges {
    fn drop(&mut self) {
        if !self.is_closed {
            // This fails if the handle is no socket.
            let _ = select_events(os::handle(self.fd), null_mut(), 0);
        }
        self.wait = None;
        // SAFETY: the wait has ended, and nobody reads the destination any more.
        drop(unsafe { Box::from_raw(self.destination) });
    }
}

/// An event that each wait for it resets.
fn new_event() -> io::Result<OwnedHandle> {
    // SAFETY: the call touches no memory of ours; what it returns is a new handle.
    unsafe {
        let event = CreateEventW(null(), 0, 0, null());
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedHandle::from_raw_handle(event))
    }
}

/// A wait in the system's thread pool. Once it is dropped, no callback is running, and none comes.
struct Wait {
    wait: HANDLE,
    /// Set when the wait has ended.
    ended: OwnedHandle,
}

impl Wait {
    /// `RegisterWaitForSingleObject` — [Pass on](pass_on) each time that the event is set.
    ///
    /// # Safety
    ///
    /// The event and the destination live longer than this.
    unsafe fn begin(event: &OwnedHandle, destination: *mut Destination) -> io::Result<Self> {
        let ended = new_event()?;
        let mut wait = null_mut();
        // SAFETY: the caller's promise.
        let waits = unsafe {
            RegisterWaitForSingleObject(
                &mut wait,
                event.as_raw_handle(),
                Some(pass_on),
                destination.cast(),
                INFINITE,
                WT_EXECUTEINWAITTHREAD,
            )
        };
        if waits == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Wait { wait, ended })
    }
}

impl Drop for Wait {
    /// `UnregisterWaitEx` — With `INVALID_HANDLE_VALUE` the call itself would wait for callbacks. Under Wine it does not
    /// exclude the pool's thread when that is about to call back: it writes to a null pointer, or returns during the
    /// callback.
    fn drop(&mut self) {
        // SAFETY: the wait has not ended before. No memory of ours is used.
        unsafe {
            UnregisterWaitEx(self.wait, self.ended.as_raw_handle());
            // While the process exits, the pool has no thread any more that would set the event.
            if RtlDllShutdownInProgress() == 0 {
                WaitForSingleObject(self.ended.as_raw_handle(), INFINITE);
            }
        }
    }
}

/// Called by a thread of the system's pool.
unsafe extern "system" fn pass_on(destination: *mut core::ffi::c_void, _timed_out: bool) {
    // SAFETY: it lives until the wait has ended, and ending the wait waits for this callback.
    let destination = unsafe { &*destination.cast::<Destination>() };
    if destination.posted.swap(true, Ordering::SeqCst) {
        return;
    }
    let number = std::ptr::without_provenance(destination.fd.0 as usize);
    // SAFETY: the port lives as long as anything that is registered with it. The number is never used as a
    // pointer.
    let posted =
        unsafe { PostQueuedCompletionStatus(destination.port, 0, destination.key, number) };
    if posted == 0 {
        // There is no memory. The next edge tries again.
        destination.posted.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::windows::io::AsRawSocket;
    use std::thread;

    use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
    use windows_sys::Win32::System::Threading::{
        PTP_CALLBACK_INSTANCE, TrySubmitThreadpoolCallback,
    };

    use super::*;

    #[test]
    fn the_record_has_each_edge_once() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = KernelPort::new()?;
        let listens = os::fd(listener.as_raw_socket()).expect("it is a socket");
        let listening = Edges::new(&port, 1, listens)?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        wait_for(&listening);
        assert_eq!(listening.take(), device::ACCEPT);
        let (ours, _) = listener.accept()?;
        let edges = Edges::new(&port, 1, os::fd(ours.as_raw_socket()).expect("a socket"))?;
        wait_for(&edges);
        assert_eq!(edges.take(), device::SEND);
        peer.write_all(b"x")?;
        wait_for(&edges);
        assert_eq!(edges.take(), device::RECEIVE);
        assert_eq!(edges.take(), 0, "it was taken");
        Ok(())
    }

    /// Waits for an edge.
    fn wait_for(edges: &Edges) {
        // SAFETY: the event is there for the call.
        let waited = unsafe { WaitForSingleObject(edges.event.as_raw_handle(), 10_000) };
        assert_eq!(waited, WAIT_OBJECT_0);
    }

    /// The callback that posts an edge's packet uses the port and the destination to its end. Nothing may be freed
    /// before. Without waiting for the callback, it would post after the check below.
    ///
    /// Others use the system's thread pool too, and hold its lock for a moment.
    #[test]
    fn when_it_is_dropped_no_call_is_under_way() -> io::Result<()> {
        unsafe extern "system" fn nothing(_: PTP_CALLBACK_INSTANCE, _: *mut core::ffi::c_void) {}
        thread::scope(|scope| {
            let drops = scope.spawn(drop_while_called);
            while !drops.is_finished() {
                // SAFETY: the callback uses no memory. If there is none for it, the next one tries again.
                unsafe { TrySubmitThreadpoolCallback(Some(nothing), null_mut(), null()) };
            }
            drops.join().expect("no check fails")
        })
    }

    fn drop_while_called() -> io::Result<()> {
        const KEY: usize = 84;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let _peer = TcpStream::connect(listener.local_addr()?)?;
        let (socket, _) = listener.accept()?;
        let fd = os::fd(socket.as_raw_socket()).expect("it is a socket");
        let port = KernelPort::new()?;
        let (mut packets, mut posted) = (Vec::new(), 0);
        for round in 0..1000 {
            // It has room to send: the event is signalled at once.
            let mut edges = Edges::new(&port, KEY, fd)?;
            edges.watch()?;
            // Before the call, in it, and at its end.
            while round % 2 == 0 && port.depth() == 0 {
                thread::yield_now();
            }
            drop(edges);
            let depth = port.depth();
            thread::yield_now();
            assert_eq!(port.depth(), depth, "round {round}");
            port.take(&mut packets, depth.max(1), Some(std::time::Duration::ZERO));
            for packet in &packets {
                let number_said = packet.lpOverlapped.addr() as u32;
                assert_eq!((packet.lpCompletionKey, number_said), (KEY, fd.0));
            }
            posted += packets.len();
        }
        assert!(posted > 0, "some calls were made");
        Ok(())
    }
}
