//! [`Limited`]: a limit for several calls of a connection in blocking mode.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::{Source, unacknowledged};

/// A stream in blocking mode, with a limit for all that is read or written through this.
///
/// The timeout of [`Listening::blocking_mode`](super::Listening::blocking_mode) is for each call. So a peer that sends a byte
/// now and then holds its thread for as long as it likes, and one that reads slowly but steadily may be cut off, as a system
/// lets a writer wait until much of its buffer is free. Here
///
/// - a call that begins after the limit fails; so all end within the limit and one more timeout;
/// - a write goes on after its timeout if the peer has taken something meanwhile. Where the system does not tell what the
///   peer has taken, on Windows, OpenBSD and DragonFly BSD, it does not.
///
/// So use a short limit to receive a request, and a long one to send an answer: a peer that stalls is found out by the
/// timeout.
///
/// # Errors
///
/// Reads and writes fail with [`ErrorKind::TimedOut`] after the limit, and if the peer sends or takes nothing for the
/// stream's timeout.
///
/// # Examples
///
/// ```
/// use std::io::{self, Read, Write};
/// use std::net::TcpStream;
/// use std::time::Duration;
/// use socknotify::owned::Limited;
///
/// /// Receive a request of four bytes in ten seconds, and answer it in ten minutes.
/// fn serve(stream: &TcpStream, answer: &[u8]) -> io::Result<()> {
///     let mut request = [0; 4];
///     Limited::within(stream, Duration::from_secs(10)).read_exact(&mut request)?;
///     Limited::within(stream, Duration::from_secs(600)).write_all(answer)
/// }
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
/// # let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
/// # peer.write_all(b"ping").unwrap();
/// # serve(&listener.accept().unwrap().0, b"pong").unwrap();
/// # peer.read_exact(&mut [0; 4]).unwrap();
/// ```
#[doc(alias = "SO_RCVTIMEO")]
#[doc(alias = "SO_SNDTIMEO")]
pub struct Limited<S> {
    stream: S,
    /// Never, if the clock does not reach it.
    end: Option<Instant>,
    /// What the peer had not acknowledged when a write that nothing was accepted of had waited for its timeout.
    unacknowledged: Option<u64>,
}

impl<S: Source> Limited<S> {
    /// From now on all calls together may take this long.
    pub fn within(stream: S, time: Duration) -> Self {
        let end = Instant::now().checked_add(time);
        Limited {
            stream,
            end,
            unacknowledged: None,
        }
    }

    /// All calls begin before this time.
    pub const fn until(stream: S, end: Instant) -> Self {
        Limited {
            stream,
            end: Some(end),
            unacknowledged: None,
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.end {
            Some(end) if Instant::now() >= end => Err(late()),
            _ => Ok(()),
        }
    }

    /// Whether the peer has taken something since this was last asked. The first time is no answer: what it had not
    /// taken before that is not known.
    fn has_progressed(&mut self) -> bool {
        let now = unacknowledged(&self.stream);
        let before = std::mem::replace(&mut self.unacknowledged, now);
        now.is_some() && now != before
    }
}

fn late() -> io::Error {
    ErrorKind::TimedOut.into()
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl<S: Read + Source> Read for Limited<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        let outcome = self.stream.read(buffer);
        outcome.map_err(|error| if is_late(&error) { late() } else { error })
    }
}

impl<S: Write + Source> Write for Limited<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.check()?;
            match self.stream.write(bytes) {
                Err(error) if is_late(&error) => {
                    if !self.has_progressed() {
                        return Err(late());
                    }
                }
                outcome => {
                    self.unacknowledged = None;
                    return outcome;
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S> fmt::Debug for Limited<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited")
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// A stream with a timeout for each call, and its peer.
    fn pair() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok((stream, peer))
    }

    #[test]
    fn a_peer_that_sends_a_byte_now_and_then_has_a_limit() -> io::Result<()> {
        const LIMIT: Duration = Duration::from_millis(300);
        let (stream, mut peer) = pair()?;
        let trickling = thread::spawn(move || {
            while peer.write_all(&[1]).is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        let begin = Instant::now();
        let mut request = vec![0; 1 << 20];
        let error = Limited::within(&stream, LIMIT)
            .read_exact(&mut request)
            .expect_err("it takes too long");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= LIMIT);
        drop(stream);
        trickling.join().expect("no panic");
        Ok(())
    }

    #[test]
    fn a_peer_that_sends_nothing_is_found_out_by_the_timeout() -> io::Result<()> {
        let (stream, _peer) = pair()?;
        let outcome = Limited::within(&stream, Duration::MAX).read(&mut [0]);
        assert_eq!(
            outcome.expect_err("nothing comes").kind(),
            ErrorKind::TimedOut
        );
        Ok(())
    }

    #[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
    #[test]
    fn a_steady_peer_may_read_slowly_and_one_that_stalls_may_not() -> io::Result<()> {
        let (stream, mut peer) = pair()?;
        let answer = vec![1; 64 << 20];
        let error = Limited::within(&stream, Duration::MAX)
            .write_all(&answer)
            .expect_err("nobody reads");
        assert_eq!(error.kind(), ErrorKind::TimedOut);

        // More slowly than a third of the buffer in a timeout.
        let reading = thread::spawn(move || {
            let mut left = vec![0; 64 * 1024];
            let begin = Instant::now();
            while begin.elapsed() < 10 * TIMEOUT {
                peer.read_exact(&mut left).expect("it is sent");
                thread::sleep(Duration::from_millis(10));
            }
        });
        let begin = Instant::now();
        let outcome = Limited::within(&stream, Duration::MAX).write_all(&answer);
        let error = outcome.expect_err("it ends in the middle");
        assert!(
            begin.elapsed() >= 9 * TIMEOUT,
            "{error} after {:?}",
            begin.elapsed()
        );
        reading.join().expect("no panic");
        Ok(())
    }
}
