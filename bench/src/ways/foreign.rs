//! Loops in C.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use super::{Kind, Way};
use crate::foreign::{Library, Loop, Trigger};

pub(super) struct Foreign(Loop);

impl Foreign {
    pub(super) fn new(library: Library, kind: Kind) -> io::Result<Self> {
        let trigger = match kind {
            Kind::OneShot => Trigger::OneShot,
            Kind::Edge => Trigger::Edge,
            Kind::Level => Trigger::Level,
        };
        Ok(Foreign(Loop::new(library, trigger)?))
    }
}

impl<'a> Way<'a> for Foreign {
    fn add(&mut self, sockets: &'a [UnixStream], _: usize) -> io::Result<()> {
        let sockets = sockets.iter().map(AsRawFd::as_raw_fd);
        self.0.add(&sockets.collect::<Vec<RawFd>>())
    }

    /// All of them, as nobody needs less.
    fn remove(&mut self, _: &'a [UnixStream], _: usize) -> io::Result<()> {
        self.0.remove()
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        self.0.arm()
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        self.0.wait_and_read(sockets.len())
    }
}
