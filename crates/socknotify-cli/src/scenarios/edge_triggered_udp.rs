//! Microsoft's second program: an edge-triggered server for datagrams.
//!
//! One socket, registered once and before it is bound, so that nothing can arrive unseen. Each
//! notification says that datagrams began to arrive; unless all of them are received, no further
//! one need come. Datagram sockets have no HANGUP, so a packet that is posted says when the clients
//! are done.
//!
//! Datagrams can get lost, on loopback too when a receive buffer is full. Each one is therefore
//! acknowledged, sent again when that fails, and counted once.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use socket2::{Domain, Socket, Type};
use socknotify::{Entry, Error, EventFilter, Events, Registration, Trigger};

use super::clients;
use super::plan::SEND_LENGTH;
use super::problem::{Context, Problem};
use super::run::{Run, outcome_of};

/// The completion key of the socket.
const DATAGRAMS: usize = 1;

/// The completion key of the packet that is posted when all clients are done.
const CLIENTS_DONE: usize = 2;

pub(crate) fn run(run: &Run) -> Result<(), Problem> {
    let socket = register_and_bind(run)?;
    let address = socket.local_addr().context("bind")?;
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            clients::run_udp(run, address)?;
            run.post(Entry::new(CLIENTS_DONE, 0, 0))
        });
        let served = Server::new(run, socket)
            .serve()
            .inspect_err(|problem| run.give_up(problem));
        outcome_of(clients.join()).and(served)
    })
}

fn register_and_bind(run: &Run) -> Result<UdpSocket, Problem> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).context("make a socket")?;
    // To find out that it is drained, a receive must not block.
    socket.set_nonblocking(true).context("make a socket")?;
    let trigger = Trigger::EDGE | Trigger::PERSISTENT;
    let registration = Registration::enable(&socket, DATAGRAMS, EventFilter::IN, trigger);
    run.register("register the socket", registration)?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any_port.into()).context("bind")?;
    Ok(socket.into())
}

struct Server<'run> {
    run: &'run Run,
    socket: UdpSocket,
    /// The number that comes next from each client.
    next: HashMap<SocketAddr, u32>,
}

impl<'run> Server<'run> {
    fn new(run: &'run Run, socket: UdpSocket) -> Self {
        Server {
            run,
            socket,
            next: HashMap::new(),
        }
    }

    /// Serves until the clients are done and the registration is removed.
    fn serve(&mut self) -> Result<(), Problem> {
        let mut entries = [Entry::default(); 8];
        loop {
            let entries = match self.run.port.dequeue(&mut entries, None) {
                Err(Error::Closed) if self.run.has_given_up() => return Ok(()),
                dequeued => dequeued.context("dequeue")?,
            };
            let _running = self.run.tally.running.enter();
            for entry in entries {
                if entry.completion_key == CLIENTS_DONE {
                    let registration = Registration::remove(&self.socket);
                    self.run.register("remove the socket", registration)?;
                    continue;
                }
                self.run.tally.notifications.add(1);
                if self.notified(entry.events())? {
                    return Ok(());
                }
            }
        }
    }

    /// True if this was the last notification.
    fn notified(&mut self, events: Events) -> Result<bool, Problem> {
        if events.contains(Events::HANGUP) {
            return Err(Problem::new("a datagram socket was hung up"));
        }
        if events.contains(Events::REMOVE) {
            self.run.tally.removals.add(1);
            return Ok(true);
        }
        while let Some((number, client)) = self.receive()? {
            let next = self.count(number, client);
            self.acknowledge(next, client)?;
        }
        Ok(false)
    }

    /// The next datagram, if there is one.
    fn receive(&self) -> Result<Option<(u32, SocketAddr)>, Problem> {
        let mut datagram = [0; SEND_LENGTH + 1];
        loop {
            match self.socket.recv_from(&mut datagram) {
                Ok((SEND_LENGTH, client)) => {
                    let [number @ .., _] = datagram;
                    return Ok(Some((u32::from_le_bytes(number), client)));
                }
                Ok((length, client)) => self.run.note(&Problem::new(format_args!(
                    "a datagram of {length} bytes from {client}"
                ))),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error).context("receive"),
                },
            }
        }
    }

    /// Counts the datagram unless it was here before. Returns the number that comes next.
    fn count(&mut self, number: u32, client: SocketAddr) -> u32 {
        let next = match self.next.entry(client) {
            Slot::Occupied(known) => known.into_mut(),
            Slot::Vacant(new) => {
                self.run.tally.connections.add(1);
                new.insert(0)
            }
        };
        if number == *next {
            *next += 1;
            self.run.tally.bytes.add(SEND_LENGTH as u64);
        }
        *next
    }

    fn acknowledge(&self, next: u32, client: SocketAddr) -> Result<(), Problem> {
        match self.socket.send_to(&next.to_le_bytes(), client) {
            // No room to send: as good as lost, and the client will ask again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            sent => sent.map(drop).context("acknowledge"),
        }
    }
}
