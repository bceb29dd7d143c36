//! Connecting, many at once.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use socknotify::owned::{Event, Held, Interest, Port};

use super::client::Client;
use super::drive::Plan;
use crate::system;

/// How many connections are begun before the first is there. A listener has room for so many only.
const AT_ONCE: usize = 100;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes so many connections, or fails with the first that cannot be made.
pub(crate) fn all(
    port: &Port<Client>,
    address: SocketAddr,
    count: usize,
    plan: &Plan,
) -> io::Result<Vec<Held<Client>>> {
    let mut worker = port.worker(AT_ONCE);
    let mut connected = Vec::with_capacity(count);
    let mut begun = 0;
    while connected.len() < count {
        while begun < count && begun - connected.len() < AT_ONCE {
            let client = Client::new(begin(address)?.into(), plan);
            worker.arm(port.adopt(client)?, Interest::OUT.within(PATIENCE));
            begun += 1;
        }
        worker.process(None)?;
        while let Some(event) = worker.take() {
            match event {
                Event::Ready(client, _) => match client.stream.take_error()? {
                    None => connected.push(client),
                    Some(error) => return Err(error),
                },
                Event::Refused(_, error) => return Err(error.into()),
                _ => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
    Ok(connected)
}

fn begin(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM;
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(system::CONNECTING) => Err(error),
        _ => Ok(socket),
    }
}
