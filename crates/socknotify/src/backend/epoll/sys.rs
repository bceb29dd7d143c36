//! `epoll` and its relatives: the system calls, by descriptor number.

#![allow(unsafe_code, reason = "descriptors are known here by number only")]

use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};

use crate::os::Fd;
pub(super) use crate::os::calls::{Errno, poll_now};
use crate::os::calls::{errno, option_of};

/// A descriptor by its number. It may be closed, or another one's: the kernel checks that, and only watches it.
#[inline]
pub(super) fn by_number(fd: &Fd) -> BorrowedFd<'_> {
    // SAFETY: the number is not negative. It goes nowhere but into system calls, to which any number is as good.
    unsafe { BorrowedFd::borrow_raw(fd.0 as i32) }
}

/// An error's number.
#[inline]
fn number(error: rustix::io::Errno) -> Errno {
    error.raw_os_error()
}

/// What the kernel gives back with a report: the descriptor, and the generation of the interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data(u64);

impl Data {
    /// These have the numbers of no descriptor.
    pub(super) const WAKER: Data = Data(u32::MAX as u64);
    pub(super) const TIMER: Data = Data(u32::MAX as u64 - 1);

    /// Whether it is one of those.
    #[inline]
    pub(super) fn is_own(self) -> bool {
        self.fd() >= Data::TIMER.fd()
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

/// A wait is for so many at most. The kernel refuses far more, and the memory stays.
const MOST: usize = 1 << 16;

/// What the last wait reported.
pub(super) type Reported = Vec<epoll::Event>;

/// The conditions of an event, and what was registered with it. The kernel has them packed.
#[inline]
pub(super) fn read(epoll::Event { flags, data }: epoll::Event) -> (u32, Data) {
    (flags.bits(), Data(data.u64()))
}

/// Forget what was reported. Returns the memory for a wait: with too little it is for fewer.
#[inline]
fn room_in(events: &mut Reported, room: usize) -> &mut [MaybeUninit<epoll::Event>] {
    events.clear();
    let room = room.min(MOST);
    let room = match events.try_reserve(room) {
        Ok(()) => room,
        Err(_) => events.capacity(),
    };
    &mut events.spare_capacity_mut()[..room]
}

/// `epoll_create1`
pub(super) fn epoll_create() -> Result<OwnedFd, Errno> {
    epoll::create(CreateFlags::CLOEXEC).map_err(number)
}

/// `epoll_ctl` — Adds a descriptor.
pub(super) fn add(set: &OwnedFd, fd: impl AsFd, flags: u32, data: Data) -> Result<(), Errno> {
    let flags = EventFlags::from_bits_retain(flags);
    epoll::add(set, fd, EventData::new_u64(data.0), flags).map_err(number)
}

/// `epoll_ctl` — Watches a descriptor of the set in another way.
#[inline]
pub(super) fn modify(set: &OwnedFd, fd: impl AsFd, flags: u32, data: Data) -> Result<(), Errno> {
    let flags = EventFlags::from_bits_retain(flags);
    epoll::modify(set, fd, EventData::new_u64(data.0), flags).map_err(number)
}

/// `epoll_ctl` — Removes a descriptor.
pub(super) fn delete(set: &OwnedFd, fd: Fd) -> Result<(), Errno> {
    epoll::delete(set, by_number(&fd)).map_err(number)
}

/// `epoll_wait`, `epoll_pwait2` — Replaces what is in `events` by what the set has, or will have in time.
///
/// A wait may end early: when a signal comes, or with a very long time.
#[inline]
pub(super) fn wait(set: &OwnedFd, events: &mut Reported, room: usize, timeout: Option<Duration>) {
    let memory = room_in(events, room);
    if memory.is_empty() {
        return;
    }
    let waited = match timeout {
        Some(timeout) if timeout > Duration::ZERO => wait_exactly(set, memory, timeout),
        now_or_never => {
            let now = now_or_never.map(|_| &Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            });
            epoll::wait(set, memory, now).map(|(found, _)| found.len())
        }
    };
    // SAFETY: the kernel has written so many.
    unsafe { events.set_len(waited.unwrap_or(0)) };
}

/// Kernels before 5.11 have no such call, and some sandboxes forbid it.
static HAS_PWAIT2: AtomicBool = AtomicBool::new(true);

pub(crate) fn count_milliseconds() {
    HAS_PWAIT2.store(false, Ordering::Relaxed);
}

/// In microseconds, where the kernel can. `epoll::wait` counts milliseconds.
#[cold]
fn wait_exactly(
    set: &OwnedFd,
    memory: &mut [MaybeUninit<epoll::Event>],
    timeout: Duration,
) -> rustix::io::Result<usize> {
    // Longer than a day is not needed: the caller waits again.
    let timeout = timeout.min(Duration::from_secs(24 * 60 * 60));
    let (seconds, nanoseconds) = (timeout.as_secs() as i64, timeout.subsec_nanos());
    if HAS_PWAIT2.load(Ordering::Relaxed) {
        // The kernel's, for this call, on every processor.
        let time = [seconds, nanoseconds.into()];
        // SAFETY: there is memory for so many of the kernel's events, and the time is there for the call; it gets no
        // signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                set.as_raw_fd(),
                memory.as_mut_ptr(),
                memory.len() as i32,
                &raw const time,
                std::ptr::null::<libc::c_void>(),
                0,
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = errno();
        if !matches!(error, libc::ENOSYS | libc::EPERM) {
            return Err(rustix::io::Errno::from_raw_os_error(error));
        }
        count_milliseconds();
    }
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds as _,
    };
    // It has them rounded up to milliseconds.
    epoll::wait(set, memory, Some(&time)).map(|(found, _)| found.len())
}

