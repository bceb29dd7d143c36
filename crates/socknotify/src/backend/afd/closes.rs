//! Which socket a handle refers to, for the whole process.
//!
//! A handle's value can be reused as soon as it is closed, and the system has nothing that distinguishes a
//! socket from the next one. So each socket that a port watches has a poll that waits only for its closing,
//! and completes before the value can be reused. Cancelling the poll shows whether it has completed. The
//! packets of completed ones go to a separate port.
//!
//! Under Wine the packet can come late, and each of these calls is slow. If `socknotify.dll` intercepts the call that
//! closes handles there, it [says](closing) what is about to be closed, and no poll is needed.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::device::{Devices, LOCAL_CLOSE, Poll};
use super::refusal;
use crate::RegistrationError;
use crate::os::windows::port::{self, KernelPort};
use crate::os::{self, Fd, RawSocket};

/// The key of all packets.
const KEY: usize = 0;

/// How many closes are fetched at once.
const BATCH: usize = 64;

/// Whoever closes a socket says so before.
static ARE_SAID: AtomicBool = AtomicBool::new(false);

static CLOSES: Mutex<Option<Closes>> = Mutex::new(None);

struct Closes {
    port: Arc<KernelPort>,
    devices: Devices,
    sockets: HashMap<Fd, Socket>,
    latest: u64,
    packets: Vec<OVERLAPPED_ENTRY>,
}

struct Socket {
    /// No other socket of this process ever has the same.
    id: u64,
    /// None if closes are said.
    poll: Option<*mut Poll>,
}

// SAFETY: the pointers are to memory that is handed back and forth between this and the kernel, under
// the lock.
unsafe impl Send for Closes {}

impl Closes {
    fn new() -> io::Result<Self> {
        let port = Arc::new(KernelPort::new()?);
        Ok(Closes {
            devices: Devices::new(Arc::clone(&port), KEY)?,
            port,
            sockets: HashMap::new(),
            latest: 0,
            packets: Vec::new(),
        })
    }

    /// Which socket has this number. It has to be caught up.
    fn identify(&mut self, fd: Fd) -> io::Result<u64> {
        if are_said() {
            let socket = self.sockets.entry(fd).or_insert_with(|| {
                self.latest += 1;
                let id = self.latest;
                Socket { id, poll: None }
            });
            return Ok(socket.id);
        }
        // First: if the one before has not completed by then, this is of the same socket.
        let poll = self.begin(fd)?;
        // SAFETY: as long as it is in the table, its packet was not dequeued.
        let is_open = |poll| unsafe { self.devices.cancel(poll) };
        let known = self.sockets.get(&fd);
        let known = known.filter(|socket| socket.poll.is_some_and(is_open));
        let id = known.map_or(self.latest + 1, |socket| socket.id);
        self.latest = self.latest.max(id);
        let poll = Some(poll);
        self.sockets.insert(fd, Socket { id, poll });
        Ok(id)
    }

    /// Start the poll for the closing of a socket.
    fn begin(&mut self, fd: Fd) -> io::Result<*mut Poll> {
        let (poll, is_over) = self.devices.begin(fd, LOCAL_CLOSE)?;
        if is_over {
            let posted = self.port.post(0, KEY, poll.expose_provenance());
            // SAFETY: it is over, and no packet of it comes.
            posted.inspect_err(|_| _ = unsafe { self.devices.end(poll) })?;
        }
        Ok(poll)
    }

    /// Forget the sockets that were closed.
    fn catch_up(&mut self) {
        loop {
            self.port
                .take(&mut self.packets, BATCH, Some(Duration::ZERO));
            for packet in &self.packets {
                let poll = packet.lpOverlapped.cast::<Poll>();
                // SAFETY: nothing but polls is on this port, and each packet is taken once.
                let (fd, _) = unsafe { self.devices.end(poll) };
                // A cancelled one has a successor.
                let known = self.sockets.get(&fd);
                if known.is_some_and(|socket| socket.poll == Some(poll)) {
                    self.sockets.remove(&fd);
                }
            }
            if self.packets.len() < BATCH {
                return;
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Closes>> {
    crate::support::lock::lock(&CLOSES)
}

/// A value that distinguishes the socket with this number from all others that ever had it.
pub(super) fn identify(fd: Fd) -> io::Result<u64> {
    let mut closes = lock();
    let closes = match &mut *closes {
        Some(closes) => closes,
        none => none.insert(Closes::new()?),
    };
    closes.catch_up();
    closes.identify(fd)
}

fn are_said() -> bool {
    ARE_SAID.load(Ordering::Relaxed)
}

/// From here on, whoever closes a socket [says so](closing). Called before the first socket is identified.
pub(crate) fn say() {
    ARE_SAID.store(port::is_wine(), Ordering::Relaxed);
}

/// The handle with this value is about to be closed.
pub(crate) fn closing(value: usize) {
    if are_said() {
        if let (Some(closes), Some(fd)) = (&mut *lock(), os::fd(value as RawSocket)) {
            closes.sockets.remove(&fd);
        }
    }
}

/// The socket that had this number was closed, though nobody said so.
pub(super) fn closed(fd: Fd, id: u64) {
    if are_said() {
        if let Some(closes) = &mut *lock() {
            let is_this = closes.sockets.get(&fd).is_some_and(|it| it.id == id);
            is_this.then(|| closes.sockets.remove(&fd));
        }
    }
}

/// Process the reports of closed sockets.
pub(super) fn catch_up() {
    if are_said() {
        return;
    }
    if let Some(closes) = &mut *lock() {
        closes.catch_up();
    }
}

/// The socket that had this number at the last [`catch_up`].
pub(super) fn known(fd: Fd) -> Option<u64> {
    let closes = lock();
    Some(closes.as_ref()?.sockets.get(&fd)?.id)
}

/// Whether this number still refers to this socket, as of the last [`catch_up`].
pub(super) fn is_still(fd: Fd, id: u64) -> bool {
    // Under Wine a close completes the poll at once, but its packet can come later.
    if port::is_wine() && !are_said() {
        // That brings the table up to date, unless there is no memory for it.
        let identified = lock().as_mut().map(|closes| closes.identify(fd));
        let error = identified.and_then(Result::err);
        if error.is_some_and(|error| refusal(&error) == RegistrationError::NotASocket) {
            return false;
        }
    }
    known(fd) == Some(id)
}
