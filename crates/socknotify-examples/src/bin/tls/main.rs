//! TLS with `rustls`: an echo server of which each connection gets a short turn.
//!
//! What it shows:
//!
//! - The port watches the socket, and knows nothing of what was decrypted. A record holds up to 16 KiB; when it has been
//!   received, and a part of it was read, the rest brings no event. A connection that is armed then waits for ever.
//! - So before a connection is armed, what is left in it counts: first what is to be sent, then what is decrypted.
//! - If something is decrypted, the connection goes to the end of the queue as a message, and the others have their turn.
//!
//! Run it with `cargo run -p socknotify-examples --features tls --bin tls 127.0.0.1:7007`, and talk to it with
//! `openssl s_client -connect 127.0.0.1:7007`. It ends when its standard input does.
//!
//! It is built on Linux only, because `rustls` needs a compiler for C here. The key beside it is for nothing but this.

#[cfg(target_os = "linux")]
mod echo;

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    echo::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this example is for Linux");
    std::process::exit(1);
}
