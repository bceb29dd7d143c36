//! `io_uring`: a ring for each thread, which receives and sends. A thread ends with the last of its
//! connections.
//!
//! An answer and the next receive go to the kernel together, linked, and only the receive comes back:
//! one system call for everything that is answered at a time.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::{Protocol, Shape, Until, deal, on_threads};
use crate::uring::Ring;

/// A connection with its buffers, which the kernel knows.
struct Connection<P> {
    stream: TcpStream,
    protocol: P,
    received: Vec<u8>,
    answers: Vec<u8>,
}

impl<P: Protocol> Connection<P> {
    fn receive(&mut self, key: usize) -> squeue::Entry {
        let socket = Fd(self.stream.as_raw_fd());
        opcode::Recv::new(socket, self.received.as_mut_ptr(), P::ROOM as u32)
            .build()
            .user_data(key as u64)
    }

    fn send(&self, key: usize) -> squeue::Entry {
        let socket = Fd(self.stream.as_raw_fd());
        let length = self.answers.len() as u32;
        opcode::Send::new(socket, self.answers.as_ptr(), length)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .flags(squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS)
            .user_data(FAILED | key as u64)
    }
}

/// All that comes back of a send is that it failed; then the receive behind it does not come back.
const FAILED: u64 = 1 << 63;

pub(super) fn serve<P: Protocol>(
    shape: Shape,
    protocol: &P,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let hands = deal(streams, shape.threads).into_iter();
    let threads = hands.map(|streams| {
        let protocol = protocol.clone();
        move || converse(&protocol, streams)
    });
    on_threads(threads, until, || Ok(()))
}

fn converse<P: Protocol>(protocol: &P, streams: Vec<TcpStream>) -> io::Result<()> {
    let mut connections: Vec<_> = streams
        .into_iter()
        .map(|stream| Connection {
            stream,
            protocol: protocol.clone(),
            received: vec![0; P::ROOM],
            answers: Vec::with_capacity(P::ROOM),
        })
        .collect();
    // Made last, and so gone before the connections; and with room for all that is pushed in a turn, so
    // that no link is cut.
    let mut ring = Ring::new(2 * connections.len())?;
    for (key, connection) in connections.iter_mut().enumerate() {
        // SAFETY: the connections and their buffers stay until the ring is gone.
        unsafe { ring.push(&connection.receive(key))? };
    }
    let mut open = connections.len();
    let mut found = Vec::with_capacity(connections.len());
    while open > 0 {
        ring.submit_and_wait(1)?;
        found.clear();
        found.extend(ring.completion().map(|it| (it.user_data(), it.result())));
        for &(key, result) in &found {
            if key & FAILED != 0 || result <= 0 {
                open -= 1;
                continue;
            }
            let key = key as usize;
            let connection = &mut connections[key];
            connection.answers.clear();
            let received = &connection.received[..result as usize];
            connection
                .protocol
                .answer(received, &mut connection.answers)?;
            // SAFETY: as above; and nothing is under way for this connection, whose buffers stay as they
            // are until what is pushed here comes back.
            unsafe {
                if !connection.answers.is_empty() {
                    ring.push(&connection.send(key))?;
                }
                ring.push(&connection.receive(key))?;
            }
        }
    }
    Ok(())
}
