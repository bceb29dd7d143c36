//! What a client has not taken yet.

use std::io::{self, Write};

use crate::stream::is_for_later;

/// Bytes that did not fit into the socket. Empty, it has no memory.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sends these, and keeps what does not fit. Nothing may be left from before.
    pub(crate) fn send(&mut self, mut stream: impl Write, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(self.is_empty());
        if !bytes.is_empty() {
            let sent = send_some(&mut stream, bytes)?;
            self.bytes.extend_from_slice(&bytes[sent..]);
        }
        Ok(())
    }

    /// Sends what is left, as far as it fits. How many bytes that is.
    pub(crate) fn send_rest(&mut self, mut stream: impl Write) -> io::Result<usize> {
        if self.is_empty() {
            return Ok(0);
        }
        let sent = send_some(&mut stream, &self.bytes[self.sent..])?;
        self.sent += sent;
        if self.sent == self.bytes.len() {
            *self = Outgoing::default();
        }
        Ok(sent)
    }
}

/// Sends once. Whatever is left after that waits for its turn.
pub(crate) fn send_some(stream: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if is_for_later(&error) => Ok(0),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes at once, and has room for them every other time.
    struct Narrow {
        taken: Vec<u8>,
        is_full: bool,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_full = !self.is_full;
            if self.is_full {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let length = bytes.len().min(3);
            self.taken.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_does_not_fit_is_sent_later_and_in_order() -> io::Result<()> {
        let mut stream = Narrow {
            taken: Vec::new(),
            is_full: false,
        };
        let mut outgoing = Outgoing::default();
        outgoing.send(&mut stream, b"0123456789")?;
        while !outgoing.is_empty() {
            outgoing.send_rest(&mut stream)?;
        }
        assert_eq!(stream.taken, b"0123456789");
        assert_eq!(outgoing.bytes.capacity(), 0);
        Ok(())
    }
}
