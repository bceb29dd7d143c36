//! A file on its way from the disk to a client.
//!
//! A file of at most [`CHUNK`] is an operation of the port, whose buffer owns the connection that waits for it, so both come
//! back in one event. A larger one the kernel sends itself (`sendfile`), at most 1 MiB before others have their turn. A helper
//! thread opens it, unless the kernel has everything in memory (`RESOLVE_CACHED`). Neither is an operation of the port:
//! opening needs rules of its own for what a path may reach, and a ring would `splice` through a pipe.

use std::io;
use std::ops::Range;

use socknotify::owned::{Buffer, FileOperation, PortFile};

use super::http::Answer;
use super::outgoing::send_some;
use crate::stream::{Stream, is_for_later};
use crate::system;

/// How much of a file is in memory for one client.
const CHUNK: u64 = 128 * 1024;

/// How much the system sends at once, where it sends the file itself. Then others have their turn.
const DIRECT: u64 = 1024 * 1024;

/// The system sends a file that is larger than a chunk, where it can: a thread that waits for the disk then lends its
/// place. Otherwise reads and sends follow each other: what was read is sent before more is read.
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
    /// The system has not refused to send the file itself.
    is_direct: bool,
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
        let length = body.end - body.start;
        let is_direct = length > CHUNK;
        let (room, unsent) = match is_direct {
            true => (0, 0..head.len()),
            false => (head.len(), 0..0),
        };
        let mut chunk = head;
        if !is_direct {
            chunk.resize(room + length as usize, 0);
        }
        Delivery {
            file,
            rest: body,
            chunk,
            room,
            unsent,
            is_direct,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        match (self.unsent.is_empty(), self.rest.is_empty()) {
            (false, _) => Stage::Send,
            (true, true) => Stage::Over,
            (true, false) if self.is_direct => Stage::Send,
            (true, false) => Stage::Read,
        }
    }

    /// The chunk, and what makes a read into it.
    pub(crate) fn read(&mut self) -> (Vec<u8>, impl FnOnce(Buffer) -> FileOperation + use<>) {
        let mut chunk = std::mem::take(&mut self.chunk);
        if self.room == 0 {
            chunk.resize(CHUNK as usize, 0);
        }
        let space = (chunk.len() - self.room) as u64;
        let count = space.min(self.rest.end - self.rest.start) as usize;
        let (range, offset) = (self.room..self.room + count, self.rest.start);
        let file = self.file.clone();
        let operation = move |buffer| FileOperation::read_at(&file, buffer, offset).range(range);
        (chunk, operation)
    }

    /// Reads into the chunk at once.
    pub(crate) fn read_here(&self, chunk: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
        let end = chunk.len().min(self.room.saturating_add(left));
        let room = &mut chunk[self.room..end];
        system::read_at(&self.file, room, self.rest.start)
            .unwrap_or_else(|| Err(io::ErrorKind::Unsupported.into()))
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

    /// Sends what was read, or what the system sends itself, as far as it fits. How many bytes that is.
    ///
    /// # Errors
    ///
    /// The stream's; `UnexpectedEof` if the file has become shorter than the length that was sent to the client.
    pub(crate) fn send(&mut self, mut stream: &Stream) -> io::Result<usize> {
        let mut sent = 0;
        if !self.unsent.is_empty() {
            sent = send_some(&mut stream, &self.chunk[self.unsent.clone()])?;
            self.unsent.start += sent;
        }
        if self.unsent.is_empty() && self.is_direct && !self.rest.is_empty() {
            sent += self.send_directly(stream)?;
        }
        Ok(sent)
    }

    fn send_directly(&mut self, stream: &Stream) -> io::Result<usize> {
        let count = DIRECT.min(self.rest.end - self.rest.start) as usize;
        match stream.send_file(&self.file, self.rest.start, count) {
            None => {
                self.is_direct = false;
                Ok(0)
            }
            Some(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(Err(error)) if is_for_later(&error) => Ok(0),
            Some(sent) => {
                let sent = sent?;
                self.rest.start += sent as u64;
                Ok(sent)
            }
        }
    }
}
