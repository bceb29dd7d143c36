//! Conditions that begin to hold, for one socket.
//!
//! A poll reports what holds. It does not show that data has been read and more has come, nor that a
//! send found no room and there is room again: for that somebody must have seen the condition fall, and
//! polling from time to time misses it. What does see it is the driver's selection of events: there a receive,
//! or a send that found no room, enables the condition to be recorded again. It costs an event for each socket
//! and, in the system's pool, a thread's wait. So it is used for edge-triggered registrations only.
//!
//! It is what `WSAEventSelect` does, but for one thing: that makes the socket non-blocking first, by itself.
//!
//! The end of a stream and errors never fall. They are left to polls.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use windows_sys::Win32::Foundation::{HANDLE, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Networking::WinSock::{
    FD_ACCEPT, FD_CONNECT, FD_CONNECT_BIT, FD_OOB, FD_READ, FD_WRITE, SOCKET, WSAEnumNetworkEvents,
    WSANETWORKEVENTS,
};
use windows_sys::Win32::System::IO::PostQueuedCompletionStatus;
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, RegisterWaitForSingleObject, UnregisterWaitEx, WT_EXECUTEINWAITTHREAD,
    WT_EXECUTEONLYONCE,
};

use super::device::{self, select_events};
use crate::windows::port::KernelPort;
use crate::{Events, sys};

/// Where the packet of an edge goes.
struct Destination {
    port: HANDLE,
    key: usize,
    number: u32,
    /// The wait is over, and has to begin anew.
    passed_on: AtomicBool,
}

/// A socket whose edges are seen. Dropping it ends that, for which the socket must not be another's.
pub(super) struct Edges {
    number: u32,
    event: OwnedHandle,
    wait: HANDLE,
    destination: *mut Destination,
}

// SAFETY: the handles belong to the process, and the destination is only read.
unsafe impl Send for Edges {}

impl Edges {
    /// Begin to see the edges of a socket. A packet with this key, and the socket's number in place of
    /// a pointer, comes out of the port when there may be one.
    pub(super) fn new(port: &KernelPort, key: usize, number: u32) -> io::Result<Self> {
        // It stays signalled until the edges are taken, whoever learns of it first.
        // SAFETY: the call touches no memory of ours; what it returns is a new handle.
        let event = unsafe {
            let event = CreateEventW(null(), 1, 0, null());
            if event.is_null() {
                return Err(io::Error::last_os_error());
            }
            OwnedHandle::from_raw_handle(event)
        };
        let destination = Box::into_raw(Box::new(Destination {
            port: port.handle(),
            key,
            number,
            passed_on: AtomicBool::new(false),
        }));
        let mut edges = Edges {
            number,
            event,
            wait: null_mut(),
            destination,
        };
        select_events(sys::handle(number), edges.signal(), WANTED)?;
        edges.wait()?;
        Ok(edges)
    }

    /// Have the event waited for.
    fn wait(&mut self) -> io::Result<()> {
        // SAFETY: the destination lives until the wait is over; the event does too.
        let waits = unsafe {
            RegisterWaitForSingleObject(
                &mut self.wait,
                self.event.as_raw_handle(),
                Some(pass_on),
                self.destination.cast(),
                INFINITE,
                WT_EXECUTEINWAITTHREAD | WT_EXECUTEONLYONCE,
            )
        };
        if waits == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// What is signalled as long as there are edges to be taken.
    pub(super) fn signal(&self) -> HANDLE {
        self.event.as_raw_handle()
    }

    fn socket(&self) -> SOCKET {
        sys::handle(self.number).addr()
    }

    /// The event, in Winsock's form.
    fn event(&self) -> isize {
        self.event.as_raw_handle().addr() as isize
    }

    /// `WSAEnumNetworkEvents` — What has begun to hold since the last time. The first time, what held when
    /// this began.
    pub(super) fn take(&mut self) -> Events {
        let mut found = WSANETWORKEVENTS::default();
        // SAFETY: the structure is there for the call; the event is this socket's.
        if unsafe { WSAEnumNetworkEvents(self.socket(), self.event(), &mut found) } != 0 {
            return Events::empty();
        }
        // SAFETY: the destination lives as long as this.
        let passed_on = unsafe { &(*self.destination).passed_on };
        if passed_on.swap(false, Ordering::AcqRel) {
            // The call that says so may still be using the destination, and the port.
            // SAFETY: the wait was made by this. Nobody waits for this thread in that call.
            unsafe { UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE) };
            self.wait = null_mut();
            // Without it, edges are found by the next thread that waits for no time.
            let _ = self.wait();
        }
        let seen = found.lNetworkEvents as u32;
        let connected = seen & FD_CONNECT != 0 && found.iErrorCode[FD_CONNECT_BIT as usize] == 0;
        let mut events = Events::empty();
        events.set(Events::IN, seen & (FD_READ | FD_ACCEPT) != 0);
        events.set(Events::PRIORITY, seen & FD_OOB != 0);
        events.set(Events::OUT, seen & FD_WRITE != 0 || connected);
        events
    }

    /// End it for a socket that was closed, and whose number may be another's.
    pub(super) fn end_of_closed(mut self) {
        self.number = u32::MAX / 4;
    }
}

const WANTED: u32 = device::RECEIVE
    | device::RECEIVE_EXPEDITED
    | device::SEND
    | device::ACCEPT
    | device::CONNECT
    | device::CONNECT_FAIL;

impl Drop for Edges {
    fn drop(&mut self) {
        // A socket that is none makes this fail.
        let _ = select_events(sys::handle(self.number), null_mut(), 0);
        // SAFETY: the wait is over when the call returns, and nobody reads the destination any more.
        unsafe {
            if !self.wait.is_null() {
                UnregisterWaitEx(self.wait, INVALID_HANDLE_VALUE);
            }
            drop(Box::from_raw(self.destination));
        }
    }
}

/// Called by a thread of the system's pool.
unsafe extern "system" fn pass_on(destination: *mut core::ffi::c_void, _timed_out: bool) {
    // SAFETY: it lives until the wait is over; whoever ends the wait waits for this call.
    let destination = unsafe { &*destination.cast::<Destination>() };
    destination.passed_on.store(true, Ordering::Release);
    let number = std::ptr::without_provenance(destination.number as usize);
    // SAFETY: the port is there as long as anything that is registered with it. The number is no
    // pointer, and taken for none.
    unsafe { PostQueuedCompletionStatus(destination.port, 0, destination.key, number) };
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::windows::io::AsRawSocket;
    use std::thread;

    use super::*;

    /// The call that posts an edge's packet uses the port and the destination to its end; nothing may be freed
    /// before. Were it not waited for, it would post later than this has looked.
    #[test]
    fn when_it_is_dropped_no_call_is_under_way() -> io::Result<()> {
        const KEY: usize = 84;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let _peer = TcpStream::connect(listener.local_addr()?)?;
        let (socket, _) = listener.accept()?;
        let number = sys::number(socket.as_raw_socket()).expect("it is a socket");
        let port = KernelPort::new()?;
        let (mut packets, mut posted) = (Vec::new(), 0);
        for round in 0..300 {
            // It has room to send: the event is signalled at once.
            let edges = Edges::new(&port, KEY, number)?;
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
                assert_eq!((packet.lpCompletionKey, number_said), (KEY, number));
            }
            posted += packets.len();
        }
        assert!(posted > 0, "some calls were made");
        Ok(())
    }
}
