//! An echo server, whose handler waits for its client: with a limit for each answer, and a graceful end.
//!
//! At SIGTERM and Ctrl-C what has come is still answered. A client that is silent for a minute is sent the end of the stream.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! socknotify = "0.1"
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::{env, sync::Arc, time::Duration};

use socknotify::owned::{Event, Interest, Limited, Listening, Port, Serving};

/// How long an answer may take in all, and without that the client takes anything.
const ANSWER: Duration = Duration::from_secs(600);
const STALL: Duration = Duration::from_secs(30);
const AT_ONCE: Interest = Interest::IN.within(Duration::ZERO);

fn main() -> io::Result<()> {
    let port = Arc::new(Port::new()?);
    let ending = Arc::clone(&port);
    let handled = ctrlc::set_handler(move || ending.drain(Duration::from_secs(10)));
    handled.map_err(io::Error::other)?;

    let listener = TcpListener::bind(env::args().nth(1).unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    let idle = Interest::IN.within(Duration::from_secs(60));
    port.listen(listener, Listening::arming(idle), |client, _| client)?;
    port.serve(Serving::default(), |worker, event| match event {
        Event::Ready(mut client, _) => {
            let mut buffer = [0; 4096];
            let received = match client.read(&mut buffer) {
                // What it was reported for is gone.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return worker.arm(client, idle);
                }
                received => received.unwrap_or(0),
            };
            let mut answer = Limited::within(&*client, ANSWER).stall(STALL);
            if received > 0 && answer.write_all(&buffer[..received]).is_ok() {
                worker.arm(client, if port.is_draining() { AT_ONCE } else { idle });
            }
        } // What is not armed again is closed.
        // SIGTERM or Ctrl-C: what it has sent is still answered. If that is nothing, its time is over at once.
        Event::Draining(client) => worker.arm(client, AT_ONCE),
        // It is sent the end of the stream, and may read what it was sent.
        Event::TimedOut(client) => worker.linger(client, Duration::from_secs(2)),
        _ => {}
    })?;
    Ok(())
}
