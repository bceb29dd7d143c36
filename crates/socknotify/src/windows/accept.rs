//! Connections that the kernel accepts in advance.
//!
//! A listener has up to 16 accepts posted, under its own key; the listener itself stays armed for its deadline and for
//! cancellation. At the limit up to 16 connections wait with the listener rather than in its backlog. When it is closed,
//! it waits until the kernel has ended its accepts. Types without `Listen::ACCEPTED`, and sockets that are associated with
//! another port already, are watched instead.

use std::collections::VecDeque;
use std::io;
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use windows_sys::Win32::Foundation::{HANDLE, STATUS_PENDING};
use windows_sys::Win32::Networking::WinSock::{
    LPFN_ACCEPTEX, SIO_GET_EXTENSION_FUNCTION_POINTER, SO_UPDATE_ACCEPT_CONTEXT, SOCKADDR_STORAGE,
    SOCKET, SOL_SOCKET, WSA_IO_PENDING, WSA_OPERATION_ABORTED, WSAECONNRESET, WSAEOPNOTSUPP,
    WSAGetLastError, WSAGetOverlappedResult, WSAID_ACCEPTEX, WSAIoctl, setsockopt,
};
use windows_sys::Win32::System::IO::{CancelIoEx, OVERLAPPED};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, ResetEvent, WaitForSingleObject,
};

use crate::lock::lock;
use crate::sys::{BorrowedSocket, OwnedSocket};
use crate::system::SystemPort;

/// `AcceptEx` — A listener for which the kernel accepts in advance. Each completed accept is a packet of the port.
pub(crate) struct PendingAccepts {
    /// The owner of the socket keeps it open until this is dropped.
    listener: SOCKET,
    domain: Domain,
    accept_ex: AcceptEx,
    /// Signalled when an accept has ended.
    event: OwnedHandle,
    depth: usize,
    accepts: Mutex<Accepts>,
}

type AcceptEx = unsafe extern "system" fn(
    SOCKET,
    SOCKET,
    *mut core::ffi::c_void,
    u32,
    u32,
    u32,
    *mut u32,
    *mut OVERLAPPED,
) -> i32;

#[derive(Default)]
struct Accepts {
    /// Posted to the kernel.
    pending: Vec<*mut Accept>,
    /// Completed, with their packets dequeued.
    ended: VecDeque<Box<Accept>>,
    /// Their packets, which only carry addresses, may be queued still: no other may have one of these.
    is_over: bool,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under
// the lock.
unsafe impl Send for Accepts {}

/// The size of an address that the kernel requires.
const ADDRESS: usize = size_of::<SOCKADDR_STORAGE>() + 16;

/// An accept, and the socket for the connection. It is not moved until it has completed.
#[repr(C)]
struct Accept {
    overlapped: OVERLAPPED,
    addresses: [u8; 2 * ADDRESS],
    socket: Socket,
}

impl PendingAccepts {
    /// Have the accepts of a listener complete on the port, under this key, at most this many once they are
    /// [posted](Self::post). This cannot be undone.
    pub(crate) fn new(
        port: &SystemPort,
        listener: BorrowedSocket<'_>,
        key: usize,
        depth: usize,
    ) -> io::Result<Self> {
        let domain = SockRef::from(&listener).local_addr()?.domain();
        let listener = listener.as_raw_socket();
        let accept_ex = accept_ex(listener as SOCKET)?;
        // SAFETY: the call touches no memory of ours; what it returns is a new handle.
        let event = unsafe {
            let event = CreateEventW(null(), 1, 0, null());
            if event.is_null() {
                return Err(io::Error::last_os_error());
            }
            OwnedHandle::from_raw_handle(event)
        };
        port.associate(std::ptr::without_provenance_mut(listener as usize), key)?;
        Ok(PendingAccepts {
            listener: listener as SOCKET,
            domain,
            accept_ex,
            event,
            depth,
            accepts: Mutex::default(),
        })
    }

