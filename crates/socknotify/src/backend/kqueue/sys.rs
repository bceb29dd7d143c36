//! `kqueue` and its relatives: the system calls.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

#[cfg(kqueue_stand_in)]
use kqueue_stand_in as kernel;
#[cfg(not(kqueue_stand_in))]
use libc as kernel;

use socket2::SockRef;

use super::identity::Kind;
pub(super) use crate::os::calls::{Errno, poll_now};
use crate::os::calls::{errno, option_of, outcome};
use crate::os::{Fd, Process};

/// What a change does. The systems have it in integers of several widths.
pub(super) mod flags {
    use super::kernel;

    pub(in super::super) const ADD: u32 = kernel::EV_ADD as u32;
    pub(in super::super) const DELETE: u32 = kernel::EV_DELETE as u32;
    pub(in super::super) const ENABLE: u32 = kernel::EV_ENABLE as u32;
    pub(in super::super) const DISABLE: u32 = kernel::EV_DISABLE as u32;
    pub(in super::super) const ONESHOT: u32 = kernel::EV_ONESHOT as u32;
    pub(in super::super) const CLEAR: u32 = kernel::EV_CLEAR as u32;
    pub(in super::super) const DISPATCH: u32 = kernel::EV_DISPATCH as u32;
    pub(super) const EOF: u32 = kernel::EV_EOF as u32;
    pub(super) const ERROR: u32 = kernel::EV_ERROR as u32;
}

/// What a filter is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Read,
    Write,
    User,
    Timer,
}

/// A change, or what the kernel reports.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Event(kernel::kevent);

// SAFETY: it holds a number where the kernel has a pointer.
unsafe impl Send for Event {}

impl Event {
    /// A change of a filter. Its events carry this generation.
    pub(super) fn new(ident: u32, filter: Filter, flags: u32, generation: u32) -> Self {
        // SAFETY: any bits are a value of the structure, which has more fields on some systems.
        let mut event: kernel::kevent = unsafe { std::mem::zeroed() };
        event.ident = ident as usize;
        event.filter = match filter {
            Filter::Read => kernel::EVFILT_READ,
            Filter::Write => kernel::EVFILT_WRITE,
            Filter::User => kernel::EVFILT_USER,
            Filter::Timer => kernel::EVFILT_TIMER,
        };
        event.flags = flags as _;
        event.udata = std::ptr::without_provenance_mut(generation as usize);
        Event(event)
    }

    /// A place for a change.
    pub(super) fn none() -> Self {
        Event::new(0, Filter::Read, 0, 0)
    }

    /// This change, but only ends and errors are reported, not data or room.
    pub(super) fn ends_only(mut self) -> Self {
        self.0.fflags = kernel::NOTE_LOWAT;
        self.0.data = i32::MAX as _;
        self
    }

    /// This change, with a time.
    pub(super) fn after(mut self, time: Duration) -> Self {
        // At least one, as zero is a time of its own on some systems; rounded up, so that it is never early.
        let milliseconds = time
            .as_nanos()
            .div_ceil(1_000_000)
            .clamp(1, i32::MAX as u128);
        self.0.data = milliseconds as _;
        self
    }

    /// This change, to be ready now.
    pub(super) fn triggered(mut self) -> Self {
        self.0.fflags = kernel::NOTE_TRIGGER;
        self
    }

    fn with_receipt(mut self) -> Self {
        self.0.flags |= kernel::EV_RECEIPT;
        self
    }

    pub(super) fn ident(&self) -> u32 {
        self.0.ident as u32
    }

    pub(super) fn filter(&self) -> Filter {
        match self.0.filter {
            kernel::EVFILT_READ => Filter::Read,
            kernel::EVFILT_WRITE => Filter::Write,
            kernel::EVFILT_TIMER => Filter::Timer,
            _ => Filter::User,
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.0.udata.addr() as u32
    }

    /// The descriptor, if it is an event of one.
    pub(super) fn fd(&self) -> Fd {
        Fd(self.ident())
    }

    fn has(&self, flag: u32) -> bool {
        self.0.flags as u32 & flag != 0
    }

    /// Nothing more can be received, or sent.
    pub(super) fn is_end(&self) -> bool {
        self.has(flags::EOF)
    }

    /// At an end: the socket's error, if it has one.
    pub(super) fn is_error(&self) -> bool {
        self.is_end() && self.0.fflags != 0
    }

    /// The error of a connect that failed. One that says nothing of this may be a connection's.
    pub(super) fn is_failed_connect(&self) -> bool {
        let error = self.0.fflags as i32;
        let errors = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH];
        self.is_end() && errors.contains(&error)
    }

    /// How much there is to receive, or the room to send.
    #[allow(clippy::unnecessary_cast, reason = "it is narrower on some systems")]
    pub(super) fn amount(&self) -> i64 {
        self.0.data as i64
    }

    /// What became of a change: `None` if this is no answer to one.
    pub(super) fn answer(&self) -> Option<Result<(), Errno>> {
        match self.0.data as Errno {
            _ if !self.has(flags::ERROR) => None,
            0 => Some(Ok(())),
            error => Some(Err(error)),
        }
    }
}

/// A kqueue. A forked child has none: there, its descriptor is free, or refers to something else.
pub(super) struct Queue {
    fd: ManuallyDrop<OwnedFd>,
    process: Process,
}

