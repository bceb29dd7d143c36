//! One filter of one number: whether it is ready, by what Linux says.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use super::{
    EV_CLEAR, EV_EOF, EVFILT_READ, EVFILT_TIMER, EVFILT_USER, EVFILT_WRITE, NOTE_LOWAT, kevent,
};

/// What an event says besides what it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) data: i64,
    is_end: bool,
    fflags: u32,
}

const READY: State = State {
    data: 1,
    is_end: false,
    fflags: 0,
};

/// A filter.
#[derive(Debug)]
pub(super) struct Knote {
    ident: usize,
    filter: i16,
    /// As it was added.
    pub(super) flags: u16,
    pub(super) fflags: u32,
    pub(super) data: i64,
    pub(super) udata: *mut c_void,
    pub(super) is_disabled: bool,
    pub(super) is_queued: bool,
    /// What the number stood for.
    pub(super) identity: u64,
    kind: Kind,
    is_triggered: bool,
    pub(super) due: Option<Instant>,
    expirations: i64,
}

// SAFETY: the pointer is the caller's, and only passed on.
unsafe impl Send for Knote {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stream,
    Listener,
    Datagram,
    LocalDatagram,
    /// A pipe, a queue, a file.
    Other,
}

impl Knote {
    pub(super) fn new(change: &kevent, identity: u64) -> Self {
        let mut knote = Knote {
            ident: change.ident,
            filter: change.filter,
            flags: change.flags,
            fflags: change.fflags,
            data: change.data,
            udata: change.udata,
            is_disabled: false,
            is_queued: false,
            identity,
            kind: kind(change.ident as i32),
            is_triggered: false,
            due: None,
            expirations: 0,
        };
        knote.set_timer();
        knote
    }

    pub(super) fn is_of_descriptor(filter: i16) -> bool {
        matches!(filter, EVFILT_READ | EVFILT_WRITE)
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.data.max(1) as u64)
    }

    fn set_timer(&mut self) {
        if self.filter == EVFILT_TIMER {
            self.due = Instant::now().checked_add(self.interval());
        }
    }

    /// Count the times that are over.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.due.is_some_and(|due| due <= now) {
            self.expirations += 1;
            self.due = self.due.and_then(|due| due.checked_add(self.interval()));
        }
    }

    /// What every change overwrites. A trigger with `EV_CLEAR` among its flags resets.
    pub(super) fn overwrite(&mut self, change: &kevent) {
        self.udata = change.udata;
        if self.filter == EVFILT_USER {
            if change.fflags & super::NOTE_TRIGGER != 0 {
                self.is_triggered = change.flags & EV_CLEAR == 0;
            }
        } else if self.filter != EVFILT_TIMER {
            self.fflags = change.fflags;
            self.data = change.data;
        }
    }

    /// The event was delivered: what was counted for it is over.
    pub(super) fn reset(&mut self) {
        if self.flags & EV_CLEAR != 0 || self.filter == EVFILT_TIMER {
            self.is_triggered = false;
            self.expirations = 0;
        }
    }

    /// What a filter says that was ready when it was queued, and is no more.
    pub(super) fn stale() -> State {
        READY
    }

    pub(super) fn event(&self, state: State) -> kevent {
        kevent {
            ident: self.ident,
            filter: self.filter,
            flags: self.flags | if state.is_end { EV_EOF } else { 0 },
            fflags: state.fflags,
            data: state.data,
            udata: self.udata,
        }
    }

    /// Whether it is ready now.
    pub(super) fn state(&self) -> Option<State> {
        match self.filter {
            EVFILT_USER => self.is_triggered.then_some(READY),
            EVFILT_TIMER => (self.expirations > 0).then_some(State {
                data: self.expirations,
                ..READY
            }),
            EVFILT_READ => self.read(),
            _ => self.write(),
        }
    }

    /// Whether a stream's connecting would go unnoticed: Linux wakes nobody who waits for a Unix socket.
    pub(super) fn connects_in_silence(&self) -> bool {
        let socket = self.ident as i32;
        self.kind == Kind::Stream
            && option(socket, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
            && is_unconnected(polled(socket))
    }

    fn read(&self) -> Option<State> {
        let socket = self.ident as i32;
        let found = polled(socket);
        let length = readable(socket);
        let is_low = self.fflags & NOTE_LOWAT != 0;
        let threshold = if is_low { self.data } else { 1 };
        match self.kind {
            Kind::Other if found & (libc::POLLHUP | libc::POLLERR) != 0 => Some(State {
                data: length,
                is_end: true,
                fflags: 0,
            }),
            Kind::Other => (found & libc::POLLIN != 0 && !is_low).then_some(READY),
            // The queue's length is not to be had.
            Kind::Listener => (found & libc::POLLIN != 0).then_some(READY),
            Kind::Stream => {
                // A filter that was there before `listen` looks at what a listener has not.
                if is_unconnected(found) || listens(socket) {
                    return None;
                }
                self.end(found, libc::POLLRDHUP | libc::POLLHUP, length)
                    .or_else(|| {
                        // Linux does not count what is behind urgent data.
                        let data = length.max((found & libc::POLLIN).into());
                        (data >= threshold).then_some(State { data, ..READY })
                    })
            }
            Kind::Datagram | Kind::LocalDatagram => {
                let is_end = found & libc::POLLRDHUP != 0;
                let has_datagram = found & libc::POLLIN != 0 && !is_end;
                // With its address.
                let address = if self.kind == Kind::Datagram { 16 } else { 2 };
                let data = if has_datagram { length + address } else { 0 };
                let is_error = found & libc::POLLERR != 0;
                let state = State {
                    data,
                    is_end,
                    fflags: 0,
                };
                (is_error || is_end || data >= threshold).then_some(state)
            }
        }
    }

    fn write(&self) -> Option<State> {
        let socket = self.ident as i32;
        let found = polled(socket);
        let is_low = self.fflags & NOTE_LOWAT != 0;
        let has_room = found & libc::POLLOUT != 0 && !is_low;
        match self.kind {
            Kind::Listener => None,
            // The kernel has no answer to a full receiver but an error.
            Kind::LocalDatagram => (!is_low).then_some(READY),
            Kind::Stream => {
                if is_unconnected(found) || listens(socket) {
                    return None;
                }
                self.end(found, libc::POLLHUP, 0)
                    .or_else(|| {
                        let is_end = is_shut(socket);
                        is_end.then_some(State { is_end, ..READY })
                    })
                    .or_else(|| has_room.then_some(READY))
            }
            Kind::Other if found & libc::POLLERR != 0 => Some(State {
                is_end: true,
                ..READY
            }),
            Kind::Datagram | Kind::Other => has_room.then_some(READY),
        }
    }

    fn end(&self, found: i16, ends: i16, data: i64) -> Option<State> {
        let is_error = found & libc::POLLERR != 0;
        (is_error || found & ends != 0).then_some(State {
            data,
            is_end: true,
            // Which error it is cannot be seen without ending it.
            fflags: match is_error {
                true if was_never_connected(self.ident as i32) => libc::ECONNREFUSED as u32,
                true => libc::ECONNRESET as u32,
                false => 0,
            },
        })
    }
}

