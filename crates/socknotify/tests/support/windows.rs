//! What the tests ask of the system: Windows.

use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, AsRawSocket, FromRawHandle, OwnedHandle};
use std::ptr::null;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{SockAddr, Socket};
use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::Networking::WinSock::{
    POLLERR, POLLHUP, POLLRDBAND, POLLRDNORM, POLLWRNORM, WSAEWOULDBLOCK, WSAPOLLFD, WSAPoll,
};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
use windows_sys::Win32::System::Threading::{
    CreateEventW, GetCurrentProcess, GetCurrentThread, GetProcessHandleCount, GetThreadTimes,
};

pub(crate) use std::os::windows::io::{AsSocket, BorrowedSocket, RawSocket};

bitflags::bitflags! {
    /// What `WSAPoll` says of a socket. It does not tell half a close from a whole one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PollFlags: i16 {
        const IN = POLLRDNORM;
        const OUT = POLLWRNORM;
        const ERR = POLLERR;
        const PRI = POLLRDBAND;
        const HUP = POLLHUP;
        const RDHUP = POLLHUP;
    }
}

/// Which thread it is, for what this system tells of it: nothing.
pub(crate) type ThreadId = ();

pub(crate) fn this_thread() -> ThreadId {}

/// What the system calls this socket.
pub(crate) fn raw(socket: &impl AsSocket) -> RawSocket {
    socket.as_socket().as_raw_socket()
}

/// Begins to connect. It is done when the socket says so.
pub(crate) fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<()> {
    match socket.connect(address) {
        Err(error) if error.raw_os_error() == Some(WSAEWOULDBLOCK) => Ok(()),
        result => result,
    }
}

/// Handles whose numbers are lower than those of a test's sockets. To duplicate a socket takes another number for a while,
/// and where the lowest is given, that must not be the one that is wanted.
static RESERVE: Mutex<Vec<OwnedHandle>> = Mutex::new(Vec::new());

/// Another thread may get one of them while it is free, and Wine makes handles for each thread that starts.
const RESERVED: usize = 16;

/// Called before a test makes its first socket.
pub(crate) fn prepare() -> io::Result<()> {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    while reserve.len() < RESERVED {
        reserve.push(event()?);
    }
    Ok(())
}

/// Closes `old` and gives its number to `new`. Another thread may get it in between: then this waits until it is free again. If
/// that thread keeps it, this fails with `ResourceBusy`, and the test begins anew.
pub(crate) fn take_number(old: Socket, new: Socket) -> io::Result<Socket> {
    let number = raw(&old);
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    // Where the lowest number is given, there must be no lower one, but for one that is free for the duplication.
    let mut lower = std::mem::take(&mut *reserve);
    take_lower(number, &mut lower)?;
    let mut old = Some(old);
    let mut others = Vec::new();
    let end = Instant::now() + Duration::from_secs(1);
    let lost = |why| Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    let taken = loop {
        let is_lower = |it: &OwnedHandle| number_of(it) < number;
        match lower.iter().position(is_lower) {
            Some(index) => drop(lower.swap_remove(index)),
            None => break lost("other threads have got the lower numbers"),
        }
        drop(old.take());
        let socket = new.try_clone()?;
        if raw(&socket) == number {
            break Ok(socket);
        }
        if Instant::now() >= end {
            break lost("another thread has got the number");
        }
        // Where the latest free one is given, it comes after these.
        if others.len() == 16 {
            others.clear();
        }
        others.push(socket);
        thread::sleep(Duration::from_millis(1));
        take_lower(number, &mut lower)?;
    };
    take_lower(number, &mut lower)?;
    lower.sort_by_key(number_of);
    lower.truncate(RESERVED);
    *reserve = lower;
    taken
}

/// Adds a handle for each number that is lower and free.
fn take_lower(number: RawSocket, lower: &mut Vec<OwnedHandle>) -> io::Result<()> {
    // A system that does not give the lowest may never give a higher one.
    for _ in 0..10_000 {
        let event = event()?;
        if number_of(&event) >= number {
            break;
        }
        lower.push(event);
    }
    Ok(())
}

fn number_of(handle: &OwnedHandle) -> RawSocket {
    handle.as_raw_handle().addr() as RawSocket
}

