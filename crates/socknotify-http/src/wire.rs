//! [`Wire`]: the stream of a connection, what was read ahead of it, and TLS, by `rustls`.

use std::io::{self, Read, Write};
#[cfg(feature = "tls")]
use std::io::{BufRead, ErrorKind};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socknotify::owned::Input;

use crate::{Limits, body::EARLY};

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    /// What was received, and decrypted, and not taken.
    pub(crate) input: Input,
    /// More was decrypted than the input had room for, or the client's end of the session.
    pub(crate) has_more: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Box<rustls::ServerConnection>>,
}

pub(crate) fn input(limits: &Limits) -> Input {
    Input::new(limits.head.saturating_add(EARLY))
}

/// When this time has passed, or never, as far as anybody sees.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
    now + time.min(NEVER)
}

impl Wire {
    pub(crate) fn is_plain(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_none();
        #[cfg(not(feature = "tls"))]
        true
    }

    /// Receive once. That may be nothing: a signal ends the call, or a record of TLS is not whole. False at the end.
    pub(crate) fn receive<'a, S: Read + Write>(
        &'a mut self,
        socket: impl FnOnce(&'a TcpStream) -> S,
    ) -> io::Result<bool> {
        let socket = socket(&self.stream);
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            let mut socket = socket;
            if !self.has_more {
                match session.complete_io(&mut socket) {
                    // Each step of a handshake is an event, so that a slow client holds no thread.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => drop(done?),
                }
            }
            let is_open = self.input.receive(session.reader())?;
            // Its end, by `close_notify`, counts.
            self.has_more = session.reader().fill_buf().is_ok();
            return Ok(is_open);
        }
        self.input.receive(socket)
    }

    /// Whether a record of TLS has to go before all that was sent is on its way.
    pub(crate) fn has_unsent(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(|it| it.wants_write());
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Send once. That may be nothing: a record of TLS goes first.
    pub(crate) fn send<'a, S: Write>(
        &'a mut self,
        bytes: &[u8],
        socket: impl FnOnce(&'a TcpStream) -> S,
    ) -> io::Result<usize> {
        let mut socket = socket(&self.stream);
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            if !session.wants_write() {
                return session.writer().write(bytes);
            }
            return session.write_tls(&mut socket).map(|_| 0);
        }
        socket.write(bytes)
    }

    /// Say that nothing more comes.
    #[cfg(feature = "tls")]
    pub(crate) fn close(&mut self) {
        if let Some(session) = &mut self.tls {
            session.send_close_notify();
            let _ = session.complete_io(&mut &self.stream);
        }
    }
}
