//! Libraries in C: a loop for each thread, which ends with the last of its connections.

use std::io;
use std::net::TcpStream;
use std::os::fd::{IntoRawFd, RawFd};
use std::time::Duration;

use super::{Shape, Until, deal, on_threads};
use crate::foreign::{self, Library};

pub(super) fn echo(
    library: Library,
    shape: Shape,
    work: Duration,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let functions = foreign::load(library).ok_or(io::ErrorKind::NotFound)?;
    let hands = deal(streams, shape.threads).into_iter();
    let threads = hands.map(|streams| {
        move || {
            let sockets = streams.into_iter().map(IntoRawFd::into_raw_fd);
            functions.serve(&sockets.collect::<Vec<RawFd>>(), work)
        }
    });
    on_threads(threads, until, || Ok(()))
}
