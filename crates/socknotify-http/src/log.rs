//! The access log: a thread writes it, so that no request waits for it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};
use std::{io, iter, thread};

/// So many lines may wait to be written.
const WAITING: usize = 8192;

/// How long the end of a server waits for the log.
const END: Duration = Duration::from_secs(1);

/// How long it waits for room among the lines before it looks again.
const STEP: Duration = Duration::from_millis(10);

/// What the thread that writes is told.
enum Told {
    Line(String),
    /// Say when the lines before this are written.
    End(Sender<()>),
}

/// Lines for the log.
#[derive(Debug)]
pub(crate) struct Log {
    told: SyncSender<Told>,
    left_out: Arc<AtomicU64>,
}

impl Log {
    /// Start the thread that writes. `left_out` counts the lines that it does not keep up with.
    pub(crate) fn start(
        mut writer: impl Write + Send + 'static,
        left_out: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (told, waiting) = sync_channel(WAITING);
        let failed = Arc::clone(&left_out);
        let write = move || {
            for first in &waiting {
                let (mut text, mut end) = (String::new(), None);
                // What waits goes out in one call.
                for next in iter::once(first).chain(waiting.try_iter()) {
                    match next {
                        Told::Line(line) => text.push_str(&line),
                        Told::End(tell) => end = Some(tell),
                    }
                }
                let written = writer.write_all(text.as_bytes());
                if written.and_then(|()| writer.flush()).is_err() {
                    failed.fetch_add(text.lines().count() as u64, Ordering::Relaxed);
                }
                if let Some(end) = end {
                    let _ = end.send(());
                }
            }
        };
        let thread = thread::Builder::new().name("http-log".into());
        thread.spawn(write)?;
        Ok(Log { told, left_out })
    }

    pub(crate) fn add(&self, line: String) {
        if self.told.try_send(Told::Line(line)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wait until what there is now is written, for a second at most.
    pub(crate) fn end(&self) {
        let end = Instant::now() + END;
        let (tell, written) = channel();
        while let Err(TrySendError::Full(_)) = self.told.try_send(Told::End(tell.clone())) {
            if Instant::now() >= end {
                return;
            }
            thread::sleep(STEP);
        }
        let _ = written.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}
