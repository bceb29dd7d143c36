//! A key-value server: `SET key value`, `GET key` and `DEL key`, one a line, answered in order.
//!
//! A client that sends nothing for a minute, or for the second argument's seconds, is closed; one that takes nothing, after
//! twice that. One thread serves at a time, since all need one table: that takes a quarter less processor time than two that
//! take turns. A line has 4 KiB at most. From a client that does not read, nothing is read. At SIGTERM and Ctrl-C what was
//! received is still answered.
//!
//! ```toml
//! [dependencies]
//! ctrlc = { version = "3", features = ["termination"] }
//! socknotify = "0.1"
//! ```

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::{env, time::Duration};

use socknotify::owned::Event::{Draining, Ready, TimedOut};
use socknotify::owned::{
    BorrowedSocket, Input, Interest, Listening, Output, Port, Serving, Source,
};

type Table = HashMap<Vec<u8>, Vec<u8>>;

const AT_ONCE: Interest = Interest::IN.within(Duration::ZERO);

struct Client(TcpStream, Input, Output);

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.0.socket()
    }
}

fn answer(line: &[u8], table: &mut Table) -> Vec<u8> {
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let found = match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(key), None) => table.get(key).cloned(),
        (Some(b"DEL"), Some(key), None) => table.remove(key),
        (Some(b"SET"), Some(key), Some(value)) => table.insert(key.into(), value.into()),
        _ => Some(b"what?".to_vec()),
    };
    found.unwrap_or_else(|| b"none".to_vec())
}

/// Serve what is there. Returns what to wait for next, or nothing at the end.
fn serve(client: &mut Client, late: bool, table: &Mutex<Table>) -> io::Result<Option<Interest>> {
    let Client(stream, input, output) = client;
    if late && !output.has_progressed(stream) || output.is_empty() && !input.receive(&*stream)? {
        return Ok(None);
    }
    while let Some(line) = input.line() {
        let answer = answer(line, &mut table.lock().expect("no panic"));
        output.write_all(&[&answer, &b"\n"[..]].concat())?;
    }
    output.send(&*stream).map(Some)
}

fn main() -> io::Result<()> {
    let (address, idle) = (env::args().nth(1), env::args().nth(2));
    let idle = Duration::from_secs(idle.map_or(60, |text| text.parse().expect("seconds")));
    // Every request needs the one table, and none blocks: so one thread at a time, which never waits for the lock.
    let port = Port::<Client>::builder().concurrency(1).strict().build()?;
    let (port, table) = (Arc::new(port), Mutex::default());
    let ending = Arc::clone(&port);
    let handled = ctrlc::set_handler(move || ending.drain(Duration::from_secs(10)));
    handled.map_err(io::Error::other)?;

    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    let listening = Listening::arming(Interest::IN.within(idle)).at_most(10_000);
    let client = |stream, _| Client(stream, Input::new(4096), Output::new());
    port.listen(listener, listening, client)?;
    port.serve(Serving::default(), |worker, event| {
        let late = matches!(event, TimedOut(_));
        if let Ready(mut client, _) | Draining(mut client) | TimedOut(mut client) = event {
            match serve(&mut client, late, &table) {
                // At the end, what has come is answered: if nothing has, this time is over at once.
                Ok(Some(Interest::IN)) if port.is_draining() => worker.arm(client, AT_ONCE),
                Ok(Some(next)) => worker.arm(client, next.within(idle)),
                // It is sent the end, and has two seconds to read what it was sent.
                _ => worker.linger(client, Duration::from_secs(2)),
            }
        }
    })?;
    Ok(())
}
