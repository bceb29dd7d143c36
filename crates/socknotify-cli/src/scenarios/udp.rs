//! Microsoft's second program: an edge-triggered server for datagrams.
//!
//! One socket, registered once and before it is bound, so that nothing can arrive unseen. Each notification says that
//! datagrams began to arrive; unless all of them are received, no further one need come. Datagram sockets have no HANGUP, so a
//! packet that is posted says when the clients are done.
//!
//! Datagrams can get lost, on loopback too when a receive buffer is full. Each one is therefore acknowledged, sent again when
//! that fails, and counted once.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use socket2::{Domain, Socket, Type};
use socknotify::{Entry, Error, EventFilter, Events, Registration, Trigger};

use super::clients;
use super::run::{Outcome, Run, SEND_LENGTH};

/// The completion key of the socket.
const DATAGRAMS: usize = 1;

/// The completion key of the packet that is posted when all clients are done.
const CLIENTS_DONE: usize = 2;

pub(crate) fn run(run: &Run) -> Outcome {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // To find out that it is drained, a receive must not block.
    socket.set_nonblocking(true)?;
    let trigger = Trigger::EDGE | Trigger::PERSISTENT;
    let enable = Registration::enable(&socket, DATAGRAMS, EventFilter::IN, trigger);
    run.port.register(enable)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let socket = UdpSocket::from(socket);
    let address = socket.local_addr()?;
    thread::scope(|scope| {
        scope.spawn(|| {
            clients::run_udp(run, address);
            run.attempt("post", || run.post(CLIENTS_DONE));
        });
        run.attempt("server", || serve(run, &socket));
        drop(socket);
    });
    Ok(())
}

/// Serves until the clients are done and the registration is removed.
fn serve(run: &Run, socket: &UdpSocket) -> Outcome {
    // The number that comes next from each client.
    let mut next = HashMap::new();
    let mut entries = [Entry::default(); 8];
    let mut handle = |entry: &Entry| -> Outcome {
        if entry.completion_key == CLIENTS_DONE {
            return Ok(run.port.register(Registration::remove(socket))?);
        }
        run.tally.notifications.add(1);
        if entry.events().contains(Events::HANGUP) {
            return Err("a datagram socket was hung up".into());
        }
        if entry.events().contains(Events::REMOVE) {
            run.tally.removals.add(1);
            return Ok(());
        }
        drain(run, socket, &mut next)
    };
    while run.tally.removals.get() == 0 {
        let entries = match run.port.dequeue(&mut entries, None) {
            Err(Error::Closed) if run.has_given_up() => return Ok(()),
            dequeued => dequeued?,
        };
        run.running(|| entries.iter().try_for_each(&mut handle))?;
    }
    Ok(())
}

/// Receives every datagram that is there. One that comes for the first time is counted, and each is acknowledged.
fn drain(run: &Run, socket: &UdpSocket, next: &mut HashMap<SocketAddr, u32>) -> Outcome {
    let mut datagram = [0; SEND_LENGTH + 1];
    loop {
        let client = match socket.recv_from(&mut datagram) {
            Ok((SEND_LENGTH, client)) => client,
            Ok((length, client)) => {
                run.note(format_args!("a datagram of {length} bytes from {client}"));
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let [number @ .., _] = datagram;
        let next = next.entry(client).or_insert_with(|| {
            run.tally.connections.add(1);
            0
        });
        if u32::from_le_bytes(number) == *next {
            *next += 1;
            run.tally.bytes.add(SEND_LENGTH as u64);
        }
        match socket.send_to(&next.to_le_bytes(), client) {
            // No room to send: as good as lost, and the client will ask again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => drop(sent?),
        }
    }
}
