//! What the tests ask of the system: Unix.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockAddr, Socket};

use super::wait_until;

pub(crate) use std::os::fd::{AsFd as AsSocket, BorrowedFd as BorrowedSocket, RawFd as RawSocket};

#[cfg(target_os = "linux")]
pub(crate) use rustix::event::PollFlags;

#[cfg(not(target_os = "linux"))]
bitflags::bitflags! {
    /// What to wait for. Of ends and errors, `poll` says only that the socket is readable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PollFlags: i16 {
        const IN = libc::POLLIN;
        const OUT = libc::POLLOUT;
        const ERR = libc::POLLERR;
        const PRI = libc::POLLPRI;
        const HUP = libc::POLLHUP;
        const RDHUP = libc::POLLHUP;
    }
}
#[cfg(target_os = "linux")]
pub(crate) use rustix::thread::{Pid as ThreadId, gettid as this_thread};

/// Which thread it is, for what this system tells of it: nothing.
#[cfg(not(target_os = "linux"))]
pub(crate) type ThreadId = u32;

#[cfg(not(target_os = "linux"))]
pub(crate) fn this_thread() -> ThreadId {
    0
}

/// What the system calls this socket.
pub(crate) fn raw(socket: &impl AsSocket) -> RawSocket {
    std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd())
}

/// Begins to connect. It is done when the socket says so.
pub(crate) fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(()),
        result => result,
    }
}

/// Called before a test makes its first socket.
pub(crate) fn prepare() -> io::Result<()> {
    Ok(())
}

/// Closes `old` and gives its number to `new`, in one step, so that no other thread gets it.
pub(crate) fn take_number(old: Socket, new: Socket) -> io::Result<Socket> {
    let mut number = OwnedFd::from(old);
    rustix::io::dup2(&new, &mut number)?;
    Ok(Socket::from(number))
}

/// Moves a socket to a number that no other test takes when it is closed.
///
/// Numbers are given to whoever opens something next, the lowest first.
pub(crate) fn to_lonely_number(socket: Socket) -> io::Result<Socket> {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    let lowest = 600 + NEXT.fetch_add(1, Ordering::Relaxed) % 300;
    Ok(rustix::io::fcntl_dupfd_cloexec(&socket, lowest)?.into())
}

/// Whether these conditions come to hold within some time. Of the ways to end, one is enough.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_ready(socket: &impl AsSocket, flags: PollFlags, timeout: Duration) -> bool {
    let ends = flags & (PollFlags::ERR | PollFlags::HUP);
    let polled = match (flags - ends).bits() {
        libc::POLLOUT => rustix::event::PollFlags::OUT,
        _ => rustix::event::PollFlags::IN,
    };
    let end = std::time::Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        let mut fds = [PollFd::new(socket, polled)];
        // A signal may end it early; the callers ask again.
        let _ = poll(&mut fds, Some(&left));
        let is_ready = fds[0].revents().contains(polled);
        if is_ready && (ends.is_empty() || has_ended(socket)) {
            return true;
        }
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::yield_now();
    }
}

/// Whether a socket is at its end, with data before it or without.
#[cfg(not(target_os = "linux"))]
fn has_ended(socket: &impl AsSocket) -> bool {
    // SAFETY: any bits are values of the structures, which are there for the calls; the queue is new.
    unsafe {
        let mut event: libc::kevent = std::mem::zeroed();
        event.ident = raw(socket) as usize;
        event.filter = libc::EVFILT_READ;
        event.flags = libc::EV_ADD;
        let queue = libc::kqueue();
        let none: libc::timespec = std::mem::zeroed();
        let change = event;
        let count = libc::kevent(queue, &change, 1, &mut event, 1, &none);
        libc::close(queue);
        count == 1 && event.flags & libc::EV_EOF != 0
    }
}

/// Whether these conditions come to hold within some time.
#[cfg(target_os = "linux")]
pub(crate) fn is_ready(socket: &impl AsSocket, flags: PollFlags, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(socket, flags)];
    let timeout = Timespec::try_from(timeout).expect("a short time");
    // A signal may end it early; the callers ask again.
    let _ = poll(&mut fds, Some(&timeout));
    fds[0].revents().contains(flags)
}