    /// Post accepts up to the maximum, until the [end](Self::end). Completed ones that were not taken count.
    pub(crate) fn post(&self) -> io::Result<()> {
        let mut accepts = lock(&self.accepts);
        while !accepts.is_over && accepts.pending.len() + accepts.ended.len() < self.depth {
            let socket = Socket::new(self.domain, Type::STREAM, Some(Protocol::TCP))?;
            let accept = Box::into_raw(Box::new(Accept {
                overlapped: OVERLAPPED {
                    hEvent: self.event.as_raw_handle(),
                    ..OVERLAPPED::default()
                },
                addresses: [0; 2 * ADDRESS],
                socket,
            }));
            let mut received = 0;
            // SAFETY: the memory is there, and nobody else's, until the accept has ended.
            let failed = unsafe {
                let ended = (self.accept_ex)(
                    self.listener,
                    (*accept).socket.as_raw_socket() as SOCKET,
                    (&raw mut (*accept).addresses).cast(),
                    0,
                    ADDRESS as u32,
                    ADDRESS as u32,
                    &mut received,
                    &raw mut (*accept).overlapped,
                );
                (ended == 0).then(|| WSAGetLastError())
            };
            match failed {
                None | Some(WSA_IO_PENDING) => accepts.pending.push(accept),
                Some(code) => {
                    // SAFETY: the kernel has not taken it.
                    drop(unsafe { Box::from_raw(accept) });
                    // The peer had gone before this, and the next one may be there.
                    if code != WSAECONNRESET {
                        return Err(io::Error::from_raw_os_error(code));
                    }
                }
            }
        }
        Ok(())
    }

    /// The packet of an accept was dequeued, with this overlapped value.
    pub(crate) fn ended(&self, overlapped: usize) {
        let mut accepts = lock(&self.accepts);
        let is_it = |accept: &*mut Accept| accept.addr() == overlapped;
        if let Some(index) = accepts.pending.iter().position(is_it) {
            let accept = accepts.pending.remove(index);
            // SAFETY: the kernel has given it back.
            accepts.ended.push_back(unsafe { Box::from_raw(accept) });
        }
    }

    /// Have the kernel accept no more. What it has accepted by now is there to be [taken](Self::take), whatever becomes of the
    /// packets.
    pub(crate) fn end(&self) {
        let mut accepts = lock(&self.accepts);
        accepts.is_over = true;
        for &accept in &accepts.pending {
            // SAFETY: it is there until the kernel has ended it, which makes this call do nothing.
            unsafe { CancelIoEx(self.listener as HANDLE, &raw const (*accept).overlapped) };
        }
        // The kernel writes into them until they have ended. Their packets only carry their addresses.
        let Accepts { pending, ended, .. } = &mut *accepts;
        loop {
            // SAFETY: the event is there, and so are those that have not ended.
            unsafe { ResetEvent(self.event.as_raw_handle()) };
            pending.retain(|&accept| {
                // SAFETY: as above; the kernel writes this last.
                let status = unsafe { (&raw const (*accept).overlapped.Internal).read_volatile() };
                let is_pending = status == STATUS_PENDING as usize;
                if !is_pending {
                    // SAFETY: the kernel has given it back.
                    ended.push_back(unsafe { Box::from_raw(accept) });
                }
                is_pending
            });
            if pending.is_empty() {
                return;
            }
            // SAFETY: the event is there.
            unsafe { WaitForSingleObject(self.event.as_raw_handle(), INFINITE) };
        }
    }

