//! The kernel's socket driver, called directly, as `select` and its relatives do internally.
//!
//! A *poll* names sockets and conditions, and completes when one of the conditions holds. It
//! reports what holds, once. It keeps no socket open: closing the last handle of a socket completes
//! the poll with [`LOCAL_CLOSE`].

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{FILE_OPEN, NtCancelIoFileEx, NtCreateFile};
use windows_sys::Wdk::System::IO::NtDeviceIoControlFile;
use windows_sys::Win32::Foundation::{
    HANDLE, NTSTATUS, RtlNtStatusToDosError, STATUS_INVALID_HANDLE, STATUS_PENDING, STATUS_SUCCESS,
    UNICODE_STRING,
};
use windows_sys::Win32::Networking::WinSock::{
    SO_TYPE, SOL_SOCKET, WSAENOTSOCK, WSAGetLastError, getsockopt,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_SHARE_READ, FILE_SHARE_WRITE, SYNCHRONIZE, SetFileCompletionNotificationModes,
};
use windows_sys::Win32::System::IO::{IO_STATUS_BLOCK, IO_STATUS_BLOCK_0};
use windows_sys::Win32::System::WindowsProgramming::{
    FILE_SKIP_COMPLETION_PORT_ON_SUCCESS, FILE_SKIP_SET_EVENT_ON_HANDLE,
};

use crate::os::windows::calls;
use crate::os::windows::port::{self, KernelPort};
use crate::os::{self, Fd};

pub(super) const RECEIVE: u32 = 0x0001;
pub(super) const RECEIVE_EXPEDITED: u32 = 0x0002;
pub(super) const SEND: u32 = 0x0004;
pub(super) const DISCONNECT: u32 = 0x0008;
pub(super) const ABORT: u32 = 0x0010;
pub(super) const LOCAL_CLOSE: u32 = 0x0020;
pub(super) const CONNECT: u32 = 0x0040;
pub(super) const ACCEPT: u32 = 0x0080;
pub(super) const CONNECT_FAIL: u32 = 0x0100;

const IOCTL_AFD_POLL: u32 = 0x0001_2024;
const IOCTL_AFD_EVENT_SELECT: u32 = 0x0001_2087;

/// What a poll is for, and what it has found. The driver would take several sockets.
#[repr(C)]
struct PollInfo {
    timeout: i64,
    count: u32,
    exclusive: u32,
    handle: HANDLE,
    events: u32,
    status: NTSTATUS,
}

/// Memory for one poll of one socket, and its place in a device. It must stay where it is until the poll
/// has [ended](Devices::end).
#[repr(C)]
pub(super) struct Poll {
    outcome: IO_STATUS_BLOCK,
    info: PollInfo,
    fd: Fd,
    /// Which device it is for.
    device: usize,
}

impl Poll {
    fn new(device: usize, fd: Fd, events: u32) -> Self {
        Poll {
            outcome: nothing(),
            info: PollInfo {
                timeout: i64::MAX,
                count: 1,
                exclusive: 0,
                handle: os::handle(fd),
                events,
                status: 0,
            },
            fd,
            device,
        }
    }
}

fn nothing() -> IO_STATUS_BLOCK {
    IO_STATUS_BLOCK {
        Anonymous: IO_STATUS_BLOCK_0 {
            Status: STATUS_PENDING,
        },
        Information: 0,
    }
}