/// A limit of this process, until this is dropped.
pub(crate) struct Limit {
    resource: Resource,
    before: Rlimit,
}

impl Limit {
    pub(crate) fn to(resource: Resource, maximum: u64) -> io::Result<Self> {
        let before = getrlimit(resource);
        let current = Some(maximum);
        setrlimit(resource, Rlimit { current, ..before })?;
        Ok(Limit { resource, before })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = setrlimit(self.resource, self.before);
    }
}

/// Allows this process as many descriptors as it may have, and says how many those are.
pub(crate) fn raise_limit() -> io::Result<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.map_or(usize::MAX, |count| count as usize))
}

/// How many descriptors this process has open.
pub(crate) fn descriptors() -> io::Result<usize> {
    if cfg!(target_os = "linux") {
        // The listing itself opens one.
        return Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1);
    }
    // No test here comes near that many.
    let numbers = 0..1 << 16;
    // SAFETY: the call takes no memory.
    let is_open = |&number: &i32| unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
    Ok(numbers.filter(is_open).count())
}

/// Waits until these threads of this process sleep.
///
/// A thread that a port counts as waiting may be on its way into the kernel still.
#[track_caller]
pub(crate) fn asleep(threads: impl IntoIterator<Item = ThreadId>) {
    if cfg!(not(target_os = "linux")) {
        // No other way to tell; without it the order of arrival may differ from what is assumed.
        return std::thread::sleep(Duration::from_millis(50));
    }
    for thread in threads {
        let path = format!("/proc/self/task/{thread}/stat");
        wait_until("the thread sleeps", || {
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
            state.is_some_and(|state| state.starts_with('S'))
        });
    }
}

/// How often a thread of this process has gone to sleep. `None` where the system does not tell.
pub(crate) fn voluntary_switches(thread: ThreadId) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// How late a wait may end. Some systems count in ticks of 10 ms.
pub(crate) const LATENESS: Duration = if cfg!(any(target_os = "netbsd", target_os = "openbsd")) {
    Duration::from_millis(22)
} else {
    Duration::from_millis(3)
};

/// In what steps the system counts the processor time of a thread. An emulated processor counts the time in which
/// it does not run, too.
pub(crate) const TICK: Duration = Duration::from_millis(if cfg!(emulated) { 20 } else { 0 });

/// The processor time that this thread has used.
pub(crate) fn thread_time() -> Duration {
    // SAFETY: any bits are a value of the structure, which is there for the call.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether reading a socket's error ends it.
pub(crate) const ERRORS_END: bool = true;

/// Whether the end of a stream shows while there is data to be read before it.
pub(crate) fn end_shows_behind_data() -> bool {
    true
}

/// Whether the system has an event for each condition of a socket, so that edges of two conditions that hold at ENABLE can
/// be two notifications.
pub(crate) const EDGES_COME_ONE_BY_ONE: bool = cfg!(any(kqueue_stand_in, not(target_os = "linux")));

/// Something open that is no socket.
pub(crate) struct NoSocket(OwnedFd);

impl NoSocket {
    pub(crate) fn raw(&self) -> RawSocket {
        raw(&self.0)
    }
}

/// Open descriptors of every kind but sockets.
pub(crate) fn no_sockets() -> io::Result<Vec<(&'static str, NoSocket)>> {
    let (reader, writer) = rustix::pipe::pipe()?;
    #[cfg_attr(not(target_os = "linux"), allow(unused_mut))]
    let mut others = vec![
        ("a file", File::open(std::env::current_exe()?)?.into()),
        ("a directory", File::open(std::env::temp_dir())?.into()),
        ("a device", File::open("/dev/null")?.into()),
        ("a pipe's reader", reader),
        ("a pipe's writer", writer),
    ];
    #[cfg(target_os = "linux")]
    {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        others.push(("an event counter", eventfd(1, EventfdFlags::CLOEXEC)?));
        others.push(("an epoll set", epoll::create(epoll::CreateFlags::CLOEXEC)?));
    }
    let others = others.into_iter();
    Ok(others
        .map(|(what, other)| (what, NoSocket(other)))
        .collect())
}