    /// The next connection that was accepted: [`io::ErrorKind::WouldBlock`] if there is none.
    pub(crate) fn take(&self) -> io::Result<OwnedSocket> {
        let accept = lock(&self.accepts).ended.pop_front();
        let accept = accept.ok_or(io::ErrorKind::WouldBlock)?;
        let (mut received, mut flags) = (0, 0);
        // SAFETY: it has ended. What is written to is there for the calls.
        unsafe {
            let overlapped = &raw const accept.overlapped;
            if WSAGetOverlappedResult(self.listener, overlapped, &mut received, 0, &mut flags) == 0
            {
                return Err(match WSAGetLastError() {
                    WSA_OPERATION_ABORTED => io::ErrorKind::Interrupted.into(),
                    code => io::Error::from_raw_os_error(code),
                });
            }
            // Without this the socket has no addresses, and cannot be shut down.
            let updated = setsockopt(
                accept.socket.as_raw_socket() as SOCKET,
                SOL_SOCKET,
                SO_UPDATE_ACCEPT_CONTEXT,
                (&raw const self.listener).cast(),
                size_of::<SOCKET>() as i32,
            );
            if updated != 0 {
                return Err(io::Error::from_raw_os_error(WSAGetLastError()));
            }
        }
        Ok(accept.socket.into())
    }
}

impl Drop for PendingAccepts {
    fn drop(&mut self) {
        self.end();
    }
}

/// The function for sockets of this one's provider.
fn accept_ex(socket: SOCKET) -> io::Result<AcceptEx> {
    let id = WSAID_ACCEPTEX;
    let mut function: LPFN_ACCEPTEX = None;
    let mut length = 0;
    // SAFETY: what is pointed to is there for the call, and as long as it says.
    let status = unsafe {
        WSAIoctl(
            socket,
            SIO_GET_EXTENSION_FUNCTION_POINTER,
            (&raw const id).cast(),
            size_of_val(&id) as u32,
            (&raw mut function).cast(),
            size_of_val(&function) as u32,
            &mut length,
            null_mut(),
            None,
        )
    };
    match function {
        Some(function) if status == 0 => Ok(function),
        _ => Err(io::Error::from_raw_os_error(WSAEOPNOTSUPP)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::sys::AsSocket;
    use crate::{Backend, CompletionPort};

    const KEY: usize = 84;
    const DEPTH: usize = 3;

    fn pending_accepts(
        port: &CompletionPort,
    ) -> io::Result<(PendingAccepts, TcpListener, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let pending = PendingAccepts::new(port.system(), listener.as_socket(), KEY, DEPTH)?;
        let address = listener.local_addr()?;
        Ok((pending, listener, address))
    }

    fn each_backend(test: impl Fn(&CompletionPort) -> io::Result<()>) -> io::Result<()> {
        for backend in Backend::ALL {
            if backend.probe().is_ok() {
                test(&CompletionPort::builder().backend(*backend).build()?)?;
            }
        }
        Ok(())
    }

    /// Waits for an accept to end.
    fn next(port: &CompletionPort, pending: &PendingAccepts) -> io::Result<()> {
        let packet = port.dequeue_one(Some(Duration::from_secs(30)))?;
        assert_eq!((packet.completion_key, packet.transferred), (KEY, 0));
        pending.ended(packet.overlapped);
        Ok(())
    }

    fn peer(accepted: io::Result<OwnedSocket>) -> io::Result<SocketAddr> {
        TcpStream::from(accepted?).peer_addr()
    }

    #[test]
    fn as_many_are_accepted_in_advance_as_were_posted() -> io::Result<()> {
        each_backend(|port| {
            let (pending, _listener, address) = pending_accepts(port)?;
            pending.post()?;
            let clients = (0..DEPTH + 1).map(|_| TcpStream::connect(address));
            let clients: Vec<_> = clients.collect::<io::Result<_>>()?;
            for _ in 0..DEPTH {
                next(port, &pending)?;
            }
            // Completed ones that were not taken count.
            pending.post()?;
            assert!(lock(&pending.accepts).pending.is_empty());
            for client in &clients[..DEPTH] {
                assert_eq!(peer(pending.take())?, client.local_addr()?);
            }
            let none = pending.take().expect_err("no more have ended");
            assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
            pending.post()?;
            next(port, &pending)?;
            assert_eq!(peer(pending.take())?, clients[DEPTH].local_addr()?);
            Ok(())
        })
    }

    #[test]
    fn what_is_pending_ends_when_it_is_dropped() -> io::Result<()> {
        each_backend(|port| {
            let (pending, _listener, address) = pending_accepts(port)?;
            pending.post()?;
            let _client = TcpStream::connect(address)?;
            next(port, &pending)?;
            drop(pending);
            for _ in 1..DEPTH {
                let packet = port.dequeue_one(Some(Duration::from_secs(30)))?;
                assert_eq!(packet.completion_key, KEY);
            }
            Ok(())
        })
    }
}