/// The socket driver, opened for polls. They queue packets on the port, under this key, unless they complete immediately.
fn open(port: &KernelPort, key: usize) -> io::Result<OwnedHandle> {
    let mut name: Vec<u16> = r"\Device\Afd\Socknotify".encode_utf16().collect();
    let length = (name.len() * 2) as u16;
    let name = UNICODE_STRING {
        Length: length,
        MaximumLength: length,
        Buffer: name.as_mut_ptr(),
    };
    let attributes = OBJECT_ATTRIBUTES {
        Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
        RootDirectory: null_mut(),
        ObjectName: &name,
        Attributes: 0,
        SecurityDescriptor: null(),
        SecurityQualityOfService: null(),
    };
    let mut device = null_mut();
    // SAFETY: all that is pointed to outlives the call; what it returns is a new handle.
    let device = unsafe {
        done(NtCreateFile(
            &mut device,
            SYNCHRONIZE,
            &attributes,
            &mut nothing(),
            null(),
            0,
            FILE_SHARE_READ | FILE_SHARE_WRITE,
            FILE_OPEN,
            0,
            null(),
            0,
        ))?;
        OwnedHandle::from_raw_handle(device)
    };
    port.associate(device.as_raw_handle(), key)?;
    let modes = (FILE_SKIP_COMPLETION_PORT_ON_SUCCESS | FILE_SKIP_SET_EVENT_ON_HANDLE) as u8;
    // SAFETY: the call touches no memory of ours.
    match unsafe { SetFileCompletionNotificationModes(device.as_raw_handle(), modes) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(device),
    }
}

/// `NtDeviceIoControlFile` — A request of the driver. If it ends later, its packet points to the context.
///
/// # Safety
///
/// The outcome, and the input and output that are not null, are there until the request has ended.
unsafe fn control<I, O>(
    handle: HANDLE,
    code: u32,
    context: *const Poll,
    outcome: *mut IO_STATUS_BLOCK,
    input: *const I,
    output: *mut O,
) -> NTSTATUS {
    // SAFETY: the caller's promise.
    unsafe {
        NtDeviceIoControlFile(
            handle,
            null_mut(),
            None,
            context.cast(),
            outcome,
            code,
            input.cast(),
            size_of::<I>() as u32,
            output.cast(),
            size_of::<O>() as u32,
        )
    }
}

fn done(status: NTSTATUS) -> io::Result<()> {
    match status {
        STATUS_SUCCESS => Ok(()),
        status => Err(error(status)),
    }
}

#[repr(C)]
struct Selection {
    event: HANDLE,
    events: u32,
}

/// Have the driver record which of these events begin to hold for a socket, and set this Windows event. A call without
/// events ends that. It fails if the handle is no socket.
pub(super) fn select_events(socket: HANDLE, event: HANDLE, events: u32) -> io::Result<()> {
    if is_unfinished(socket) {
        return Err(error(STATUS_INVALID_HANDLE));
    }
    let selection = Selection { event, events };
    let (code, nowhere) = (IOCTL_AFD_EVENT_SELECT, null_mut::<()>());
    // SAFETY: the driver answers this at once.
    done(unsafe { control(socket, code, null(), &mut nothing(), &selection, nowhere) })
}

/// Devices that share the polls of one port: the kernel searches one device's list for each poll that
/// is cancelled.
pub(super) struct Devices {
    port: Arc<KernelPort>,
    key: usize,
    devices: Vec<OwnedHandle>,
    /// Polls that are not in progress. The others belong to the kernel.
    #[allow(clippy::vec_box, reason = "the kernel knows them by their address")]
    spare: Vec<Box<Poll>>,
    pending: usize,
}

/// How many polls one device has at most.
const SHARE: usize = 32;

impl Devices {
    /// Packets of polls come to this port, and have this key.
    pub(super) fn new(port: Arc<KernelPort>, key: usize) -> io::Result<Self> {
        let mut devices = Devices {
            port,
            key,
            devices: Vec::new(),
            spare: Vec::new(),
            pending: 0,
        };
        devices.add()?;
        Ok(devices)
    }

    fn add(&mut self) -> io::Result<()> {
        let index = self.devices.len();
        self.devices.push(open(&self.port, self.key)?);
        let polls = (0..SHARE).map(|_| Box::new(Poll::new(index, Fd(0), 0)));
        self.spare.extend(polls);
        Ok(())
    }

