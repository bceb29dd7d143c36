//! When an example ends: at Ctrl-C, or when its standard input does.

use std::io;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// What tells of the end. Here, before the first client is served: without it Ctrl-C ends the process.
pub(crate) struct End {
    #[cfg(unix)]
    told: UnixStream,
}

#[cfg(unix)]
impl End {
    pub(crate) fn new() -> io::Result<Self> {
        use std::io::Write;

        use signal_hook::consts::SIGINT;
        use signal_hook::low_level::pipe;

        // Whichever comes first writes a byte.
        let (told, signal) = UnixStream::pair()?;
        let mut at_end = signal.try_clone()?;
        pipe::register(SIGINT, signal)?;
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            at_end.write_all(b"x")
        });
        Ok(End { told })
    }

    pub(crate) fn wait(mut self) -> io::Result<()> {
        io::Read::read_exact(&mut self.told, &mut [0])
    }
}

/// Elsewhere Ctrl-C ends the process.
#[cfg(not(unix))]
impl End {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(End {})
    }

    pub(crate) fn wait(self) -> io::Result<()> {
        io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
    }
}
