//! The server.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{env, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source, Worker};

const THREADS: usize = 4;
/// How long connections may take to end.
const GRACE: Duration = Duration::from_secs(10);

enum Peer {
    Client(TcpStream),
    /// A byte comes for each time that this signal does.
    Signal(UnixStream, i32),
}

impl Source for Peer {
    fn socket(&self) -> BorrowedSocket<'_> {
        match self {
            Peer::Client(stream) => stream.socket(),
            Peer::Signal(stream, _) => stream.socket(),
        }
    }
}

/// To each thread: tell your figures.
#[derive(Clone)]
struct Tell;

pub(super) fn main() -> io::Result<()> {
    let port = Port::<Peer, Tell>::new()?;
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        pipe::register(signal, theirs)?;
        port.arm(port.adopt(Peer::Signal(ours, signal))?, Interest::IN);
    }
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("listening on {}", listener.local_addr()?);
    port.listen(listener, Interest::IN, |stream, _| Peer::Client(stream))?;
    thread::scope(|scope| {
        for number in 0..THREADS {
            // Here, so that every thread is told of the first signal, however late it begins.
            let (port, worker) = (&port, port.worker(64));
            scope.spawn(move || serve(port, worker, number));
        }
    });
    println!("cut off: {}", port.close().len());
    Ok(())
}

fn serve(port: &Port<Peer, Tell>, mut worker: Worker<Peer, Tell>, number: usize) {
    let mut echoed = 0;
    // Until the port has drained.
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(mut peer, _) => match &mut *peer {
                    Peer::Client(stream) => {
                        if let Ok(length @ 1..) = echo(stream) {
                            echoed += length;
                            worker.arm(peer, Interest::IN);
                        }
                    }
                    Peer::Signal(stream, signal) => {
                        // However often it came, to obey once is enough.
                        let _ = stream.read(&mut [0; 64]);
                        match *signal {
                            SIGHUP => drop(port.send_to_all(Tell)),
                            _ => port.drain(GRACE),
                        }
                        worker.arm(peer, Interest::IN);
                    }
                },
                Event::Message(Tell) => println!("thread {number}: {echoed} bytes"),
                // What drains has nothing to finish here: it is dropped, and so closed.
                _ => {}
            }
        }
    }
}

/// Answer what is there, which is 0 bytes at the end of the stream.
fn echo(stream: &mut TcpStream) -> io::Result<usize> {
    let mut buffer = [0; 1024];
    let length = stream.read(&mut buffer)?;
    stream.write_all(&buffer[..length])?;
    Ok(length)
}
