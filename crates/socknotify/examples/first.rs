//! The program of the README: an echo server whose handler may block.
//!
//! ```toml
//! [dependencies]
//! socknotify = "0.1"
//! ```

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, time::Duration};

use socknotify::owned::{Event, Interest, Limited, Port, Serving};

fn main() -> io::Result<()> {
    let port = Port::<TcpStream>::new()?;
    let idle = Interest::IN.within(Duration::from_secs(60));
    let listener = TcpListener::bind(env::args().nth(1).unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    port.listen(listener, idle, |client, _address| client)?;
    port.serve(Serving::default(), |worker, event| {
        // The client is this thread's alone now, and this may block. What is not armed again is closed.
        if let Event::Ready(client, _) = event {
            let mut stream = Limited::within(&*client, Duration::from_secs(60));
            let mut buffer = [0; 4096];
            let received = stream.read(&mut buffer).unwrap_or(0);
            if received > 0 && stream.write_all(&buffer[..received]).is_ok() {
                worker.arm(client, idle);
            }
        }
    })?;
    Ok(())
}
