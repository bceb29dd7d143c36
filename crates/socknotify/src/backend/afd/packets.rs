//! The packets of the kernel's port: which are this backend's own, and what each means.

use windows_sys::Win32::System::IO::OVERLAPPED_ENTRY;

use super::device::Poll;
use super::state::State;
use crate::Entry;
use crate::engine::{Report, Table, Waited};
use crate::os::Fd;
use crate::os::windows::port::entry;

/// The kind of a packet that is this backend's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own(usize);

pub(super) const POLL: Own = Own(0);
/// A socket may have edges.
pub(super) const EDGES: Own = Own(1);
pub(super) const WAKE: Own = Own(2);
pub(super) const ALARM: Own = Own(3);
/// The port is closed.
pub(super) const CLOSED: Own = Own(4);

/// The addresses of these are the keys of own packets: nobody else has them.
static KEYS: [u8; 5] = [0; 5];

impl Own {
    pub(super) fn key(self) -> usize {
        KEYS.as_ptr().addr() + self.0
    }

    /// The kind of a packet with this key, unless it is a packet of others.
    pub(super) fn of(key: usize) -> Option<Self> {
        let kind = key.wrapping_sub(KEYS.as_ptr().addr());
        (kind < KEYS.len()).then_some(Own(kind))
    }
}

impl State {
    /// A packet was dequeued.
    pub(super) fn sort(
        &mut self,
        table: &Table,
        packet: &OVERLAPPED_ENTRY,
        reports: &mut Vec<Report>,
        others: &mut Vec<Entry>,
        waited: &mut Waited,
    ) {
        match Own::of(packet.lpCompletionKey) {
            Some(POLL) => {
                let poll = packet.lpOverlapped.cast::<Poll>();
                // SAFETY: under this key there are polls, and each packet is taken once.
                reports.extend(unsafe { self.end_poll(table, poll) });
            }
            Some(EDGES) => {
                reports.extend(self.end_edges(table, Fd(packet.lpOverlapped.addr() as u32)));
            }
            Some(ALARM) => waited.alarmed = true,
            Some(CLOSED) => {
                waited.woken = true;
                // For the next thread.
                self.port.insist(CLOSED.key(), 0);
            }
            Some(_) => waited.woken = true,
            None => {
                let mut entry = entry(packet);
                entry.status = packet.Internal as i32;
                others.push(entry);
            }
        }
    }
}
