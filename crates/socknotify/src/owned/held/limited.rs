//! [`Limited`]: a stream whose reads and writes share one time limit.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use crate::owned::{Source, source, unacknowledged};
use crate::{EventFilter, os};

/// A stream in non-blocking mode whose reads and writes wait for the peer, with a limit for all of them together.
///
/// So a handler that may block is plain [`Read`] and [`Write`] code: `read_exact`, `write_all`, a TLS stream. In blocking mode the
/// timeouts of a system are for each call: a peer that sends a byte now and then holds its thread for as long as it likes, and one
/// that reads slowly but steadily may be cut off, as a writer waits until much of its buffer is free. Here
///
/// - no call begins or waits after the limit;
/// - with [`stall`](Self::stall), a peer that sends nothing, or takes nothing, for so long is given up. One that takes something
///   meanwhile is not, however little. Where the system does not tell what the peer has taken, on Windows, OpenBSD and DragonFly
///   BSD, it is given up if there is no room for so long.
///
/// So use a short limit to receive a request, and a long one to send an answer: a peer that stalls is found out by the other.
///
/// A stream in blocking mode waits by itself, past these limits.
///
/// # Errors
///
/// Reads and writes fail with [`ErrorKind::TimedOut`] after the limit, and for a peer that stalls.
///
/// # Examples
///
/// ```
/// use std::io::{self, Read, Write};
/// use std::net::TcpStream;
/// use std::time::Duration;
/// use socknotify::owned::Limited;
///
/// const STALL: Duration = Duration::from_secs(30);
///
/// /// Receive a request of four bytes in ten seconds, and answer it in ten minutes.
/// fn serve(stream: &TcpStream, answer: &[u8]) -> io::Result<()> {
///     let mut request = [0; 4];
///     Limited::within(stream, Duration::from_secs(10)).read_exact(&mut request)?;
///     Limited::within(stream, Duration::from_secs(600)).stall(STALL).write_all(answer)
/// }
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
/// # let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
/// # peer.write_all(b"ping").unwrap();
/// # let stream = listener.accept().unwrap().0;
/// # stream.set_nonblocking(true).unwrap();
/// # serve(&stream, b"pong").unwrap();
/// # peer.read_exact(&mut [0; 4]).unwrap();
/// ```
#[derive(Debug)]
pub struct Limited<S> {
    stream: S,
    /// Never, if the clock does not reach it.
    end: Option<Instant>,
    stall: Duration,
}

impl<S: Source> Limited<S> {
    /// From now on all calls together may take this long.
    pub fn within(stream: S, time: Duration) -> Self {
        Limited {
            stream,
            end: Instant::now().checked_add(time),
            stall: Duration::MAX,
        }
    }

    /// All calls end by this time.
    pub const fn until(stream: S, end: Instant) -> Self {
        Limited {
            stream,
            end: Some(end),
            stall: Duration::MAX,
        }
    }

    /// A call may also wait no longer than this for a peer that does nothing.
    pub fn stall(self, time: Duration) -> Self {
        Limited {
            stall: time,
            ..self
        }
    }

    /// The time until the limit.
    fn left(&self) -> io::Result<Duration> {
        let left = match self.end {
            Some(end) => end.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }

    /// Run a call, and again when this holds, as long as it would block.
    fn call<R>(
        &mut self,
        condition: EventFilter,
        mut call: impl FnMut(&mut S) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            self.left()?;
            match call(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(condition)?,
                outcome => return outcome,
            }
        }
    }

    fn wait(&self, condition: EventFilter) -> io::Result<()> {
        let socket = source::raw(&self.stream);
        let is_sending = condition == EventFilter::OUT;
        let waiting = || is_sending.then(|| unacknowledged(&self.stream)).flatten();
        let (mut since, mut before) = (Instant::now(), waiting());
        loop {
            let left = self.stall.saturating_sub(since.elapsed());
            if os::wait_for(socket, condition, left.min(self.left()?))? {
                return Ok(());
            }
            if since.elapsed() >= self.stall {
                // Some of what was sent may have been taken, if less than the system calls room.
                let now = waiting();
                if now.is_none() || now >= before {
                    return Err(ErrorKind::TimedOut.into());
                }
                (since, before) = (Instant::now(), now);
            }
        }
    }

    /// Runs a call that sends on the stream, such as `sendfile`, and waits as a [`write`](Write::write) does.
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
    /// # stream.set_nonblocking(true)?;
    /// let mut limited = Limited::within(&stream, Duration::from_secs(600));
    /// // For example a call of the system's that the standard library does not have.
    /// let sent = limited.send_with(|stream| stream.write(b"pong"))?;
    /// # assert_eq!(sent, 4);
    /// # peer.read_exact(&mut [0; 4])?;
    /// # Ok::<(), io::Error>(())
    /// ```
    pub fn send_with<R>(&mut self, call: impl FnMut(&mut S) -> io::Result<R>) -> io::Result<R> {
        self.call(EventFilter::OUT, call)
    }
}

impl<S: Read + Source> Read for Limited<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(EventFilter::IN, |stream| stream.read(buffer))
    }
}

impl<S: Write + Source> Write for Limited<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_with(|stream| stream.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_with(|stream| stream.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(all(test, not(interleavings)))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    const STALL: Duration = Duration::from_millis(100);

    /// A stream, and its peer.
    fn pair() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
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
            .stall(PATIENCE)
            .read_exact(&mut request)
            .expect_err("it takes too long");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= LIMIT);
        drop(stream);
        trickling.join().expect("no panic");
        Ok(())
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_peer_that_does_nothing_is_given_up() -> io::Result<()> {
        let (stream, mut peer) = pair()?;
        let mut limited = Limited::within(&stream, PATIENCE).stall(STALL);
        let begin = Instant::now();
        let error = limited.read(&mut [0]).expect_err("nothing comes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = limited
            .write_all(&vec![1; 64 << 20])
            .expect_err("nothing is taken");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!((2 * STALL..PATIENCE).contains(&begin.elapsed()));

        peer.write_all(&[1])?;
        assert_eq!(limited.read(&mut [0; 2])?, 1);
        Ok(())
    }

    /// More slowly than a third of the buffer in the time.
    #[cfg(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple"))]
    #[test]
    fn a_peer_may_take_it_slowly() -> io::Result<()> {
        // The time that it took, and the longest in which the peer took nothing, since the machine was busy.
        let run = || -> io::Result<(Duration, Duration)> {
            let (stream, mut peer) = pair()?;
            let reading = thread::spawn(move || {
                let mut left = vec![0; 64 * 1024];
                let begin = Instant::now();
                let (mut last, mut longest) = (begin, Duration::ZERO);
                while begin.elapsed() < 10 * STALL && peer.read_exact(&mut left).is_ok() {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    thread::sleep(Duration::from_millis(10));
                }
                longest
            });
            let begin = Instant::now();
            let outcome = Limited::within(&stream, PATIENCE)
                .stall(STALL)
                .write_all(&vec![1; 64 << 20]);
            let passed = begin.elapsed();
            outcome.expect_err("it ends in the middle");
            drop(stream);
            Ok((passed, reading.join().expect("no panic")))
        };
        for _ in 0..20 {
            let (passed, longest) = run()?;
            if passed >= 9 * STALL {
                return Ok(());
            }
            assert!(
                longest >= STALL / 2,
                "given up after {passed:?}: {longest:?}"
            );
        }
        panic!("this machine is too slow to tell");
    }
}
