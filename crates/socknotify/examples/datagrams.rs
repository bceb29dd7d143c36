//! A UDP service on several threads: it answers each datagram with the same text in capitals.
//!
//! What it shows:
//!
//! - All threads share one socket. A datagram needs no other state, so any thread can answer it.
//! - The trigger is an edge. A level-triggered socket is reported as long as there is a datagram in it: a second thread
//!   would be woken for the datagram that the first one is about to receive. An edge is reported once for what arrives.
//!   So a thread is woken for new datagrams only, and a second one for those that arrive while the first is busy.
//! - With an edge, a thread must receive until nothing is left, because what it leaves causes no other edge. To take one
//!   datagram at a time, use a level.
//! - A thread may find nothing to receive. That is no error: another thread was faster.
//!
//! Run it with `cargo run -p socknotify --example datagrams 127.0.0.1:7007`, and talk to it with
//! `nc -u 127.0.0.1 7007`. It ends at SIGTERM and Ctrl-C, when what had arrived is answered.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! socknotify = "0.1"
//! ```

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use socknotify::owned::{Event, Interest, Port, SharedTrigger, Worker};

const THREADS: usize = 4;
/// The longest datagram that is answered as a whole.
const LENGTH: usize = 2048;

fn main() -> io::Result<()> {
    let port = Arc::new(Port::<UdpSocket>::new()?);
    let ending = Arc::clone(&port);
    let handled = ctrlc::set_handler(move || ending.drain(Duration::from_secs(1)));
    handled.map_err(io::Error::other)?;
    let socket = UdpSocket::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
    socket.set_nonblocking(true)?;
    let socket = Arc::new(socket);

    port.share(Arc::clone(&socket), Interest::IN, SharedTrigger::Edge)?;
    // What had arrived by then is no edge.
    answer_all(&socket);
    println!("listening on {}", socket.local_addr()?);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(port.worker(1)));
        }
    });
    answer_all(&socket);
    Ok(())
}

fn serve(mut worker: Worker<UdpSocket>) {
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            if let Event::Shared(socket, _) = event {
                answer_all(&socket);
            }
        }
    }
}

/// Answer until nothing is left.
fn answer_all(socket: &UdpSocket) {
    let mut buffer = [0; LENGTH];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((length, peer)) => {
                let answer = &mut buffer[..length];
                answer.make_ascii_uppercase();
                // Any datagram may be lost, and so may this one.
                let _ = socket.send_to(answer, peer);
            }
            Err(error) => match error.kind() {
                // An earlier answer was refused, which a receive reports. There may be more behind it.
                ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => {}
                ErrorKind::Interrupted => {}
                _ => return,
            },
        }
    }
}
