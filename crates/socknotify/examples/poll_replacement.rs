//! A completion port in place of `poll`: one thread, ten connections.
//!
//! What it shows:
//!
//! - A registration without ONESHOT is made once and stays enabled.
//! - With LEVEL, a socket that is not drained is notified again, so one receive is enough each time.
//! - HANGUP says that the peer has disconnected, not that everything it sent was read. The end of the stream
//!   is a receive of 0 bytes.
//! - A connection is closed when the last notification of its registration, REMOVE, was dequeued.
//!
//! Run it with `cargo run -p socknotify --example poll_replacement`.
//!
//! ```toml
//! [dependencies]
//! socknotify = "0.1"
//! ```

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use socknotify::{CompletionPort, Entry, EventFilter, Events, Registration, Trigger};

const CLIENTS: usize = 10;
const SENDS: usize = 10;
const MESSAGE: [u8; 4] = *b"ping";

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(move || run_client(address)))
            .collect();
        let received = serve(listener)?;
        for client in clients {
            client.join().expect("a client does not panic")?;
        }
        println!("{CLIENTS} clients sent {received} bytes and hung up");
        assert_eq!(received, CLIENTS * SENDS * MESSAGE.len());
        Ok(())
    })
}

fn serve(listener: TcpListener) -> io::Result<usize> {
    let port = CompletionPort::new()?;

    // The completion key says whose a notification is. Here it is the key of a map.
    let mut connections: HashMap<usize, TcpStream> = HashMap::new();
    for key in 0..CLIENTS {
        let (connection, _) = listener.accept()?;
        connection.set_nonblocking(true)?;
        let filter = EventFilter::IN | EventFilter::HANGUP;
        // The first `?` is for the call, the second one for the entry.
        port.register(Registration::enable(
            &connection,
            key,
            filter,
            Trigger::LEVEL,
        ))?;
        connections.insert(key, connection);
    }

    let mut received = 0;
    let mut entries = [Entry::default(); 4];
    while !connections.is_empty() {
        for entry in port.dequeue(&mut entries, None)? {
            let key = entry.completion_key;
            if entry.events().contains(Events::REMOVE) {
                println!("connection {key}: removed");
                connections.remove(&key); // and so closed
                continue;
            }
            println!("connection {key}: {:?}", entry.events());
            let mut connection = &connections[&key];
            match connection.read(&mut [0; 512]) {
                // The port will not mention the connection again until it says REMOVE.
                Ok(0) => port.register(Registration::remove(connection))?,
                Ok(length) => received += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(received)
}

fn run_client(server: SocketAddr) -> io::Result<()> {
    let mut connection = TcpStream::connect(server)?;
    for _ in 0..SENDS {
        connection.write_all(&MESSAGE)?;
    }
    Ok(()) // dropping the connection hangs up
}
