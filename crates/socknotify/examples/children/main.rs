//! Child processes: runs each argument as a command of the shell, all at once, and prints what they say as they say it.
//!
//! What it shows:
//!
//! - Pipes come out of the port as sockets do; they are adopted by a call of their own.
//! - That a child has ended is a signal, which `signal-hook` turns into a byte in a socket. Several may come as one:
//!   so each child is asked.
//! - The end of its output and its own end come in either order.
//!
//! Run it with `cargo run -p socknotify --example children 'echo one' 'sleep 1; echo two'`.
//!
//! It is for Unix, where pipes have descriptors that can be watched.

#[cfg(unix)]
mod run;

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    run::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("pipes cannot be watched here");
    std::process::exit(1);
}
