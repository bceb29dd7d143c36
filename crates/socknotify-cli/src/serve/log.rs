//! The file of the access log, which can be opened again.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{output, system};

/// The file that the access log goes to. Its clones have the same one.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<Arc<File>>>,
    /// The last write failed.
    has_failed: bool,
}

impl LogFile {
    /// # Errors
    ///
    /// The system's; also if it is a pipe that nobody has open for reading.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = Arc::new(system::open_log(path)?);
        Ok(LogFile {
            path: path.to_owned(),
            file: Arc::new(Mutex::new(file)),
            has_failed: false,
        })
    }

    /// Has what follows go to what has this path by now. If that cannot be opened, all stays as it is.
    pub(crate) fn reopen(&self) {
        match system::open_log(&self.path) {
            Ok(file) => *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(file),
            Err(error) => self.say(&error),
        }
    }

    fn say(&self, error: &io::Error) {
        output::problem(format_args!("{}: {error}", self.path.display()));
    }
}

/// A write may wait, as for the reader of a pipe. Nobody else waits for it.
impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = Arc::clone(&self.file.lock().unwrap_or_else(PoisonError::into_inner));
        let written = (&*file).write(bytes);
        if let Err(error) = &written {
            if error.kind() != io::ErrorKind::Interrupted && !self.has_failed {
                self.say(error);
            }
        }
        self.has_failed = written.is_err();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
