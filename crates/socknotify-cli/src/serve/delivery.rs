//! A file on its way from the disk to a client.

use std::io::{self, Write};
use std::ops::Range;

use socknotify::owned::{Buffer, FileOperation, PortFile};

use super::http::Answer;
use super::outgoing::send_some;

/// How much of a file is in memory for one client.
const CHUNK: u64 = 128 * 1024;

/// Reads and sends follow each other: what was read is sent before more is read.
#[derive(Debug)]
pub(crate) struct Delivery {
    file: PortFile,
    /// What was not read yet.
    rest: Range<u64>,
    /// Not here while the port reads into it.
    chunk: Vec<u8>,
    /// Where in the chunk the next bytes of the file are to be: at first, behind the head of the answer.
    room: usize,
    unsent: Range<usize>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Read,
    Send,
    Over,
}

impl Delivery {
    /// The head of the answer is sent with the first bytes of the file.
    pub(crate) fn new(file: PortFile, answer: Answer) -> Self {
        let Answer { head, body, .. } = answer;
        let room = head.len();
        let mut chunk = head;
        let count = CHUNK.min(body.end - body.start) as usize;
        chunk.resize(room + count, 0);
        Delivery {
            file,
            rest: body,
            chunk,
            room,
            unsent: 0..0,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match (self.unsent.is_empty(), self.rest.is_empty()) {
            (false, _) => Stage::Send,
            (true, false) => Stage::Read,
            (true, true) => Stage::Over,
        }
    }

    /// The chunk, and what makes a read into it.
    pub(crate) fn read(&mut self) -> (Vec<u8>, impl FnOnce(Buffer) -> FileOperation + use<>) {
        let chunk = std::mem::take(&mut self.chunk);
        let space = (chunk.len() - self.room) as u64;
        let count = space.min(self.rest.end - self.rest.start) as usize;
        let (range, offset) = (self.room..self.room + count, self.rest.start);
        let file = self.file.clone();
        let operation = move |buffer| FileOperation::read_at(&file, buffer, offset).range(range);
        (chunk, operation)
    }

    /// The read is over.
    ///
    /// # Errors
    ///
    /// It failed, or the file has become shorter than the length that was sent to the client.
    pub(crate) fn have_read(&mut self, chunk: Vec<u8>, count: io::Result<usize>) -> io::Result<()> {
        self.chunk = chunk;
        let count = count?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unsent = 0..self.room + count;
        self.rest.start += count as u64;
        self.room = 0;
        Ok(())
    }

    /// Sends what was read, as far as it fits. How many bytes that is.
    pub(crate) fn send(&mut self, mut stream: impl Write) -> io::Result<usize> {
        if self.unsent.is_empty() {
            return Ok(0);
        }
        let sent = send_some(&mut stream, &self.chunk[self.unsent.clone()])?;
        self.unsent.start += sent;
        Ok(sent)
    }
}
