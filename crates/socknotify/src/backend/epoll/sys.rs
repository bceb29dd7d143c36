//! The system calls, by the numbers of descriptors.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::sys::Fd;
pub(super) use crate::sys::calls::{Errno, poll_now};
use crate::sys::calls::{errno, option, outcome};

/// A descriptor, of a call that returns a new one.
fn new_descriptor(value: i32) -> Result<OwnedFd, Errno> {
    let fd = outcome(value)?;
    // SAFETY: the system has made it for this call, so that nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel gives back with a report: the descriptor, and the generation of the interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data(u64);

impl Data {
    /// These have the numbers of no descriptor.
    pub(super) const WAKER: Data = Data(u32::MAX as u64);
    pub(super) const TIMER: Data = Data(u32::MAX as u64 - 1);
    pub(super) const COMPLETIONS: Data = Data(u32::MAX as u64 - 2);

    /// Whether it is one of those.
    #[inline]
    pub(super) fn is_own(self) -> bool {
        self.fd() >= Data::COMPLETIONS.fd()
    }

    #[inline]
    pub(super) fn new(fd: Fd, generation: u32) -> Self {
        Data(u64::from(generation) << 32 | u64::from(fd.0))
    }

    #[inline]
    pub(super) const fn fd(self) -> Fd {
        Fd(self.0 as u32)
    }

    #[inline]
    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What the kernel reports.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Event(libc::epoll_event);

impl Event {
    pub(super) fn flags(&self) -> u32 {
        self.0.events
    }

    pub(super) fn data(&self) -> Data {
        Data(self.0.u64)
    }
}

/// `epoll_create1`
pub(super) fn epoll_create() -> Result<OwnedFd, Errno> {
    // SAFETY: it takes no memory.
    new_descriptor(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// `epoll_ctl`
#[inline]
pub(super) fn control(
    set: &OwnedFd,
    call: i32,
    fd: Fd,
    flags: u32,
    data: Data,
) -> Result<(), Errno> {
    let mut event = libc::epoll_event {
        events: flags,
        u64: data.0,
    };
    // SAFETY: the event is there for the call. The kernel checks the number, and only watches it.
    outcome(unsafe { libc::epoll_ctl(set.as_raw_fd(), call, fd.0 as i32, &mut event) }).map(drop)
}

/// `epoll_ctl` — Adds a descriptor of the port's own.
pub(super) fn add(set: &OwnedFd, fd: impl AsFd, flags: u32, data: Data) -> Result<(), Errno> {
    control_own(set, libc::EPOLL_CTL_ADD, fd, flags, data)
}

/// `epoll_ctl` — For a descriptor of the port's own.
pub(super) fn control_own(
    set: &OwnedFd,
    call: i32,
    fd: impl AsFd,
    flags: u32,
    data: Data,
) -> Result<(), Errno> {
    let fd = Fd(fd.as_fd().as_raw_fd() as u32);
    control(set, call, fd, flags, data)
}

/// A time for the kernel, as it has it on every processor.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// `epoll_wait`, `epoll_pwait2` — Replaces what is in `events` by what the set has, or will have in time.
///
/// A wait may end early: when a signal comes, or with a very long time.
#[inline]
pub(super) fn wait(set: &OwnedFd, events: &mut Vec<Event>, room: usize, timeout: Option<Duration>) {
    events.clear();
    // With too little memory it takes fewer at once, and none without.
    let room = match events.try_reserve(room) {
        Ok(()) => room,
        Err(_) => events.capacity(),
    };
    if room == 0 {
        return;
    }
    let memory = events.as_mut_ptr().cast::<libc::epoll_event>();
    let room = room as i32;
    let set = set.as_raw_fd();
    let count = match timeout {
        // SAFETY: there is room for so many events.
        None => unsafe { libc::epoll_wait(set, memory, room, -1) },
        // SAFETY: as above.
        Some(Duration::ZERO) => unsafe { libc::epoll_wait(set, memory, room, 0) },
        // SAFETY: as above.
        Some(timeout) => unsafe { wait_exactly(set, memory, room, timeout) },
    };
    // SAFETY: the kernel has written so many events.
    unsafe { events.set_len(usize::try_from(count).unwrap_or(0)) };
}

/// # Safety
///
/// There has to be memory for `room` events.
#[cold]
unsafe fn wait_exactly(
    set: i32,
    memory: *mut libc::epoll_event,
    room: i32,
    timeout: Duration,
) -> i32 {
    /// Kernels before 5.11 have no such call, and some sandboxes forbid it.
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    // Longer than a day is not needed: the caller waits again.
    let timeout = timeout.min(Duration::from_secs(24 * 60 * 60));
    if !IS_MISSING.load(Ordering::Relaxed) {
        let time = Timespec {
            seconds: timeout.as_secs() as i64,
            nanoseconds: timeout.subsec_nanos().into(),
        };
        let no_mask = std::ptr::null::<libc::c_void>();
        let call = libc::SYS_epoll_pwait2;
        // SAFETY: the caller's promise; the time is there for the call.
        let count = unsafe { libc::syscall(call, set, memory, room, &raw const time, no_mask, 0) };
        if count >= 0 || !matches!(errno(), libc::ENOSYS | libc::EPERM) {
            return count as i32;
        }
        IS_MISSING.store(true, Ordering::Relaxed);
    }
    let milliseconds = timeout.as_nanos().div_ceil(1_000_000) as i32;
    // SAFETY: the caller's promise.
    unsafe { libc::epoll_wait(set, memory, room, milliseconds) }
}

/// `SO_COOKIE` — What no other socket has.
pub(super) fn identity(fd: Fd) -> Result<u64, Errno> {
    match option::<u64>(fd, libc::SO_COOKIE) {
        // What an emulator does not know it may call invalid.
        Err(libc::ENOPROTOOPT | libc::EINVAL) => inode(fd),
        done => done,
    }
}

/// `fstat` — Where there are no cookies, as on kernels before 4.12, the inode number has to do.
fn inode(fd: Fd) -> Result<u64, Errno> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the memory is there for the call, and any bits are a value of the structure.
    unsafe {
        outcome(libc::fstat(fd.0 as i32, stat.as_mut_ptr()))?;
        #[allow(
            clippy::useless_conversion,
            reason = "it is narrower on some processors"
        )]
        Ok(stat.assume_init().st_ino.into())
    }
}

/// What kind of descriptor something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A socket that can be hung up: one that has connections, or a Unix datagram socket.
    Stream,
    /// One that cannot, or is closed.
    Datagram,
    /// No socket.
    Other,
}

