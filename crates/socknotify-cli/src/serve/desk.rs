//! What a thread has for the connection that it serves.

use super::log::Log;
use super::tally::Counts;

/// The most that is received in one turn. It has room for what was kept of a request and for more, and for
/// the largest datagram.
const RECEIVE: usize = 64 * 1024;

/// Memory of a thread. There is one for each thread and none for each connection.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) input: Box<[u8]>,
    pub(crate) answers: Vec<u8>,
    pub(crate) counts: Counts,
    pub(crate) log: Log,
}

impl Desk {
    pub(crate) fn new(log: Log) -> Self {
        Desk {
            input: vec![0; RECEIVE].into(),
            answers: Vec::new(),
            counts: Counts::default(),
            log,
        }
    }
}