/// An event that nobody signals.
fn event() -> io::Result<OwnedHandle> {
    // SAFETY: the call touches no memory of ours; what it returns is a new handle.
    unsafe {
        let event = CreateEventW(null(), 0, 0, null());
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedHandle::from_raw_handle(event))
    }
}

/// Moves a socket to a number that no other test takes when it is closed: here the one that it has.
pub(crate) fn to_lonely_number(socket: Socket) -> io::Result<Socket> {
    Ok(socket)
}

/// Whether these conditions come to hold within some time. Of the ways to be hung up, one is enough.
pub(crate) fn is_ready(socket: &impl AsSocket, flags: PollFlags, timeout: Duration) -> bool {
    let ends = PollFlags::HUP | PollFlags::ERR;
    let mut asked = WSAPOLLFD {
        fd: raw(socket) as usize,
        events: (flags - ends).bits(),
        revents: 0,
    };
    // SAFETY: the structure is there for the call.
    unsafe { WSAPoll(&mut asked, 1, timeout.as_millis() as i32) };
    let found = PollFlags::from_bits_truncate(asked.revents);
    found.contains(flags - ends) && (!flags.intersects(ends) || found.intersects(ends))
}

/// How many sockets this process may have: no limit that a test comes near.
pub(crate) fn raise_limit() -> io::Result<usize> {
    Ok(1 << 14)
}

/// How many handles this process has open.
pub(crate) fn descriptors() -> io::Result<usize> {
    let mut count = 0;
    // SAFETY: the count is there for the call.
    match unsafe { GetProcessHandleCount(GetCurrentProcess(), &mut count) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(count as usize),
    }
}

/// Waits until these threads of this process sleep. No other way to tell; without it the order of
/// arrival may differ from what is assumed.
pub(crate) fn asleep(_threads: impl IntoIterator<Item = ThreadId>) {
    thread::sleep(Duration::from_millis(10));
}

/// How often a thread of this process has gone to sleep: the system does not tell.
pub(crate) fn voluntary_switches(_thread: ThreadId) -> Option<u64> {
    None
}

/// How late a wait may end.
pub(crate) const LATENESS: Duration = Duration::from_millis(3);

/// In what steps the system counts the processor time of a thread.
pub(crate) const TICK: Duration = Duration::from_millis(16);

/// The processor time that this thread has used.
pub(crate) fn thread_time() -> Duration {
    let mut times = [FILETIME::default(); 4];
    let [made, ended, kernel, user] = &mut times;
    // SAFETY: the times are there for the call.
    unsafe { GetThreadTimes(GetCurrentThread(), made, ended, kernel, user) };
    let ticks =
        |time: &FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_nanos((ticks(kernel) + ticks(user)) * 100)
}

/// Whether reading a socket's error ends it. Here a connection that was reset remains so.
pub(crate) const ERRORS_END: bool = false;

/// Whether the system has an event for each condition of a socket.
pub(crate) const EDGES_COME_ONE_BY_ONE: bool = false;

/// Whether the end of a stream shows while there is data to be read before it. Under Wine it does not:
/// `WSAPoll` keeps silent about it too.
pub(crate) fn end_shows_behind_data() -> bool {
    !is_wine()
}

fn is_wine() -> bool {
    // SAFETY: the names are strings that end; the library is never unloaded.
    unsafe {
        let library = GetModuleHandleA(c"ntdll.dll".as_ptr().cast());
        GetProcAddress(library, c"wine_get_version".as_ptr().cast()).is_some()
    }
}

/// Something open that is no socket.
pub(crate) struct NoSocket(OwnedHandle);

impl NoSocket {
    pub(crate) fn raw(&self) -> RawSocket {
        number_of(&self.0)
    }
}

/// Open handles of some kinds, and no sockets among them.
pub(crate) fn no_sockets() -> io::Result<Vec<(&'static str, NoSocket)>> {
    let thread = thread::Builder::new().spawn(|| {})?;
    let others = [
        ("a file", File::open(std::env::current_exe()?)?.into()),
        ("a device", File::open("NUL")?.into()),
        ("an event", event()?),
        ("a thread", thread.into()),
    ];
    let others = others.into_iter();
    Ok(others
        .map(|(what, other)| (what, NoSocket(other)))
        .collect())
}
