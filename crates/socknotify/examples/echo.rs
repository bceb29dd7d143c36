//! The first program of the README.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::{env, time::Duration};

use socknotify::owned::{Event, Interest, Listening, Port, Serving};

fn main() -> io::Result<()> {
    let listener = TcpListener::bind(env::args().nth(1).unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    let next = Interest::IN.within(Duration::from_secs(60));
    let listening = Listening::arming(next).blocking(Duration::from_secs(30));
    let port = Port::new()?;
    port.listen(listener, listening, |client, _| client)?;
    port.serve(Serving::default(), |worker, event| {
        if let Event::Ready(mut client, _) = event {
            let mut buffer = [0; 4096];
            let received = client.read(&mut buffer).unwrap_or(0);
            if received > 0 && client.write_all(&buffer[..received]).is_ok() {
                worker.arm(client, next);
            }
        } // What is not armed again is closed: at its end, or because it was idle.
    })?;
    Ok(())
}
