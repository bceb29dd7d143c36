//! The access log: a thread writes it, so that no request waits for it.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// So many lines may wait to be written.
const WAITING: usize = 8192;

/// How long the end of a server waits for the log.
const END: Duration = Duration::from_secs(1);

/// How long it waits for room among the lines before it looks again.
const STEP: Duration = Duration::from_millis(10);

/// Lines for the log.
pub(crate) struct Log {
    /// Lines; `None` asks to be told when those before it are written.
    lines: SyncSender<Option<String>>,
    left_out: Arc<AtomicU64>,
    /// Says that they are.
    ended: Mutex<Receiver<()>>,
}

impl Log {
    /// Start the thread that writes. `left_out` counts what it does not keep up with.
    pub(crate) fn start(
        mut writer: Box<dyn Write + Send>,
        left_out: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (lines, waiting) = sync_channel::<Option<String>>(WAITING);
        let (end, ended) = sync_channel(1);
        let is_left_out = Arc::clone(&left_out);
        let write = move || {
            let mut text = String::new();
            while let Ok(first) = waiting.recv() {
                let (mut next, mut count) = (Some(first), 0);
                // What waits goes out in one call.
                while let Some(Some(line)) = next {
                    text.push_str(&line);
                    count += 1;
                    next = waiting.try_recv().ok();
                }
                let written = writer.write_all(text.as_bytes());
                if written.and_then(|()| writer.flush()).is_err() {
                    is_left_out.fetch_add(count, Ordering::Relaxed);
                }
                text.clear();
                if let Some(None) = next {
                    let _ = end.try_send(());
                }
            }
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
        if self.lines.try_send(Some(line)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wait until what there is now is written, for a second at most.
    pub(crate) fn end(&self) {
        let end = Instant::now() + END;
        while let Err(TrySendError::Full(_)) = self.lines.try_send(None) {
            if Instant::now() >= end {
                return;
            }
            thread::sleep(STEP);
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}
