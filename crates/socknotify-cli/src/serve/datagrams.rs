//! Datagrams, which go back to where they have come from.

use std::io::ErrorKind;
use std::net::UdpSocket;

use super::desk::Desk;

/// How many a thread answers before it serves others again.
const BATCH: usize = 64;

/// Echoes datagrams, up to a limit. If there are more, the port notifies again.
pub(crate) fn echo(socket: &UdpSocket, desk: &mut Desk) {
    for _ in 0..BATCH {
        match socket.recv_from(&mut desk.input) {
            Ok((length, address)) => {
                desk.counts.requests += 1;
                // There is no room for it, or no way: datagrams may get lost.
                let _ = socket.send_to(&desk.input[..length], address);
            }
            // Of an answer that did not arrive, on Windows.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(_) => return,
        }
    }
}
