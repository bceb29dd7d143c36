//! Connecting, many at once.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Held, Id, Port};

use super::client::{Again, Client};
use super::fates::{Fate, Fates};
use super::plan::Plan;
use crate::signals::Signals;

/// How many connections are begun before the first is there. A listener has room for so many only.
const AT_ONCE: usize = 100;

/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often to look whether a signal has come, and whether a listener has room again.
const TICK: Duration = Duration::from_millis(20);

/// An address to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Internet(SocketAddr),
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

impl Address {
    /// Begins to connect a client whose connection the server has closed.
    pub(crate) fn begin_again(
        &self,
        port: &Port<Client>,
        again: Again,
        plan: &Plan,
    ) -> io::Result<Id> {
        match self {
            Address::Internet(address) => port.connect(*address, PATIENCE, |stream| {
                Client::again(stream, again, plan)
            }),
            #[cfg(unix)]
            Address::Unix(path) => port.connect(&**path, PATIENCE, |stream| {
                Client::again(stream, again, plan)
            }),
        }
    }

    fn begin(&self, port: &Port<Client>, plan: &Plan) -> io::Result<Id> {
        match self {
            Address::Internet(address) => {
                port.connect(*address, PATIENCE, |stream| Client::new(stream, plan))
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                port.connect(&**path, PATIENCE, |stream| Client::new(stream, plan))
            }
        }
    }
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
            match address.begin(port, plan) {
                Ok(_) => full_since = None,
                // A Unix listener's queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let since = full_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < PATIENCE {
                        break;
                    }
                    outcomes.push(error);
                }
                Err(error) => outcomes.push(error),
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
