//! An edge-triggered server for datagrams.
//!
//! What it shows:
//!
//! - The socket is registered before it is bound, so that no datagram can have arrived already: EDGE
//!   reports conditions that begin to hold, not those that hold.
//! - After each notification the program receives until nothing is left. Otherwise the next edge may
//!   never come. This requires a non-blocking socket.
//! - A datagram socket has no HANGUP. A posted packet tells the thread to stop, through the same port.
//!
//! Run it with `cargo run -p socknotify --example edge_triggered_udp`.
//!
//! ```toml
//! [dependencies]
//! socket2 = "0.6"
//! socknotify = "0.1"
//! ```

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use socket2::{Domain, Socket, Type};
use socknotify::{CompletionPort, Entry, EventFilter, Events, Registration, Trigger};

const CLIENTS: usize = 10;
const SENDS: usize = 10;
const MESSAGE: [u8; 4] = *b"ping";

/// The completion key of the socket.
const DATAGRAMS: usize = 1;
/// The completion key of the packet that says that no more datagrams will come.
const CLIENTS_DONE: usize = 2;

fn main() -> io::Result<()> {
    let port = CompletionPort::new()?;

    // The standard library binds a socket as it makes it, which is too early here.
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    let trigger = Trigger::EDGE | Trigger::PERSISTENT;
    port.register(Registration::enable(
        &socket,
        DATAGRAMS,
        EventFilter::IN,
        trigger,
    ))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let socket = UdpSocket::from(socket);
    let address = socket.local_addr()?;

    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&port, socket));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(move || run_client(address)))
            .collect();
        for client in clients {
            client.join().expect("a client does not panic")?;
        }
        port.post(Entry::new(CLIENTS_DONE, 0, 0))?;
        let received = server.join().expect("the server does not panic")?;
        println!("{CLIENTS} clients sent {received} datagrams");
        assert_eq!(received, CLIENTS * SENDS);
        Ok(())
    })
}

fn serve(port: &CompletionPort, socket: UdpSocket) -> io::Result<usize> {
    let mut received = 0;
    loop {
        let entry = port.dequeue_one(None)?;
        if entry.completion_key == CLIENTS_DONE {
            port.register(Registration::remove(&socket))?;
        } else if entry.events().contains(Events::REMOVE) {
            println!("removed");
            return Ok(received);
        } else {
            let drained = drain(&socket)?;
            println!("{:?}: {drained} datagrams", entry.events());
            received += drained;
        }
    }
}

/// Receives and answers every datagram that is there.
fn drain(socket: &UdpSocket) -> io::Result<usize> {
    let mut count = 0;
    let mut buffer = [0; 512];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, client)) => {
                count += 1;
                socket.send_to(&buffer[..length], client)?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
            Err(error) => return Err(error),
        }
    }
}

/// Waits for each answer, so that no receive buffer overflows and drops a datagram.
fn run_client(server: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(server)?;
    for _ in 0..SENDS {
        socket.send(&MESSAGE)?;
        let mut answer = [0; MESSAGE.len()];
        socket.recv(&mut answer)?;
        assert_eq!(answer, MESSAGE);
    }
    Ok(())
}
