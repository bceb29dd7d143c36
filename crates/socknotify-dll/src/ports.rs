//! The ports of this process that sockets were registered with.
//!
//! Each is known by the values of the handles that `ProcessSocketNotifications` was called with. A value is forgotten
//! before its handle is closed, because another port may have it as soon as it is. When no handle is left but the
//! library's own, the port is closed.
//!
//! Nothing but this table is changed under its lock, and no port is made, closed or waited in. So no call on one port
//! waits for a call on another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use windows_sys::Win32::Foundation::{ERROR_INVALID_HANDLE, HANDLE, NTSTATUS};

use super::kernel;
use super::port::Port;

static PORTS: RwLock<Option<Ports>> = RwLock::new(None);

/// How many there are, to be read without the lock: most processes never have one.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many threads are in the system's call, with a handle that was no port's with sockets when they began. By the
/// handle's value; a few thousand values later they share a counter.
static IN_SYSTEM: [AtomicUsize; 1024] = [const { AtomicUsize::new(0) }; 1024];

/// All of them.
static ALL_IN_SYSTEM: AtomicUsize = AtomicUsize::new(0);

/// How many threads may be in the system's call on this port, or are there on others.
fn may_be_in_system(handle: HANDLE, port: &Port) -> usize {
    let under_this = in_system(handle).load(Ordering::SeqCst);
    let all = ALL_IN_SYSTEM.load(Ordering::SeqCst);
    match all > under_this && port.has_duplicates() {
        true => all,
        false => under_this,
    }
}

fn in_system(handle: HANDLE) -> &'static AtomicUsize {
    // The two lowest bits mean nothing.
    &IN_SYSTEM[(handle.addr() >> 2) % IN_SYSTEM.len()]
}

/// How many ports are known by no handle's value.
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

/// How often the table has changed.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Ports {
    by_value: HashMap<usize, Arc<Port>>,
    /// Those known by no value: the program may have other handles of them.
    orphans: Vec<Arc<Port>>,
}

impl Ports {
    fn all(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.by_value.values().chain(&self.orphans)
    }

    /// From here on, a port is known by a handle's value.
    fn insert(&mut self, handle: HANDLE, port: &Arc<Port>) {
        self.orphans.retain(|other| !Arc::ptr_eq(other, port));
        self.by_value.insert(handle.addr(), Arc::clone(port));
        self.publish();
    }

    fn publish(&self) {
        CHANGES.fetch_add(1, Ordering::SeqCst);
        COUNT.store(self.by_value.len() + self.orphans.len(), Ordering::SeqCst);
        ORPHANS.store(self.orphans.len(), Ordering::SeqCst);
    }
}

