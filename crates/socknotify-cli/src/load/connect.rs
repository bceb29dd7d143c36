//! Connecting, many at once.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socknotify::owned::{Event, Held, Port};

use super::client::Client;
use super::drive::Plan;

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
            port.connect(address, PATIENCE, |stream| Client::new(stream, plan))?;
            begun += 1;
        }
        worker.process(None)?;
        while let Some(event) = worker.take() {
            match event {
                Event::Connected(client) => connected.push(client),
                Event::Unconnected(_, error) => return Err(error),
                Event::Refused(_, error) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(connected)
}
