//! Connecting, many at once.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Held, Id, Port};

use super::client::{Client, Requests};
use super::fates::{Fate, Fates};
use super::plan::Plan;
use crate::signals::Signals;

/// How many connections are begun before the first is there. A listener has room for so many only.
const AT_ONCE: usize = 100;

/// How long one may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How often to look whether a signal has come, and whether a listener has room again.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// An address to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Internet(SocketAddr),
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

impl Address {
    /// Begins to connect a client. If this fails, its requests come back, unless the port is closed.
    pub(crate) fn begin(
        &self,
        port: &Port<Client>,
        requests: Requests,
        plan: &Plan,
    ) -> Result<Id, (io::Error, Option<Requests>)> {
        let mut requests = Some(requests);
        let mut take = || requests.take().unwrap_or_default();
        let begun = match self {
            Address::Internet(address) => port.connect(*address, PATIENCE, |stream| {
                Client::new(stream, take(), plan)
            }),
            #[cfg(unix)]
            Address::Unix(path) => port.connect(&**path, PATIENCE, |stream| {
                Client::new(stream, take(), plan)
            }),
        };
        begun.map_err(|error| (error, requests))
    }
}

/// Whether the queue of a Unix listener is full: then it is tried again, after a [`TICK`].
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Makes the connections. Those that cannot be made are counted; if the first ones all fail, the rest
/// are not tried. A signal ends it early.
pub(crate) fn all(
    port: &Port<Client>,
    address: &Address,
    plan: &Plan,
    signals: &Signals,
) -> io::Result<(Vec<Held<Client>>, Fates)> {
    let count = plan.connections as usize;
    let mut worker = port.worker(AT_ONCE);
    let mut connected = Vec::with_capacity(count);
    let mut fates = Fates::default();
    let (mut begun, mut failed) = (0, 0);
    let mut full_since = None;
    while connected.len() + failed < count && !signals.have_come() {
        if failed >= AT_ONCE && connected.is_empty() {
            fates.unconnected.count += (count - begun) as u64;
            break;
        }
        let mut outcomes = Vec::new();
        while begun < count && begun - connected.len() - failed < AT_ONCE {
            match address.begin(port, Requests::default(), plan) {
                Ok(_) => full_since = None,
                Err((error, _))
                    if is_full(&error)
                        && full_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE =>
                {
                    break;
                }
                Err((error, _)) => outcomes.push(error),
            }
            begun += 1;
        }
        worker.process(Some(TICK))?;
        while let Some(event) = worker.take() {
            match event {
                Event::Connected(client) => connected.push(client),
                Event::Unconnected(_, error) => outcomes.push(error),
                Event::Refused(_, error) => outcomes.push(error.into()),
                _ => {}
            }
        }
        failed += outcomes.len();
        for error in outcomes {
            fates.count(&Fate::Unconnected(error), false);
        }
    }
    Ok((connected, fates))
}
