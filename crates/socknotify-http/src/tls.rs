//! TLS, by `rustls`: each step of a handshake is an event, so that a slow client holds no thread.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};
use socknotify::owned::Input;

pub(crate) struct Tls {
    pub(crate) session: ServerConnection,
    /// There is more than the input had room for.
    pub(crate) has_more: bool,
}

impl Tls {
    pub(crate) fn new(config: &Arc<ServerConfig>) -> Box<Self> {
        let session = ServerConnection::new(Arc::clone(config));
        Box::new(Tls {
            session: session.expect("an extension that was chosen fits in a message"),
            has_more: false,
        })
    }

    /// Receive once, unless there is more already, and decrypt it. False at the end.
    pub(crate) fn receive(
        &mut self,
        input: &mut Input,
        mut socket: impl Read + Write,
    ) -> io::Result<bool> {
        if !self.has_more {
            match self.session.read_tls(&mut socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
                count => count?,
            };
            let state = self.session.process_new_packets();
            // The handshake goes on, or the client is told what is wrong.
            self.flush(&mut socket)?;
            state.map_err(io::Error::other)?;
        }
        let is_open = input.receive(self.session.reader())?;
        let left = self.session.reader().fill_buf().map(<[u8]>::len);
        self.has_more = left.is_ok_and(|left| left > 0);
        Ok(is_open)
    }

    /// Encrypt some of this, and send it.
    pub(crate) fn write(&mut self, bytes: &[u8], socket: &mut impl Write) -> io::Result<usize> {
        let count = self.session.writer().write(bytes)?;
        self.flush(socket)?;
        Ok(count)
    }

    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(socket)?;
        }
        Ok(())
    }
}
