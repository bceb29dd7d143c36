//! [`Incoming`]: accept connections, and survive what can go wrong.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::Interest;
use crate::EventFilter;

/// How long a listener rests when the system has nothing left to accept with.
const REST: Duration = Duration::from_millis(50);

/// The connections that wait at a listener, up to a number.
///
/// Armed one-shot, as everything in an owning port is, a listener wakes one thread at a time. A limit
/// lets that thread come back to the connections that it serves; what is left waits for the next
/// notification, on whichever thread is free.
///
/// The streams are in non-blocking mode. When the process or the system is out of descriptors or
/// memory, the listener takes a [rest](Self::interest): it neither spins nor is lost.
///
/// # Examples
///
/// ```
/// use std::net::{TcpListener, TcpStream};
/// use socknotify::owned::{Event, Incoming, Interest, Port};
///
/// # fn main() -> std::io::Result<()> {
/// let port = Port::<TcpListener>::new()?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// listener.set_nonblocking(true)?;
/// let address = listener.local_addr()?;
/// port.arm(port.adopt(listener)?, Interest::IN);
///
/// let client = TcpStream::connect(address)?;
/// let mut worker = port.worker(8);
/// worker.process(None)?;
/// if let Some(Event::Ready(listener, _)) = worker.take() {
///     let mut incoming = Incoming::new(&listener, 16);
///     for (stream, address) in &mut incoming {
///         assert_eq!(address, client.local_addr()?);
///         drop(stream);
///     }
///     let interest = incoming.interest();
///     worker.arm(listener, interest);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
    left: usize,
    error: Option<io::Error>,
}

impl<'a> Incoming<'a> {
    /// At most `limit` connections of a listener in non-blocking mode.
    pub fn new(listener: &'a TcpListener, limit: usize) -> Self {
        Incoming {
            listener,
            left: limit,
            error: None,
        }
    }

    /// What kept the listener from accepting, if anything did.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// What to arm the listener for: the next connection, or a rest of 50 ms after an error.
    pub fn interest(&self) -> Interest {
        match self.error {
            None => EventFilter::IN.into(),
            Some(_) => Interest::NOTHING.within(REST),
        }
    }
}

impl Iterator for Incoming<'_> {
    type Item = (TcpStream, SocketAddr);

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            self.left -= 1;
            let accepted = self.listener.accept().and_then(|(stream, address)| {
                stream.set_nonblocking(true)?;
                Ok((stream, address))
            });
            match accepted {
                Ok(accepted) => return Some(accepted),
                Err(error) => match error.kind() {
                    // It was given up by its peer before it was accepted.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => self.left = 0,
                    _ => {
                        self.left = 0;
                        self.error = Some(error);
                    }
                },
            }
        }
        None
    }
}