impl Queue {
    /// `kqueue`
    pub(super) fn new() -> Result<Self, Errno> {
        // SAFETY: the calls take no memory; the number is new, and this queue's.
        unsafe {
            let fd = outcome(kernel::kqueue())?;
            let queue = Queue {
                fd: ManuallyDrop::new(OwnedFd::from_raw_fd(fd)),
                process: Process::this(),
            };
            outcome(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC))?;
            Ok(queue)
        }
    }

    /// `kevent` — Make changes, and replace what is in `events` by what is ready, or will be in time.
    ///
    /// If a change fails, only the results of failed changes are returned, and all others are made. So there has to be
    /// room for as many events as changes.
    pub(super) fn wait(
        &self,
        changes: &[Event],
        events: &mut Vec<Event>,
        room: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        #[cfg(all(test, not(interleavings)))]
        calls::count();
        let room = room.max(changes.len());
        // At most a day: the caller waits again.
        let timeout = timeout.map(|time| time.min(Duration::from_secs(24 * 60 * 60)));
        let timeout = timeout.map(|time| {
            // SAFETY: any bits are a value of the structure.
            let mut value: kernel::timespec = unsafe { std::mem::zeroed() };
            value.tv_sec = time.as_secs() as _;
            value.tv_nsec = time.subsec_nanos() as _;
            value
        });
        events.clear();
        // With too little memory it takes fewer at once.
        let room = match events.try_reserve(room) {
            Ok(()) => room,
            Err(_) if events.capacity() >= changes.len().max(1) => events.capacity(),
            Err(_) => return Err(libc::ENOMEM),
        };
        // SAFETY: there are so many changes, and there is room for so many events; an `Event` is what the
        // kernel writes.
        unsafe {
            let count = outcome(kernel::kevent(
                self.fd.as_raw_fd(),
                changes.as_ptr().cast(),
                changes.len() as _,
                events.as_mut_ptr().cast(),
                room as _,
                timeout.as_ref().map_or(null(), std::ptr::from_ref),
            ))?;
            events.set_len(count as usize);
        }
        Ok(())
    }

    /// `kevent` — Make a few changes, and take nothing. Those behind one that fails are not made.
    pub(super) fn change(&self, changes: &[Event]) -> Result<(), Errno> {
        #[cfg(all(test, not(interleavings)))]
        calls::count();
        // SAFETY: any bits are a value of the structure.
        let none: kernel::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: there are so many changes, and nothing is written.
        let done = unsafe {
            kernel::kevent(
                self.fd.as_raw_fd(),
                changes.as_ptr().cast(),
                changes.len() as _,
                null_mut(),
                0,
                &none,
            )
        };
        outcome(done).map(drop)
    }

    /// `kevent` — Make changes, and replace what is in `refused` by those that failed.
    pub(super) fn change_each(
        &self,
        changes: &mut [Event],
        refused: &mut Vec<Event>,
    ) -> Result<(), Errno> {
        for change in &mut *changes {
            *change = change.with_receipt();
        }
        self.wait(changes, refused, changes.len(), Some(Duration::ZERO))?;
        refused.retain(|event| matches!(event.answer(), Some(Err(_))));
        Ok(())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: the number is this queue's, and not used any more.
            unsafe { kernel::close(self.fd.as_raw_fd()) };
        }
    }
}

/// The error number of a call of the standard library's.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A socket by its number, for a call.
fn with_socket<R>(fd: Fd, call: impl FnOnce(SockRef<'_>) -> io::Result<R>) -> Result<R, Errno> {
    // SAFETY: the number is not negative. It goes nowhere but into system calls, to which any number is as good.
    let fd = unsafe { BorrowedFd::borrow_raw(fd.0 as i32) };
    call(SockRef::from(&fd)).map_err(|error| errno_of(&error))
}

/// `SO_TYPE`, `getsockname` — What kind of socket this is. An error if it is none.
pub(super) fn kind_of_socket(fd: Fd) -> Result<Kind, Errno> {
    with_socket(fd, |socket| {
        Ok(match socket.r#type()?.into() {
            libc::SOCK_STREAM | libc::SOCK_SEQPACKET => Kind::Stream,
            // Not every system has `SO_DOMAIN`.
            _ if socket.local_addr()?.is_unix() => Kind::UnixDatagram,
            _ => Kind::Datagram,
        })
    })
}

/// `fcntl` — Whether a descriptor was opened for `O_RDONLY`, `O_WRONLY` or both.
pub(super) fn access(fd: Fd) -> i32 {
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(fd.0 as i32, libc::F_GETFL) & libc::O_ACCMODE }
}

/// `fstat` — Whether this is a regular file or a directory.
pub(super) fn is_file(fd: Fd) -> bool {
    // SAFETY: as above. It is not closed.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd.0 as i32) });
    file.metadata().is_ok_and(|it| it.is_file() || it.is_dir())
}

/// `SO_ACCEPTCONN` — Whether a socket listens.
pub(super) fn listens(fd: Fd) -> Result<bool, Errno> {
    option_of(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, [0; 4]).map(|value| value != [0; 4])
}

/// `getpeername` — Whether a socket is connected.
pub(super) fn is_connected(fd: Fd) -> Result<bool, Errno> {
    match with_socket(fd, |socket| socket.peer_addr()) {
        Ok(_) => Ok(true),
        Err(libc::ENOTCONN) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `recv` — Whether a socket has an error, which stays.
pub(super) fn has_error(fd: Fd) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: there is a byte for the call.
    let done = unsafe { kernel::recv(fd.0 as i32, (&raw mut byte).cast(), 1, flags) };
    done == -1 && !matches!(errno(), libc::EAGAIN | libc::EINTR | libc::ENOTCONN)
}

/// How many calls of `kevent` each thread has made.
#[cfg(all(test, not(interleavings)))]
pub(super) mod calls {
    use std::cell::Cell;

    thread_local! {
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        CALLS.set(CALLS.get() + 1);
    }

    /// Those that are made within `work`.
    pub(in super::super) fn within(work: impl FnOnce()) -> usize {
        let before = CALLS.get();
        work();
        CALLS.get() - before
    }
}
