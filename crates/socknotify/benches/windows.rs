//! One notification after the other on Windows, beside `mio` and `polling`, which ask the same driver.
//!
//! ```text
//! cargo bench -p socknotify --bench windows
//! ```
//!
//! Each turn one byte is sent to every socket; then all notifications are taken, each byte is read, and
//! each socket is armed again. What is told is the time of a turn for each socket, the best of many rounds,
//! in which the three take turns.

#[cfg(windows)]
fn main() -> std::io::Result<()> {
    windows::main()
}

#[cfg(not(windows))]
fn main() {}

#[cfg(windows)]
mod windows {
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use socknotify::{Backend, CompletionPort, Entry, EventFilter, Registration, Trigger};

    const ROUNDS: usize = 12;
    const ONCE: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

    /// One way to wait for many sockets.
    trait Way {
        /// Have all sockets armed, take all their notifications, and read each byte.
        fn turn(&mut self) -> io::Result<()>;
    }

    struct Socknotify {
        port: CompletionPort,
        sockets: Vec<TcpStream>,
        entries: Vec<Entry>,
        ready: Vec<usize>,
    }

    impl Way for Socknotify {
        fn turn(&mut self) -> io::Result<()> {
            let mut left = self.sockets.len();
            while left > 0 {
                let armed = self.ready.drain(..).map(|key| {
                    Registration::enable(&self.sockets[key], key, EventFilter::IN, ONCE)
                });
                let mut batch: Vec<_> = armed.collect();
                let found = self.port.process(&mut batch, &mut self.entries, None)?;
                for entry in found {
                    let key = entry.completion_key;
                    self.ready.push(key);
                    (&self.sockets[key]).read_exact(&mut [0])?;
                    left -= 1;
                }
            }
            Ok(())
        }
    }

    struct Polling {
        poller: polling::Poller,
        sockets: Vec<TcpStream>,
        events: polling::Events,
    }

    impl Way for Polling {
        fn turn(&mut self) -> io::Result<()> {
            let mut left = self.sockets.len();
            while left > 0 {
                self.events.clear();
                self.poller.wait(&mut self.events, None)?;
                for event in self.events.iter() {
                    let socket = &self.sockets[event.key];
                    (&mut &*socket).read_exact(&mut [0])?;
                    let again = polling::Event::readable(event.key);
                    self.poller.modify(socket, again)?;
                    left -= 1;
                }
            }
            Ok(())
        }
    }

    struct Mio {
        poll: mio::Poll,
        sockets: Vec<mio::net::TcpStream>,
        events: mio::Events,
    }

    impl Way for Mio {
        fn turn(&mut self) -> io::Result<()> {
            let mut left = self.sockets.len();
            while left > 0 {
                self.poll.poll(&mut self.events, None)?;
                for event in self.events.iter() {
                    let socket = &mut self.sockets[event.token().0];
                    // To read until there is nothing arms it again.
                    while let Ok(count) = socket.read(&mut [0]) {
                        left -= count;
                    }
                }
            }
            Ok(())
        }
    }

    fn connect(count: usize) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            let peer = TcpStream::connect(listener.local_addr()?)?;
            peer.set_nodelay(true)?;
            let (socket, _) = listener.accept()?;
            socket.set_nonblocking(true)?;
            pairs.push((socket, peer));
        }
        Ok(pairs.into_iter().unzip())
    }

    fn socknotify(sockets: Vec<TcpStream>) -> io::Result<Box<dyn Way>> {
        Ok(Box::new(Socknotify {
            port: CompletionPort::builder().backend(Backend::Afd).build()?,
            entries: vec![Entry::default(); sockets.len()],
            ready: (0..sockets.len()).collect(),
            sockets,
        }))
    }

    fn polling(sockets: Vec<TcpStream>) -> io::Result<Box<dyn Way>> {
        let poller = polling::Poller::new()?;
        for (key, socket) in sockets.iter().enumerate() {
            // SAFETY: the sockets are kept as long as the poller.
            unsafe { poller.add(socket, polling::Event::readable(key))? };
        }
        Ok(Box::new(Polling {
            poller,
            sockets,
            events: polling::Events::new(),
        }))
    }

    fn mio(sockets: Vec<TcpStream>) -> io::Result<Box<dyn Way>> {
        let poll = mio::Poll::new()?;
        let mut registered = Vec::new();
        for (key, socket) in sockets.into_iter().enumerate() {
            let mut socket = mio::net::TcpStream::from_std(socket);
            let registry = poll.registry();
            registry.register(&mut socket, mio::Token(key), mio::Interest::READABLE)?;
            registered.push(socket);
        }
        Ok(Box::new(Mio {
            poll,
            sockets: registered,
            events: mio::Events::with_capacity(1024),
        }))
    }

    pub(super) fn main() -> io::Result<()> {
        type Make = fn(Vec<TcpStream>) -> io::Result<Box<dyn Way>>;
        let ways: [(&str, Make); 3] = [
            ("socknotify", socknotify),
            ("polling", polling),
            ("mio", mio),
        ];
        for count in [1, 64] {
            let mut made = Vec::new();
            for (name, make) in ways {
                let (sockets, peers) = connect(count)?;
                made.push((name, make(sockets)?, peers, Duration::MAX));
            }
            let turns = 2000 / count + 20;
            for _ in 0..ROUNDS {
                for (_, way, peers, best) in &mut made {
                    let begin = Instant::now();
                    for _ in 0..turns {
                        for mut peer in &*peers {
                            peer.write_all(b"x")?;
                        }
                        way.turn()?;
                    }
                    *best = begin.elapsed().min(*best);
                }
            }
            for (name, _, _, best) in &made {
                let each = *best / (turns * count) as u32;
                println!("{count:3} ready, {name:10} {each:?} for each");
            }
        }
        Ok(())
    }
}
