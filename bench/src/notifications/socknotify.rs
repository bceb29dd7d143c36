//! Ours: the port with keys, and the one that owns connections.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socknotify::owned::{Event, Interest, Port, Worker};
use socknotify::{CompletionPort, Entry, EventFilter, Registration, Trigger};

use super::{Kind, Way, read_byte};

pub(super) struct Socknotify<'a> {
    port: CompletionPort,
    trigger: Trigger,
    entries: Vec<Entry>,
    batch: Vec<Registration<'a>>,
}

impl Socknotify<'_> {
    pub(super) fn new(kind: Kind, batch: usize) -> io::Result<Self> {
        Ok(Socknotify {
            port: CompletionPort::builder().build()?,
            trigger: match kind {
                Kind::OneShot => Trigger::ONESHOT | Trigger::LEVEL,
                Kind::Edge => Trigger::PERSISTENT | Trigger::EDGE,
                Kind::Level => Trigger::PERSISTENT | Trigger::LEVEL,
            },
            entries: vec![Entry::default(); batch],
            batch: Vec::with_capacity(batch),
        })
    }

    /// Only register; the call has no room for notifications.
    fn submit(&mut self) -> io::Result<()> {
        self.port
            .process(&mut self.batch, &mut [], Some(Duration::ZERO))?;
        for registration in self.batch.drain(..) {
            registration.result()?;
        }
        Ok(())
    }
}

impl<'a> Way<'a> for Socknotify<'a> {
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut key = 0;
        for sockets in sockets.chunks(self.entries.len()) {
            for socket in sockets {
                let enable = Registration::enable(socket, key, EventFilter::IN, self.trigger);
                self.batch.push(enable);
                key += 1;
            }
            self.submit()?;
        }
        Ok(())
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        self.submit()
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            let taken = self
                .port
                .process(&mut self.batch, &mut self.entries, None)?;
            self.batch.clear();
            left -= taken.len();
            for entry in taken {
                let key = entry.completion_key;
                let socket = &sockets[key];
                read_byte(socket)?;
                if self.trigger.contains(Trigger::ONESHOT) {
                    let enable = Registration::enable(socket, key, EventFilter::IN, self.trigger);
                    self.batch.push(enable);
                }
            }
        }
        Ok(())
    }
}

/// It owns references to the sockets, with which it does the same as with sockets.
pub(super) struct Owned<'a> {
    worker: Worker<&'a UnixStream>,
    port: Port<&'a UnixStream>,
    room: usize,
    /// The port learns from reads that nothing is left.
    notes_reads: bool,
}

impl<'a> Owned<'a> {
    pub(super) fn new(notes_reads: bool, batch: usize) -> io::Result<Self> {
        let port = CompletionPort::builder().build()?;
        let port = Port::from(port);
        Ok(Owned {
            worker: port.worker(batch),
            port,
            room: batch,
            notes_reads,
        })
    }

    /// Arm what was handed back. What is ready by then stays in the worker.
    fn submit(&mut self) -> io::Result<()> {
        self.worker.process(Some(Duration::ZERO))?;
        Ok(())
    }
}

impl<'a> Way<'a> for Owned<'a> {
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        for sockets in sockets.chunks(self.room) {
            for socket in sockets {
                let held = self.port.adopt(socket)?;
                self.worker.arm(held, Interest::IN);
            }
            self.submit()?;
        }
        Ok(())
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        self.submit()
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let mut left = sockets.len();
        while left > 0 {
            self.worker.process(None)?;
            while let Some(event) = self.worker.take() {
                let Event::Ready(mut held, _) = event else {
                    continue;
                };
                left -= 1;
                let (stream, readiness) = held.split();
                match self.notes_reads {
                    true => read_byte(readiness.io(*stream))?,
                    false => read_byte(*stream)?,
                }
                self.worker.arm(held, Interest::IN);
            }
        }
        Ok(())
    }
}
