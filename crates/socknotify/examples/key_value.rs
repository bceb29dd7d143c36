//! A key-value server: `SET key value`, `GET key` and `DEL key`, one a line, answered in order.
//!
//! A client that is idle for a minute is closed. A line has 4 KiB at most. No more than 10,000 clients are served at once.
//! From a client that does not read, nothing is read. At Ctrl-C, answers are still sent, for ten seconds.

#[path = "end/mod.rs"]
mod end;

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::{env, thread, time::Duration};

use socknotify::owned::{BorrowedSocket, Event, Input, Interest, Listening, Output, Port};
use socknotify::owned::{Serving, Source};

const IDLE: Duration = Duration::from_secs(60);

type Table = HashMap<Vec<u8>, Vec<u8>>;

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
fn serve(client: &mut Client, table: &Mutex<Table>) -> io::Result<Option<Interest>> {
    let Client(stream, input, output) = client;
    if output.is_empty() && !input.receive(&*stream)? {
        return Ok(None);
    }
    while let Some(line) = input.line() {
        let answer = answer(line, &mut table.lock().expect("no panic"));
        output.write_all(&[&answer, &b"\n"[..]].concat())?;
    }
    output.send(&*stream).map(Some)
}

fn main() -> io::Result<()> {
    let end = end::End::new()?;
    let listener = TcpListener::bind(env::args().nth(1).unwrap_or("127.0.0.1:7007".into()))?;
    println!("listening on {}", listener.local_addr()?);
    let (port, table) = (Port::<Client>::new()?, Mutex::default());
    let listening = Listening::arming(Interest::IN.within(IDLE)).at_most(10_000);
    let client = |stream, _| Client(stream, Input::new(4096), Output::new());
    port.listen(listener, listening, client)?;
    thread::scope(|scope| {
        scope.spawn(|| end.wait().map(|()| port.drain(Duration::from_secs(10))));
        port.serve(Serving::default(), |worker, event| {
            if let Event::Ready(mut client, _) | Event::Draining(mut client) = event {
                let next = serve(&mut client, &table).ok().flatten();
                let is_done = port.is_draining() && client.2.is_empty();
                if let (Some(next), false) = (next, is_done) {
                    worker.arm(client, next.within(IDLE));
                }
            } // What is not armed again is closed.
        })
    })?;
    Ok(())
}
