//! The access log: a thread writes it, so that no request waits for it.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::{io, thread};

use crate::response::caught;
use crate::server::Counts;

/// While so many bytes wait to be written, or more, lines are left out: how long they are is for clients to say.
const WAITING: usize = 1 << 20;

/// Lines for the log. When it is dropped, the thread writes what waits, and ends.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Sender<String>,
    counts: Arc<Counts>,
}

impl Log {
    /// Start the thread that writes. The lines that it does not keep up with are counted. The receiver is disconnected when the thread
    /// has written all.
    pub(crate) fn start(
        mut writer: impl Write + Send + 'static,
        counts: Arc<Counts>,
    ) -> io::Result<(Self, Receiver<()>)> {
        let (lines, waiting) = channel::<String>();
        let (ended, written) = channel();
        let shared = Arc::clone(&counts);
        let write = move || {
            for mut text in &waiting {
                // What waits goes out in one call.
                text.extend(waiting.try_iter());
                let write = || {
                    writer.write_all(text.as_bytes())?;
                    writer.flush()
                };
                if !matches!(caught(write), Some(Ok(()))) {
                    let lines = text.lines().count() as u64;
                    shared.left_out.fetch_add(lines, Relaxed);
                }
                shared.waiting.fetch_sub(text.len(), Relaxed);
            }
            // It may have something to write yet.
            drop((writer, ended));
        };
        let thread = thread::Builder::new().name("http-log".into());
        thread.spawn(write)?;
        Ok((Log { lines, counts }, written))
    }

    pub(crate) fn add(&self, line: String) {
        let (counts, length) = (&self.counts, line.len());
        let is_full = counts.waiting.fetch_add(length, Relaxed) >= WAITING;
        if is_full || self.lines.send(line).is_err() {
            counts.waiting.fetch_sub(length, Relaxed);
            counts.left_out.fetch_add(1, Relaxed);
        }
    }
}
