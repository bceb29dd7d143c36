//! The first program of the README.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, thread, time::Duration};

use socknotify::owned::{Event, Interest, Port};

/// Echo what has arrived. False at the end.
fn echo(mut client: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    let received = client.read(&mut buffer).unwrap_or(0);
    received > 0 && client.write_all(&buffer[..received]).is_ok()
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind(env::args().nth(1).unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    let next = Interest::IN.within(Duration::from_secs(60));
    let port = Port::<TcpStream>::new()?;
    port.listen(listener, next, |client, _| client)?;
    let serve = || {
        let mut worker = port.worker(64);
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                match event {
                    Event::Ready(client, _) if echo(&client) => worker.arm(client, next),
                    _ => {} // What is not armed again is closed: at its end, or because it was idle.
                }
            }
        }
    };
    thread::scope(|scope| (0..16).for_each(|_| drop(scope.spawn(serve))));
    Ok(())
}
