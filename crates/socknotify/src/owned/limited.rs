//! [`Limited`]: a limit for several calls of a connection in blocking mode.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{Source, unacknowledged};

/// A stream in blocking mode, with a limit for all that is read or written through this.
///
/// The timeout of [`Listening::blocking_mode`](super::Listening::blocking_mode) is for each call. So a peer that sends a byte
/// now and then holds its thread for as long as it likes, and one that reads slowly but steadily may be cut off, as a system
/// lets a writer wait until much of its buffer is free. Here
///
/// - a call that begins after the limit fails; so all end within the limit and one more timeout;
/// - a write goes on after its timeout if the peer has taken something meanwhile, or if that is not known yet: so a peer that takes
///   nothing is given up after one to two timeouts. Where the system does not tell what the peer has taken, on Windows, OpenBSD and
///   DragonFly BSD, it does not go on.
///
/// So use a short limit to receive a request, and a long one to send an answer: a peer that stalls is found out by the
/// timeout.
///
/// # Errors
///
/// Reads and writes fail with [`ErrorKind::TimedOut`] after the limit, and if the peer sends nothing for the stream's timeout, or takes
/// nothing for twice that time.
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
    /// When a write had waited for its timeout, and what the peer had not acknowledged then.
    waited: Option<(Instant, u64)>,
    /// The peer has taken nothing for so long that the next write fails.
    has_stalled: bool,
}

impl<S: Source> Limited<S> {
    /// From now on all calls together may take this long.
    pub fn within(stream: S, time: Duration) -> Self {
        let end = Instant::now().checked_add(time);
        Limited {
            stream,
            end,
            waited: None,
            has_stalled: false,
        }
    }

    /// All calls begin before this time.
    pub const fn until(stream: S, end: Instant) -> Self {
        Limited {
            stream,
            end: Some(end),
            waited: None,
            has_stalled: false,
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.end {
            Some(end) if Instant::now() >= end => Err(late()),
            _ => Ok(()),
        }
    }

    /// Whether the peer has taken nothing since a write had waited for its timeout, when another one has waited, and was accepted so
    /// much of. The first time nothing is known of the time before.
    fn stalls(&mut self, accepted: u64) -> bool {
        let Some(left) = unacknowledged(&self.stream) else {
            return accepted == 0;
        };
        let now = Instant::now();
        let since = match self.waited {
            Some((since, before)) if left >= before + accepted => since,
            _ => now,
        };
        self.waited = Some((since, left));
        // It may also be a signal that has ended the call.
        let timeout = SockRef::from(&self.stream.socket()).write_timeout();
        since < now && timeout.is_ok_and(|it| it.is_some_and(|it| now - since + TICKS >= it))
    }

    /// Runs a call that sends up to so many bytes on the stream, such as `sendfile`, as often as a [`write`](Write::write) would.
    ///
    /// # Errors
    ///
    /// Those of a write, and the call's own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::io::{self, Read, Write};
    /// # use std::net::{TcpListener, TcpStream};
    /// # use std::time::Duration;
    /// use socknotify::owned::Limited;
    ///
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let mut peer = TcpStream::connect(listener.local_addr()?)?;
    /// # let stream = listener.accept()?.0;
    /// let mut limited = Limited::within(&stream, Duration::from_secs(600));
    /// // For example a call of the system's that the standard library does not have.
    /// let sent = limited.send_with(4, |stream| stream.write(b"pong"))?;
    /// # assert_eq!(sent, 4);
    /// # peer.read_exact(&mut [0; 4])?;
    /// # Ok::<(), io::Error>(())
    /// ```
    pub fn send_with(
        &mut self,
        length: usize,
        mut call: impl FnMut(&mut S) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            self.check()?;
            if self.has_stalled {
                return Err(late());
            }
            match call(&mut self.stream) {
                Ok(count) if count < length => {
                    self.has_stalled = self.stalls(count as u64);
                    return Ok(count);
                }
                Err(error) if is_late(&error) => self.has_stalled = self.stalls(0),
                outcome => {
                    self.waited = None;
                    return outcome;
                }
            }
        }
    }
}

/// A call may return that much before its timeout, which systems count in ticks.
const TICKS: Duration = Duration::from_millis(20);

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
        self.send_with(bytes.len(), |stream| stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.send_with(length, |stream| stream.write_vectored(parts))
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

    /// A stream that counts its writes, of which each waits for the timeout.
    struct Counted<'a>(&'a TcpStream, usize);

    impl Source for Counted<'_> {
        fn socket(&self) -> crate::owned::BorrowedSocket<'_> {
            self.0.socket()
        }
    }

    impl Write for Counted<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Whether its buffer is full from the beginning, or is filled by the first write.
    #[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
    #[test]
    fn a_peer_that_takes_nothing_is_found_out_in_two_timeouts() -> io::Result<()> {
        let (stream, _peer) = pair()?;
        for _ in 0..2 {
            let mut writes = Limited::within(Counted(&stream, 0), Duration::MAX);
            let error = writes.write_all(&vec![1; 64 << 20]).expect_err("it stalls");
            assert_eq!((error.kind(), writes.stream.1), (ErrorKind::TimedOut, 2));
        }
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
