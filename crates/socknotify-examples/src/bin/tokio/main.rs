//! A port inside tokio's loop: tokio accepts, the port serves, on one thread.
//!
//! What it shows:
//!
//! - A port can be watched itself. It is readable when there is something to dequeue.
//! - Nobody waits in it then: `process` is called with a timeout of zero, until nothing is there.
//! - A message from another thread comes out of the port as well, and so wakes tokio.
//!
//! Run it with `cargo run -p socknotify-examples --bin tokio 127.0.0.1:7007`, and talk to it with
//! `nc 127.0.0.1 7007`. It ends when its standard input does.
//!
//! It is for Unix, where a port has a descriptor to watch.

#[cfg(unix)]
mod echo;

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    echo::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("a port cannot be watched here");
    std::process::exit(1);
}
