//! Ours: the faithful layer, and the one that owns connections.

use std::io;
use std::os::unix::net::UnixStream;

use socknotify::owned::{Event, Port, Worker};
use socknotify::{CompletionPort, Entry, EventFilter, Registration, Trigger};

use super::{Kind, Pairs, Way, read_byte};

pub(crate) struct Socknotify<'a> {
    port: CompletionPort,
    trigger: Trigger,
    entries: Vec<Entry>,
    again: Vec<Registration<'a>>,
    pairs: &'a Pairs,
}

impl<'a> Socknotify<'a> {
    pub(crate) fn new(pairs: &'a Pairs, kind: Kind) -> io::Result<Self> {
        let trigger = match kind {
            Kind::OneShot => Trigger::ONESHOT | Trigger::LEVEL,
            Kind::Edge => Trigger::PERSISTENT | Trigger::EDGE,
            Kind::Level => Trigger::PERSISTENT | Trigger::LEVEL,
        };
        let port = CompletionPort::new()?;
        for (key, (socket, _)) in pairs.iter().enumerate() {
            let enable = Registration::enable(socket, key, EventFilter::IN, trigger);
            port.register(enable)??;
        }
        Ok(Socknotify {
            port,
            trigger,
            entries: vec![Entry::default(); pairs.len()],
            again: Vec::with_capacity(pairs.len()),
            pairs,
        })
    }
}

impl Way for Socknotify<'_> {
    fn turn(&mut self, _: &Pairs) -> io::Result<()> {
        let mut left = self.pairs.len();
        while left > 0 {
            let taken = self
                .port
                .process(&mut self.again, &mut self.entries, None)?;
            self.again.clear();
            left -= taken.len();
            for entry in taken {
                let key = entry.completion_key;
                let socket = &self.pairs[key].0;
                read_byte(socket)?;
                if self.trigger.contains(Trigger::ONESHOT) {
                    let enable = Registration::enable(socket, key, EventFilter::IN, self.trigger);
                    self.again.push(enable);
                }
            }
        }
        Ok(())
    }
}

/// It has duplicates of the sockets: what it owns is its own.
pub(crate) struct Owned {
    worker: Worker<UnixStream>,
    _port: Port<UnixStream>,
}

impl Owned {
    pub(crate) fn new(pairs: &Pairs) -> io::Result<Self> {
        let port = Port::new()?;
        let mut worker = port.worker(pairs.len());
        for (socket, _) in pairs {
            worker.arm(port.adopt(socket.try_clone()?)?, EventFilter::IN);
        }
        Ok(Owned {
            worker,
            _port: port,
        })
    }
}

impl Way for Owned {
    fn turn(&mut self, pairs: &Pairs) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            self.worker.process(None)?;
            while let Some(event) = self.worker.take() {
                let Event::Ready(connection, _) = event else {
                    continue;
                };
                left -= 1;
                read_byte(&connection)?;
                self.worker.arm(connection, EventFilter::IN);
            }
        }
        Ok(())
    }
}
