//! What ends servers when the process is told to end.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// How many servers there are that signals end.
static SERVERS: AtomicUsize = AtomicUsize::new(0);

/// One of them.
pub(crate) struct Ends;

impl Ends {
    pub(crate) fn new() -> Self {
        SERVERS.fetch_add(1, SeqCst);
        Ends
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        SERVERS.fetch_sub(1, SeqCst);
    }
}

/// Call this for each signal, as long as there is a server.
#[cfg(unix)]
pub(crate) fn on_signals(call: impl Fn() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            match SERVERS.load(SeqCst) {
                0 => drop(emulate_default_handler(signal)),
                _ => call(),
            }
        }
    };
    let thread = std::thread::Builder::new().name("http-signals".into());
    thread.spawn(wait).map(drop)
}

#[cfg(windows)]
pub(crate) fn on_signals(call: impl Fn() + Send + 'static) -> io::Result<()> {
    /// How a process ends that does not handle it.
    const STATUS_CONTROL_C_EXIT: i32 = 0xC000_013A_u32 as i32;

    let handler = move || match SERVERS.load(SeqCst) {
        0 => std::process::exit(STATUS_CONTROL_C_EXIT),
        _ => call(),
    };
    ctrlc::try_set_handler(handler).map_err(io::Error::other)
}
