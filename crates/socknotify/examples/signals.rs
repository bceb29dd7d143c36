//! Signals come out of the port, beside connections: an echo server that tells its figures, and ends in good order.
//!
//! What it shows:
//!
//! - The `signal-hook` crate writes to a socket when a signal comes. The port owns the other end, as a connection.
//! - SIGHUP prints the figures of each thread, which the threads count in shared memory.
//! - SIGTERM and SIGINT drain the port. Its threads end by themselves.
//!
//! Run it with `cargo run -p socknotify --example signals 127.0.0.1:7007`, talk to it with `nc 127.0.0.1 7007`,
//! and send it signals with `kill`.
//!
//! It is for Unix, which has these signals.
//!
//! ```toml
//! [dependencies]
//! signal-hook = "0.4"
//! socknotify = "0.1"
//! ```

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    unix::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("there are no signals here");
    std::process::exit(1);
}

#[cfg(unix)]
mod unix {
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use std::{env, thread};

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::low_level::pipe;
    use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source};

    const THREADS: usize = 4;
    /// How long connections may take to end.
    const GRACE: Duration = Duration::from_secs(10);

    /// How long a client may take to read what it was sent.
    const LINGER: Duration = Duration::from_secs(2);

    struct Client {
        stream: TcpStream,
        /// What it was too slow to read. Until it has that, nothing more is read from it.
        unsent: Vec<u8>,
    }

    enum Peer {
        Client(Client),
        /// A byte comes for each time that this signal does.
        Signal(UnixStream, i32),
    }

    impl Source for Peer {
        fn socket(&self) -> BorrowedSocket<'_> {
            match self {
                Peer::Client(client) => client.stream.socket(),
                Peer::Signal(stream, _) => stream.socket(),
            }
        }
    }

    /// The bytes that each thread has echoed.
    type Echoed = [AtomicUsize; THREADS];

    pub(super) fn main() -> io::Result<()> {
        let port = Port::<Peer>::new()?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            pipe::register(signal, theirs)?;
            port.arm(port.adopt(Peer::Signal(ours, signal))?, Interest::IN);
        }
        let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
        println!("listening on {}", listener.local_addr()?);
        port.listen(listener, Interest::IN, |stream, _| {
            let unsent = Vec::new();
            Peer::Client(Client { stream, unsent })
        })?;
        let echoed = Echoed::default();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (port, echoed) = (&port, &echoed);
                scope.spawn(move || serve(port, echoed, number));
            }
        });
        println!("cut off: {}", port.close().len());
        Ok(())
    }

    fn serve(port: &Port<Peer>, echoed: &Echoed, number: usize) {
        let mut worker = port.worker(64);
        // Until the port has drained.
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                match event {
                    Event::Ready(mut peer, _) => match &mut *peer {
                        Peer::Client(client) => {
                            if let Ok(true) = echo(client, &echoed[number]) {
                                let interest = next(port, client);
                                worker.arm(peer, interest);
                            }
                        }
                        Peer::Signal(stream, signal) => {
                            // However often it came, to obey once is enough.
                            let _ = stream.read(&mut [0; 64]);
                            match *signal {
                                SIGHUP => print(echoed),
                                _ => port.drain(GRACE),
                            }
                            worker.arm(peer, Interest::IN);
                        }
                    },
                    // What a client has sent is still echoed.
                    Event::Draining(peer) => {
                        if let Peer::Client(client) = &*peer {
                            let interest = next(port, client);
                            worker.arm(peer, interest);
                        }
                    }
                    // It has sent nothing else.
                    Event::TimedOut(peer) => worker.linger(peer, LINGER),
                    // What is not armed again is closed.
                    _ => {}
                }
            }
        }
    }

    fn next(port: &Port<Peer>, client: &Client) -> Interest {
        match client.unsent.is_empty() {
            false => Interest::OUT,
            true if port.is_draining() => Interest::IN.within(Duration::ZERO),
            true => Interest::IN,
        }
    }

    fn print(echoed: &Echoed) {
        for (number, bytes) in echoed.iter().enumerate() {
            println!("thread {number}: {} bytes", bytes.load(Ordering::Relaxed));
        }
    }

    /// Answer what is there. False at the end of the stream.
    fn echo(client: &mut Client, echoed: &AtomicUsize) -> io::Result<bool> {
        if client.unsent.is_empty() {
            let mut buffer = [0; 1024];
            let Some(length) = unless_blocked(client.stream.read(&mut buffer))? else {
                return Ok(true);
            };
            // Before the answer: whoever has read that finds it counted.
            echoed.fetch_add(length, Ordering::Relaxed);
            client.unsent.extend(&buffer[..length]);
            if length == 0 {
                return Ok(false);
            }
        }
        if let Some(sent) = unless_blocked(client.stream.write(&client.unsent))? {
            client.unsent.drain(..sent);
        }
        Ok(true)
    }

    fn unless_blocked(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}
