//! The access log: a thread writes it, so that no request waits for it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::{io, thread};

use crate::response::caught;

/// So many lines may wait to be written.
const WAITING: usize = 8192;

/// Lines for the log. When it is dropped, the thread writes what waits, and ends.
#[derive(Debug)]
pub(crate) struct Log {
    lines: SyncSender<String>,
    left_out: Arc<AtomicU64>,
}

impl Log {
    /// Start the thread that writes. `left_out` counts the lines that it does not keep up with. The receiver is disconnected when
    /// the thread has written all.
    pub(crate) fn start(
        mut writer: impl Write + Send + 'static,
        left_out: Arc<AtomicU64>,
    ) -> io::Result<(Self, Receiver<()>)> {
        let (lines, waiting) = sync_channel::<String>(WAITING);
        let (ended, written) = channel();
        let failed = Arc::clone(&left_out);
        let write = move || {
            for mut text in &waiting {
                // What waits goes out in one call.
                text.extend(waiting.try_iter());
                let write = || {
                    writer
                        .write_all(text.as_bytes())
                        .and_then(|()| writer.flush())
                };
                if !matches!(caught(write), Some(Ok(()))) {
                    failed.fetch_add(text.lines().count() as u64, Ordering::Relaxed);
                }
            }
            // It may have something to write yet.
            drop(writer);
            drop(ended);
        };
        let thread = thread::Builder::new().name("http-log".into());
        thread.spawn(write)?;
        Ok((Log { lines, left_out }, written))
    }

    pub(crate) fn add(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}
