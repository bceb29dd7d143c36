//! The clients. A few threads drive all of them, each thread a group with blocking sockets.
//!
//! All clients are connected before the first one sends, so that the server has them all at once.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::run::{Outcome, Run, SEND_LENGTH};

/// The most threads that drive clients.
const GROUPS: u32 = 8;

/// How many datagrams of a group may be without an acknowledgement.
///
/// All groups together stay below what the receive buffer of the server holds by default, some 270 small datagrams, so that
/// hardly any is lost.
const WINDOW: usize = 16;

/// When to send a datagram again. On loopback an acknowledgement takes microseconds; this is for the rare case that one of the
/// two was dropped.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// Connects all clients to `server`, lets them send, and closes each in good order: it sends its end of stream and waits for
/// the server's.
///
/// A server that closed a connection with bytes still unread would reset it, and the wait would fail. So when this succeeds
/// nothing was lost.
pub(crate) fn run_tcp(run: &Run, server: SocketAddr) {
    let connect = || {
        let stream = TcpStream::connect(server)?;
        // Each send is to be a segment of its own, and at once.
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    in_groups(run, connect, |mut streams| {
        for number in 0..run.arguments.sends {
            for stream in &mut streams {
                stream.write_all(&number.to_le_bytes())?;
            }
        }
        for stream in &streams {
            stream.shutdown(Shutdown::Write)?;
        }
        for mut stream in streams {
            if stream.read_to_end(&mut Vec::new())? > 0 {
                return Err("the server sent something".into());
            }
        }
        Ok(())
    });
}

/// Lets all clients send datagrams to `server` until each one is acknowledged.
///
/// A datagram is the number of the send. Its acknowledgement is the number that the server expects next from this client.
pub(crate) fn run_udp(run: &Run, server: SocketAddr) {
    let connect = || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(REPEAT_AFTER))?;
        Ok(socket)
    };
    in_groups(run, connect, |sockets| {
        for number in 0..run.arguments.sends {
            for window in sockets.chunks(WINDOW) {
                for socket in window {
                    socket.send(&number.to_le_bytes())?;
                }
                for socket in window {
                    wait_for_acknowledgement(run, socket, number)?;
                }
            }
        }
        Ok(())
    });
}

fn wait_for_acknowledgement(run: &Run, socket: &UdpSocket, number: u32) -> io::Result<()> {
    let mut answer = [0; SEND_LENGTH];
    loop {
        match socket.recv(&mut answer) {
            Ok(SEND_LENGTH) if u32::from_le_bytes(answer) == number + 1 => return Ok(()),
            // For an earlier datagram, which was sent again.
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !run.has_given_up() => {
                    socket.send(&number.to_le_bytes())?;
                    run.tally.repeats.add(1);
                }
                _ => return Err(error),
            },
        }
    }
}

/// Connects the clients and drives them in groups of nearly the same size, on a thread each.
///
/// The first group that fails ends the scenario, as its server would wait for ever.
fn in_groups<S>(
    run: &Run,
    connect: impl Fn() -> io::Result<S> + Sync,
    drive: impl Fn(Vec<S>) -> Outcome + Sync,
) {
    let clients = run.arguments.clients;
    let groups = clients.min(GROUPS);
    let all_connected = Barrier::new(groups as usize);
    let work = &|group| {
        let count = clients / groups + u32::from(group < clients % groups);
        let connected: io::Result<Vec<S>> = (0..count).map(|_| connect()).collect();
        all_connected.wait();
        drive(connected?)
    };
    thread::scope(|scope| {
        for group in 0..groups {
            scope.spawn(move || run.attempt("client", || work(group)));
        }
    });
}
