//! The access log: a thread writes it, so that no request waits for it.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// So many lines may wait to be written.
const WAITING: usize = 8192;

/// How long the end of a server waits for the log.
const END: Duration = Duration::from_secs(1);

/// Lines for the log.
pub(crate) struct Log {
    lines: SyncSender<String>,
    left_out: Arc<AtomicU64>,
    /// Says that all was written.
    ended: Mutex<Receiver<()>>,
}

impl Log {
    /// Start the thread that writes. `left_out` counts what it does not keep up with.
    pub(crate) fn start(
        mut writer: Box<dyn Write + Send>,
        left_out: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (lines, waiting) = sync_channel::<String>(WAITING);
        let (end, ended) = sync_channel(1);
        let is_left_out = Arc::clone(&left_out);
        let write = move || {
            let mut text = String::new();
            while let Ok(line) = waiting.recv() {
                text.push_str(&line);
                let mut count = 1;
                // What waits goes out in one call.
                while let Ok(line) = waiting.try_recv() {
                    text.push_str(&line);
                    count += 1;
                }
                let written = writer.write_all(text.as_bytes());
                if written.and_then(|()| writer.flush()).is_err() {
                    is_left_out.fetch_add(count, Ordering::Relaxed);
                }
                text.clear();
            }
            let _ = end.send(());
        };
        thread::Builder::new()
            .name("http-log".into())
            .spawn(write)?;
        Ok(Log {
            lines,
            left_out,
            ended: Mutex::new(ended),
        })
    }

    pub(crate) fn add(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wait until all is written, for a second at most.
    pub(crate) fn end(self) {
        drop(self.lines);
        let ended = self.ended.into_inner();
        let _ = ended
            .unwrap_or_else(PoisonError::into_inner)
            .recv_timeout(END);
    }
}
