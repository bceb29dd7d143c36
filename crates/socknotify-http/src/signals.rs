//! What ends servers when the process is told to end: one thread, or handler of the system, for all of them.

use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::server::{Handle, lock};

/// Those that signals end, within this time.
type Servers = Vec<(Weak<Handle>, Duration)>;

/// `None` until signals are handled.
static SERVERS: Mutex<Option<Servers>> = Mutex::new(None);

/// End this one, if it is there, when the process is told to end.
pub(crate) fn add(server: &Arc<Handle>, within: Duration) -> io::Result<()> {
    let mut servers = lock(&SERVERS);
    if servers.is_none() {
        handle_signals()?;
    }
    let servers = servers.get_or_insert_default();
    servers.retain(|it| it.0.strong_count() > 0);
    servers.push((Arc::downgrade(server), within));
    Ok(())
}

/// End those that are there. True if there is none.
fn end_all() -> bool {
    let mut servers = lock(&SERVERS);
    let servers = servers.get_or_insert_default();
    servers.retain(|it| it.0.upgrade().map(|server| server.drain(it.1)).is_some());
    servers.is_empty()
}

#[cfg(unix)]
fn handle_signals() -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever().filter(|_| end_all()) {
            let _ = emulate_default_handler(signal);
        }
    };
    let thread = std::thread::Builder::new().name("http-signals".into());
    thread.spawn(wait).map(drop)
}

#[cfg(windows)]
fn handle_signals() -> io::Result<()> {
    /// How a process ends that does not handle it.
    const STATUS_CONTROL_C_EXIT: i32 = 0xC000_013A_u32 as i32;

    let handler = || {
        if end_all() {
            std::process::exit(STATUS_CONTROL_C_EXIT);
        }
    };
    ctrlc::try_set_handler(handler).map_err(io::Error::other)
}