/// `TCP_INFO` — It has no room for receiving then.
fn was_never_connected(socket: i32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: so much memory is there for the call; any bits are a value of the structure.
    unsafe {
        let value = (&raw mut info).cast();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let done = libc::getsockopt(socket, level, name, value, &mut length);
        done == 0 && info.assume_init().tcpi_rcv_space == 0
    }
}

/// The error of a socket, which stays.
pub(super) fn error(socket: i32) -> Option<i32> {
    let has_error = polled(socket) & libc::POLLERR != 0;
    has_error.then_some(libc::ECONNREFUSED)
}

/// Whether this is the end of a pipe whose other end is closed.
pub(super) fn is_broken_pipe(number: i32) -> bool {
    kind(number) == Kind::Other && polled(number) & (libc::POLLHUP | libc::POLLERR) != 0
}

fn polled(number: i32) -> i16 {
    let mut poll = libc::pollfd {
        fd: number,
        events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: the structure is there for the call.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents
}

/// What Linux calls hung up and writable.
fn is_unconnected(found: i16) -> bool {
    found & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) == libc::POLLHUP
}

/// `FIONREAD`
fn readable(socket: i32) -> i64 {
    let mut length = 0_i32;
    // SAFETY: the number is there for the call.
    match unsafe { libc::ioctl(socket, libc::FIONREAD, &mut length) } {
        0 => length.into(),
        _ => 0,
    }
}

/// Whether sending was shut down on this side. To send nothing says so; an error must not be taken by that.
fn is_shut(socket: i32) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: no memory is needed for nothing.
    let sent = unsafe { libc::send(socket, std::ptr::null(), 0, flags) };
    sent == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE)
}

fn option(socket: i32, name: i32) -> Option<i32> {
    let mut value = 0_i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: so much memory is there for the call.
    let done = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, name, value, &mut length)
    };
    (done == 0).then_some(value)
}

fn listens(socket: i32) -> bool {
    option(socket, libc::SO_ACCEPTCONN) == Some(1)
}

fn kind(number: i32) -> Kind {
    match option(number, libc::SO_TYPE) {
        None => Kind::Other,
        Some(libc::SOCK_STREAM | libc::SOCK_SEQPACKET) if listens(number) => Kind::Listener,
        Some(libc::SOCK_STREAM | libc::SOCK_SEQPACKET) => Kind::Stream,
        Some(_) if option(number, libc::SO_DOMAIN) == Some(libc::AF_UNIX) => Kind::LocalDatagram,
        Some(_) => Kind::Datagram,
    }
}
