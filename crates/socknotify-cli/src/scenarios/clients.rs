//! The clients. A few threads drive all of them, each thread a group with blocking sockets.
//!
//! All clients are connected before the first one sends, so that the server has them all at once.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::plan::SEND_LENGTH;
use super::problem::{Context, Problem};
use super::run::{Run, outcome_of};

/// The most threads that drive clients.
const GROUPS: u32 = 8;

/// How many datagrams of a group may be without an acknowledgement.
///
/// All groups together stay below what the receive buffer of the server holds by default, some 270
/// small datagrams, so that hardly any is lost.
const WINDOW: usize = 16;

/// When to send a datagram again. On loopback an acknowledgement takes microseconds; this is for the
/// rare case that one of the two was dropped.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// Connects all clients to `server`, lets them send, and closes each in good order: it sends its end
/// of stream and waits for the server's.
///
/// A server that closed a connection with bytes still unread would reset it, and the wait would
/// fail. So when this succeeds nothing was lost.
pub(crate) fn run_tcp(run: &Run, server: SocketAddr) -> Result<(), Problem> {
    in_groups(run, |count, all_connected| {
        let connected: Result<Vec<TcpStream>, Problem> =
            (0..count).map(|_| connect_stream(run, server)).collect();
        all_connected.wait();
        let mut streams = connected?;
        for number in 0..run.plan.sends {
            for stream in &mut streams {
                stream.write_all(&payload(number)).context("client: send")?;
            }
        }
        for stream in &streams {
            stream
                .shutdown(Shutdown::Write)
                .context("client: shut down")?;
        }
        streams.into_iter().try_for_each(wait_for_end)
    })
}

fn connect_stream(run: &Run, server: SocketAddr) -> Result<TcpStream, Problem> {
    let stream = TcpStream::connect(server)
        .map_err(|error| Problem::no_socket("client: connect", &error, &run.plan))?;
    // Each send is to be a segment of its own, and at once.
    stream.set_nodelay(true).context("client: TCP_NODELAY")?;
    Ok(stream)
}

fn wait_for_end(mut stream: TcpStream) -> Result<(), Problem> {
    let length = stream
        .read_to_end(&mut Vec::new())
        .context("client: wait for the server to close")?;
    match length {
        0 => Ok(()),
        _ => Err(Problem::new("client: the server sent something")),
    }
}

/// Lets all clients send datagrams to `server` until each one is acknowledged.
///
/// A datagram is the number of the send. Its acknowledgement is the number that the server expects
/// next from this client.
pub(crate) fn run_udp(run: &Run, server: SocketAddr) -> Result<(), Problem> {
    in_groups(run, |count, all_connected| {
        let connected: Result<Vec<UdpSocket>, Problem> =
            (0..count).map(|_| connect_datagrams(run, server)).collect();
        all_connected.wait();
        let sockets = connected?;
        for number in 0..run.plan.sends {
            for window in sockets.chunks(WINDOW) {
                for socket in window {
                    socket.send(&payload(number)).context("client: send")?;
                }
                for socket in window {
                    wait_for_acknowledgement(run, socket, number)?;
                }
            }
        }
        Ok(())
    })
}

fn connect_datagrams(run: &Run, server: SocketAddr) -> Result<UdpSocket, Problem> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| Problem::no_socket("client: bind", &error, &run.plan))?;
    socket.connect(server).context("client: connect")?;
    socket
        .set_read_timeout(Some(REPEAT_AFTER))
        .context("client: SO_RCVTIMEO")?;
    Ok(socket)
}

fn wait_for_acknowledgement(run: &Run, socket: &UdpSocket, number: u32) -> Result<(), Problem> {
    let mut answer = [0; SEND_LENGTH];
    loop {
        match socket.recv(&mut answer) {
            Ok(SEND_LENGTH) if u32::from_le_bytes(answer) == number + 1 => return Ok(()),
            // For an earlier datagram, which was sent again.
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !run.has_given_up() => {
                    socket
                        .send(&payload(number))
                        .context("client: send again")?;
                    run.tally.repeats.add(1);
                }
                _ => return Err(error).context("client: wait for an acknowledgement"),
            },
        }
    }
}

/// What a client sends for the `number`-th time.
fn payload(number: u32) -> [u8; SEND_LENGTH] {
    number.to_le_bytes()
}

/// Runs `drive` for each group of clients, on a thread each, with the number of clients in the group
/// and a barrier that all groups must pass.
///
/// The first group that fails ends the scenario, as its server would wait for ever.
fn in_groups<F>(run: &Run, drive: F) -> Result<(), Problem>
where
    F: Fn(u32, &Barrier) -> Result<(), Problem> + Sync,
{
    let groups = group_sizes(run.plan.clients);
    let all_connected = Barrier::new(groups.len());
    let drive = |count| drive(count, &all_connected).inspect_err(|problem| run.give_up(problem));
    thread::scope(|scope| {
        let threads: Vec<_> = groups
            .iter()
            .map(|&count| scope.spawn(move || drive(count)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| outcome_of(thread.join()))
    })
}

/// Splits the clients into groups of nearly the same size, none of them empty.
fn group_sizes(clients: u32) -> Vec<u32> {
    let groups = clients.min(GROUPS);
    (0..groups)
        .map(|group| clients / groups + u32::from(group < clients % groups))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_all_clients_and_none_is_empty() {
        for clients in [1, 2, 7, 8, 9, 100, 10_001] {
            let groups = group_sizes(clients);
            assert_eq!(groups.iter().sum::<u32>(), clients);
            assert!(groups.iter().all(|&count| count > 0));
            assert!(groups.len() <= GROUPS as usize);
        }
    }
}
