//! A port inside tokio's loop: tokio accepts, the port serves, on one thread.
//!
//! What it shows:
//!
//! - A port can be watched itself. It is readable when there is something to dequeue.
//! - Nobody waits in it then: `process` is called with a timeout of zero, until nothing is there. After each call the rest of
//!   tokio gets its turn.
//! - Tokio has the signals, too. When the port has drained, it is closed, which its descriptor also reports.
//!
//! Run it with `cargo run -p socknotify-examples --bin tokio 127.0.0.1:7007`, and talk to it with
//! `nc 127.0.0.1 7007`. It ends at SIGTERM and Ctrl-C.
//!
//! It is for Unix, where a port has a descriptor to watch.
//!
//! ```toml
//! [dependencies]
//! socknotify = "0.1"
//! tokio = { version = "1", features = ["rt", "net", "macros", "signal", "time"] }
//! ```

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    unix::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("a port cannot be watched here");
    std::process::exit(1);
}

#[cfg(unix)]
mod unix {
    use std::env;
    use std::io::{self, ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    use socknotify::Error;
    use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source, Worker};
    use tokio::io::unix::AsyncFd;
    use tokio::net::TcpListener;
    use tokio::signal::unix::{Signal, SignalKind, signal};

    const AT_ONCE: Interest = Interest::IN.within(Duration::ZERO);

    /// A client that gets back what it sends.
    struct Client {
        stream: TcpStream,
        /// What was read and is not written yet. Until it is, no more is read.
        unwritten: Vec<u8>,
    }

    #[tokio::main(flavor = "current_thread")]
    pub(crate) async fn main() -> io::Result<()> {
        let address = env::args().nth(1).unwrap_or("127.0.0.1:0".into());
        let listener = TcpListener::bind(address).await?;

        let port = Arc::new(Port::new()?);
        let mut worker = port.worker(64);
        // Its successor is unsafe, and asks for what a borrowed descriptor promises.
        #[allow(deprecated)]
        let watched = AsyncFd::with_interest(port.as_fd(), tokio::io::Interest::READABLE)?;
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        // Only now: a signal that comes sooner would end it at once.
        println!("listening on {}", listener.local_addr()?);
        tokio::spawn(accept(Arc::clone(&port), listener, terminate, interrupt));
        loop {
            let mut readable = watched.readable().await?;
            match worker.process(Some(Duration::ZERO)) {
                // Only now does tokio have to watch again.
                Ok(0) => readable.clear_ready(),
                Ok(_) => serve(&port, &mut worker),
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            // Clients that always have something leave a turn to tokio's other tasks, and to its sockets and signals.
            tokio::task::yield_now().await;
        }
    }

    /// Accepts until a signal comes. The port wakes the loop itself, when all connections have ended.
    async fn accept(
        port: Arc<Port<Client>>,
        listener: TcpListener,
        mut terminate: Signal,
        mut interrupt: Signal,
    ) {
        loop {
            let accepted = tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                accepted = listener.accept() => accepted.and_then(|(stream, _)| stream.into_std()),
            };
            match accepted {
                Ok(stream) => adopt(&port, stream),
                Err(error) => {
                    eprintln!("not accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // Who has connected already is served, and nobody else can connect.
        if let Ok(listener) = listener.into_std() {
            listener
                .incoming()
                .map_while(Result::ok)
                .for_each(|stream| adopt(&port, stream));
        }
        port.drain(Duration::from_secs(10));
    }

    /// Move a connection from tokio to the port.
    fn adopt(port: &Port<Client>, stream: TcpStream) {
        let client = stream.set_nonblocking(true).map(|()| Client {
            stream,
            unwritten: Vec::new(),
        });
        // At once: a worker would arm it with its next call, and nobody calls before something comes.
        match client.and_then(|client| Ok(port.adopt(client)?)) {
            Ok(client) => port.arm(client, Interest::IN),
            Err(error) => eprintln!("not adopted: {error}"),
        }
    }

    fn serve(port: &Port<Client>, worker: &mut Worker<Client>) {
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(mut client, _) => match client.echo() {
                    // The next `process` arms it.
                    Ok(Some(Interest::IN)) if port.is_draining() => worker.arm(client, AT_ONCE),
                    Ok(Some(interest)) => worker.arm(client, interest),
                    Ok(None) => {}
                    Err(error) => eprintln!("closed: {error}"),
                },
                // What it has sent is still echoed; if that is nothing, its time is over at once.
                Event::Draining(client) => worker.arm(client, AT_ONCE),
                Event::TimedOut(client) => worker.linger(client, Duration::from_secs(2)),
                Event::Refused(_, error) => eprintln!("closed: {error}"),
                _ => {}
            }
        }
    }

    impl Client {
        /// Write what was read, or read what is there. What to wait for next, if this was not the end.
        fn echo(&mut self) -> io::Result<Option<Interest>> {
            if self.unwritten.is_empty() {
                let mut chunk = [0; 4096];
                match self.stream.read(&mut chunk) {
                    Ok(0) => return Ok(None),
                    Ok(length) => self.unwritten.extend(&chunk[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            while !self.unwritten.is_empty() {
                match self.stream.write(&self.unwritten) {
                    Ok(length) => drop(self.unwritten.drain(..length)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        return Ok(Some(Interest::OUT));
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(Some(Interest::IN))
        }
    }

    impl Source for Client {
        fn socket(&self) -> BorrowedSocket<'_> {
            self.stream.socket()
        }
    }
}
