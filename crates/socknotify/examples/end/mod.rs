//! When an example ends: at Ctrl-C.

use std::io;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// What tells of Ctrl-C. Make it before the first client is served: without it Ctrl-C ends the process.
pub(crate) struct End {
    #[cfg(unix)]
    told: UnixStream,
}

#[cfg(unix)]
impl End {
    pub(crate) fn new() -> io::Result<Self> {
        // The handler writes a byte.
        let (told, signal) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, signal)?;
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
        loop {
            std::thread::park();
        }
    }
}
