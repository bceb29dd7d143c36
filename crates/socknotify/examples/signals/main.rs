//! Signals come out of the port, beside connections: an echo server that tells its figures, and ends in good order.
//!
//! What it shows:
//!
//! - The `signal-hook` crate writes to a socket when a signal comes. The port owns the other end, as a connection.
//! - SIGHUP prints the figures of each thread, which the threads count in shared memory.
//! - SIGTERM and SIGINT drain the port. Its threads end by themselves.
//!
//! Run it with `cargo run -p socknotify --example signals 127.0.0.1:7007`, talk to it with `nc 127.0.0.1 7007`,
//! and send it signals with `kill`.
//!
//! It is for Unix, which has these signals.

#[cfg(unix)]
mod server;

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    server::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("there are no signals here");
    std::process::exit(1);
}
