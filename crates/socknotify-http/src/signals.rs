//! What ends servers when the process is told to end.

use std::io;
use std::sync::{Arc, LazyLock};

/// Each server that signals end has one more of it.
pub(crate) static SERVERS: LazyLock<Arc<()>> = LazyLock::new(Arc::default);

/// Call this for each signal, as long as there is a server.
#[cfg(unix)]
pub(crate) fn on_signals(call: impl Fn() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            match Arc::strong_count(&SERVERS) {
                1 => drop(emulate_default_handler(signal)),
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

    let handler = move || match Arc::strong_count(&SERVERS) {
        1 => std::process::exit(STATUS_CONTROL_C_EXIT),
        _ => call(),
    };
    ctrlc::try_set_handler(handler).map_err(io::Error::other)
}