    /// Polls that were begun and not [ended](Self::end).
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Begin to poll a socket for these conditions. Also returns whether that has completed immediately, and has no packet.
    pub(super) fn begin(&mut self, fd: Fd, events: u32) -> io::Result<(*mut Poll, bool)> {
        if is_unfinished(os::handle(fd)) {
            return Err(error(STATUS_INVALID_HANDLE));
        }
        if self.spare.is_empty() {
            self.add()?;
        }
        let mut poll = self.spare.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        *poll = Poll::new(poll.device, fd, events);
        let device = self.devices[poll.device].as_raw_handle();
        let poll = Box::into_raw(poll);
        calls::note();
        // SAFETY: until it has ended nothing else refers to it, and it is not moved. The kernel writes into what was made for
        // that.
        let status = unsafe {
            let info = &raw mut (*poll).info;
            control(
                device,
                IOCTL_AFD_POLL,
                poll,
                &raw mut (*poll).outcome,
                info,
                info,
            )
        };
        if status != STATUS_PENDING {
            // SAFETY: the kernel has not taken it.
            done(status).inspect_err(|_| self.spare.push(unsafe { Box::from_raw(poll) }))?;
        }
        self.pending += 1;
        Ok((poll, status == STATUS_SUCCESS))
    }

    /// Cancel a poll. Its packet still comes, with the conditions if it has found any. True if it had not completed
    /// before.
    ///
    /// # Safety
    ///
    /// It has not [ended](Self::end).
    pub(super) unsafe fn cancel(&self, poll: *mut Poll) -> bool {
        calls::note();
        let mut outcome = nothing();
        // SAFETY: the poll is there until it has ended. If it is completed already, the call does nothing.
        unsafe {
            let device = &self.devices[(&raw const (*poll).device).read()];
            let status = NtCancelIoFileEx(
                device.as_raw_handle(),
                &raw const (*poll).outcome,
                &mut outcome,
            );
            status == STATUS_SUCCESS
        }
    }

    /// Cancel all polls. Their packets still come.
    pub(super) fn cancel_all(&self) {
        for device in &self.devices {
            calls::note();
            let mut outcome = nothing();
            // SAFETY: the call touches no memory of ours but the outcome, which outlives it.
            unsafe { NtCancelIoFileEx(device.as_raw_handle(), null(), &mut outcome) };
        }
    }

    /// A poll's packet was dequeued, or it has completed immediately. Returns of which socket, and the conditions that hold;
    /// none if it was cancelled.
    ///
    /// # Safety
    ///
    /// This has begun it, and it has not ended since.
    pub(super) unsafe fn end(&mut self, poll: *mut Poll) -> (Fd, u32) {
        // SAFETY: the kernel does not use it any more.
        let poll = unsafe { Box::from_raw(poll) };
        // SAFETY: every bit pattern is a status.
        let status = unsafe { poll.outcome.Anonymous.Status };
        let found = match status == STATUS_SUCCESS && poll.info.count > 0 {
            true => poll.info.events,
            false => 0,
        };
        let fd = poll.fd;
        self.pending -= 1;
        self.spare.push(poll);
        (fd, found)
    }
}

fn error(status: NTSTATUS) -> io::Error {
    // SAFETY: a translation of a value.
    let code = unsafe { RtlNtStatusToDosError(status) };
    io::Error::from_raw_os_error(code as i32)
}

/// Whether a handle is no socket, as far as Winsock knows. Called under Wine only.
///
/// There a socket is a handle of the driver for a moment before it is a socket, and a query for such a handle stops
/// Wine's server. This can happen if a socket was closed without REMOVE and another is being created under its value.
/// Asking Winsock first leaves only a small gap.
fn is_unfinished(handle: HANDLE) -> bool {
    if !port::is_wine() {
        return false;
    }
    // SAFETY: without memory, the call writes nothing. It checks whether the handle is a socket before it fails for
    // lack of memory.
    unsafe {
        getsockopt(handle.addr(), SOL_SOCKET, SO_TYPE, null_mut(), null_mut());
        WSAGetLastError() == WSAENOTSOCK
    }
}
