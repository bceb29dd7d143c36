//! [`Wire`]: the stream of a connection, what was read ahead of it, and TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socknotify::owned::{Input, Limited};

use crate::body::EARLY;
use crate::limits::Limits;
#[cfg(feature = "tls")]
use crate::tls::Tls;

pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    /// What was received, and decrypted, and not taken.
    pub(crate) input: Input,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Box<Tls>>,
}

/// A stream that is used until `end`; `None` for ever.
pub(crate) fn limited(stream: &TcpStream, end: Option<Instant>) -> Limited<&TcpStream> {
    match end {
        Some(end) => Limited::until(stream, end),
        None => Limited::within(stream, Duration::MAX),
    }
}

pub(crate) fn input(limits: &Limits) -> Input {
    Input::new(limits.head.saturating_add(EARLY))
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, limits: &Limits) -> Self {
        Wire {
            stream,
            input: input(limits),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Receive once. That may be nothing: a signal ends the call, or a record of TLS is not whole. False at the end.
    pub(crate) fn receive<'a, S: Read + Write>(
        &'a mut self,
        socket: impl FnOnce(&'a TcpStream) -> S,
    ) -> io::Result<bool> {
        let socket = socket(&self.stream);
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.receive(&mut self.input, socket);
        }
        self.input.receive(socket)
    }

    /// To send until `end`.
    pub(crate) fn sender(&mut self, end: Option<Instant>) -> Sender<'_> {
        Sender {
            is_plain: self.is_plain(),
            limited: limited(&self.stream, end),
            #[cfg(feature = "tls")]
            tls: self.tls.as_deref_mut(),
            sent: 0,
            head: 0,
        }
    }

    /// Say that nothing more comes.
    #[cfg(feature = "tls")]
    pub(crate) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.session.send_close_notify();
            let _ = tls.flush(&mut &self.stream);
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_none();
        #[cfg(not(feature = "tls"))]
        true
    }

    /// Whether more was decrypted than the input had room for.
    pub(crate) fn has_more(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(|tls| tls.has_more);
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Sends to a client.
pub(crate) struct Sender<'a> {
    /// What is sent goes out as it is.
    pub(crate) is_plain: bool,
    pub(crate) limited: Limited<&'a TcpStream>,
    #[cfg(feature = "tls")]
    tls: Option<&'a mut Tls>,
    /// So many bytes, and of the head of an answer.
    pub(crate) sent: u64,
    pub(crate) head: u64,
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            let count = tls.write(bytes, &mut self.limited)?;
            self.sent += count as u64;
            return Ok(count);
        }
        let count = self.limited.write(bytes)?;
        self.sent += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
