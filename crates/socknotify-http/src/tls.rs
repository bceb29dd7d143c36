//! TLS, by `rustls`: each step of a handshake is an event, so that a slow client holds no thread.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use rustls::ServerConnection;
use socknotify::owned::Input;

/// Receive once, unless there is more already than the input had room for, and decrypt it. False at the end.
pub(crate) fn receive(
    session: &mut ServerConnection,
    input: &mut Input,
    has_more: &mut bool,
    mut socket: impl Read + Write,
) -> io::Result<bool> {
    if !*has_more {
        match session.read_tls(&mut socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            count => count?,
        };
        let state = session.process_new_packets();
        // The handshake goes on, or the client is told what is wrong.
        match flush(session, &mut socket) {
            // What comes next is sent behind it.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            flushed => flushed?,
        }
        state.map_err(io::Error::other)?;
    }
    let is_open = input.receive(session.reader())?;
    *has_more = session.reader().fill_buf().is_ok_and(|it| !it.is_empty());
    Ok(is_open)
}

pub(crate) fn flush(session: &mut ServerConnection, socket: &mut impl Write) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(socket)?;
    }
    Ok(())
}