/// `SO_TYPE`, `SO_DOMAIN` — What kind of descriptor this is.
pub(super) fn kind(fd: Fd) -> Kind {
    match option::<i32>(fd, libc::SO_TYPE) {
        Ok(libc::SOCK_STREAM | libc::SOCK_SEQPACKET) => Kind::Stream,
        Ok(_) if option::<i32>(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX) => Kind::Stream,
        Err(libc::ENOTSOCK) => Kind::Other,
        _ => Kind::Datagram,
    }
}

/// `TCP_INFO` — Whether this is known to be a TCP socket that was never connected. It has no room for receiving then.
pub(super) fn was_never_connected(fd: Fd) -> bool {
    // Not every system writes all of it.
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    // SAFETY: any bits are a value of the structure, which is of integers.
    unsafe { info.assume_init_mut() }.tcpi_rcv_space = u32::MAX;
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: so much memory is there for the call; any bits are a value of the structure, which is of
    // integers.
    unsafe {
        let value = info.as_mut_ptr().cast();
        let number = fd.0 as i32;
        let done = libc::getsockopt(
            number,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            value,
            &mut length,
        );
        done == 0 && info.assume_init().tcpi_rcv_space == 0
    }
}

/// `eventfd`
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: it takes no memory.
    new_descriptor(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Add to an `eventfd`. It is never read, and it would take 2^64 times to fill it.
pub(super) fn signal(eventfd: &OwnedFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the bytes are there for the call.
    unsafe { libc::write(eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// `timerfd_create`
pub(super) fn timerfd() -> Result<OwnedFd, Errno> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: it takes no memory.
    new_descriptor(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })
}

/// `timerfd_settime` — Once, after this time; `None`: never.
pub(super) fn set_timer(timer: &OwnedFd, time: Option<Duration>) -> Result<(), Errno> {
    // Zero would unset it.
    let time = time.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
    // SAFETY: any bits are a value of the structure.
    let mut setting: libc::itimerspec = unsafe { std::mem::zeroed() };
    setting.it_value.tv_sec = time.as_secs().min(libc::time_t::MAX as u64) as libc::time_t;
    setting.it_value.tv_nsec = time.subsec_nanos() as libc::c_long;
    // SAFETY: the structure is there for the call.
    let done =
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &setting, std::ptr::null_mut()) };
    outcome(done).map(drop)
}