fn read() -> RwLockReadGuard<'static, Option<Ports>> {
    PORTS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Option<Ports>> {
    PORTS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there may be any. While the process exits, its other threads are gone, and may have held the lock.
fn is_any() -> bool {
    COUNT.load(Ordering::SeqCst) > 0 && !kernel::is_exiting()
}

/// The port with this handle, if sockets were registered with it.
pub(super) fn find(handle: HANDLE) -> Option<Arc<Port>> {
    if !is_any() {
        return None;
    }
    read().as_ref()?.by_value.get(&handle.addr()).cloned()
}

/// The port of this handle, made on first use.
pub(super) fn of(handle: HANDLE) -> Result<Arc<Port>, u32> {
    if let Some(port) = find(handle) {
        return Ok(port);
    }
    let port = Arc::new(Port::new(handle)?);
    let (port, is_new) = insert(handle, port);
    if forget_closed(handle) {
        close_unused();
        return Err(ERROR_INVALID_HANDLE);
    }
    if is_new {
        // Threads that wait already are to wait in the engine. There is one packet for each that may be among them.
        for _ in 0..may_be_in_system(handle, &port) {
            port.wake();
        }
    }
    Ok(port)
}

/// Insert a port that was made, unless it is there.
fn insert(handle: HANDLE, made: Arc<Port>) -> (Arc<Port>, bool) {
    let value = handle.addr();
    let mut guard = write();
    let ports = guard.get_or_insert_default();
    if let Some(port) = ports.by_value.get(&value) {
        return (Arc::clone(port), false);
    }
    // The caller's handle, and the library's: if there are more, it may be there under another value.
    let may_be_there = made.has_duplicates();
    let is_it = |other: &&Arc<Port>| kernel::is_same(handle, other.handle()) == Some(true);
    let same = may_be_there
        .then(|| ports.all().find(is_it).cloned())
        .flatten();
    let is_new = same.is_none();
    // What was made in vain is dropped after the lock.
    let port = same.unwrap_or_else(|| Arc::clone(&made));
    ports.insert(handle, &port);
    (port, is_new)
}

/// Wait in the system's call, on a port without sockets. `None` if it has some by now: the thread has not waited.
pub(super) fn wait_in_system<T>(handle: HANDLE, wait: impl FnOnce() -> T) -> Option<T> {
    // Whoever makes the port sees this thread, or this thread sees the port.
    let in_system = in_system(handle);
    in_system.fetch_add(1, Ordering::SeqCst);
    ALL_IN_SYSTEM.fetch_add(1, Ordering::SeqCst);
    let waited = match find(handle) {
        None => Some(wait()),
        Some(_) => None,
    };
    ALL_IN_SYSTEM.fetch_sub(1, Ordering::SeqCst);
    in_system.fetch_sub(1, Ordering::SeqCst);
    waited
}

/// This call may have queued something that is not in the kernel's queue. If a thread waits there since before the port
/// had sockets, the packet that was for it may be gone: there is one more. It does not wait beside a packet that it has not
/// taken.
pub(super) fn wake_those_in_system(handle: HANDLE, port: &Port) {
    if may_be_in_system(handle, port) > 0 && kernel::depth(handle) == Some(0) {
        port.wake();
    }
}

/// The port of a handle that a packet of the library was dequeued with: the handle may be one that the program has
/// duplicated.
pub(super) fn find_same(handle: HANDLE) -> Option<Arc<Port>> {
    if !is_any() {
        return None;
    }
    let is_it = |port: &&Arc<Port>| kernel::is_same(handle, port.handle()) == Some(true);
    let mut guard = write();
    let ports = guard.as_mut()?;
    let port = ports.all().find(is_it).cloned()?;
    ports.insert(handle, &port);
    drop(guard);
    forget_closed(handle);
    Some(port)
}

/// Close a handle, and the port if that was its last.
pub(super) fn close(handle: HANDLE, by_system: impl FnOnce() -> NTSTATUS) -> NTSTATUS {
    let changes = CHANGES.load(Ordering::SeqCst);
    if is_any() {
        if let Some(port) = find(handle) {
            forget(handle, &port);
        }
        Port::closing(handle);
    }
    let status = by_system();
    // Another thread may have inserted it meanwhile.
    if CHANGES.load(Ordering::SeqCst) != changes {
        forget_closed(handle);
    }
    if ORPHANS.load(Ordering::SeqCst) > 0 && is_any() {
        close_unused();
    }
    status
}

/// Forget the value of a handle that is about to be closed, if it is this port's.
fn forget(handle: HANDLE, port: &Arc<Port>) {
    if let Some(ports) = &mut *write() {
        let value = handle.addr();
        let is_it = |other: &Arc<Port>| Arc::ptr_eq(other, port);
        if !ports.by_value.get(&value).is_some_and(is_it) {
            return;
        }
        ports.by_value.remove(&value);
        if !ports.by_value.values().any(is_it) {
            ports.orphans.push(Arc::clone(port));
        }
        ports.publish();
    }
}

/// Forget a value if its handle was closed while another thread inserted it: whoever comes last does. True if it was.
fn forget_closed(handle: HANDLE) -> bool {
    let is_closed = |port: &Arc<Port>| kernel::is_same(handle, port.handle()) == Some(false);
    match find(handle).filter(is_closed) {
        Some(port) => {
            forget(handle, &port);
            true
        }
        None => false,
    }
}

/// Close the ports whose last handle is the library's. Nobody can get at them any more.
fn close_unused() {
    let mut closed = match &*read() {
        Some(ports) => ports.orphans.clone(),
        None => return,
    };
    closed.retain(|port| kernel::handles(port.handle()) == 1);
    if let Some(ports) = &mut *write() {
        let is_closed = |port: &Arc<Port>| closed.iter().any(|other| Arc::ptr_eq(port, other));
        ports.orphans.retain(|port| !is_closed(port));
        ports.publish();
    }
    for port in closed {
        port.close();
    }
}