/// `SO_COOKIE` — What no other socket has.
pub(super) fn identity(fd: Fd) -> Result<u64, Errno> {
    match sockopt::socket_cookie(by_number(&fd)).map_err(number) {
        // What an emulator does not know it may call invalid.
        Err(libc::ENOPROTOOPT | libc::EINVAL) => inode(fd),
        done => done,
    }
}

/// `fstat` — Where there are no cookies, as on kernels before 4.12, the inode number has to do.
fn inode(fd: Fd) -> Result<u64, Errno> {
    let stat = rustix::fs::fstat(by_number(&fd)).map_err(number)?;
    #[allow(
        clippy::useless_conversion,
        reason = "it is narrower on some processors"
    )]
    Ok(stat.st_ino.into())
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
    let is_local =
        || sockopt::socket_domain(by_number(&fd)).is_ok_and(|family| family == AddressFamily::UNIX);
    match sockopt::socket_type(by_number(&fd)) {
        Ok(SocketType::STREAM | SocketType::SEQPACKET) => Kind::Stream,
        Ok(_) if is_local() => Kind::Stream,
        Err(rustix::io::Errno::NOTSOCK) => Kind::Other,
        _ => Kind::Datagram,
    }
}

/// `TCP_INFO` — Whether this is known to be a TCP socket that was never connected. It has no room for receiving then.
pub(super) fn was_never_connected(fd: Fd) -> bool {
    const ROOM: usize = offset_of!(libc::tcp_info, tcpi_rcv_space);
    // Not every system writes all of it.
    let info = [u8::MAX; size_of::<libc::tcp_info>()];
    let info = option_of(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info);
    info.is_ok_and(|info| info[ROOM..ROOM + size_of::<u32>()] == [0; size_of::<u32>()])
}

/// `eventfd`
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(number)
}

/// Add to an `eventfd`. It is never read, and it would take 2^64 times to fill it.
pub(super) fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// `timerfd_create`
pub(super) fn timerfd() -> Result<OwnedFd, Errno> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(number)
}

/// `timerfd_settime` — Once, after this time.
pub(super) fn set_timer(timer: &OwnedFd, time: Duration) -> Result<(), Errno> {
    // Zero would unset it.
    let time = time.max(Duration::from_nanos(1));
    let time = Itimerspec {
        it_interval: Timespec::default(),
        // More than the kernel's clock can count is refused.
        it_value: Timespec {
            tv_sec: time.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos() as _,
        },
    };
    let set = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &time);
    set.map(drop).map_err(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2_no_wait_is_for_more_than_the_kernel_takes() {
        let mut reported = Reported::default();
        assert_eq!(room_in(&mut reported, usize::MAX).len(), MOST);
        assert_eq!(room_in(&mut reported, 1).len(), 1);
    }
}
