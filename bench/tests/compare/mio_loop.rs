//! With mio: one thread, edges, and a table from tokens to connections.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

pub(crate) fn serve(mut listener: TcpListener) -> io::Result<()> {
    const LISTENER: Token = Token(0);
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(64);
    let mut clients = HashMap::new();
    let mut last = 0;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut client, _)) = listener.accept() {
                    // Never reused: an event of a closed connection finds nothing.
                    last += 1;
                    let both = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut client, Token(last), both)?;
                    clients.insert(Token(last), (client, Vec::new()));
                }
            } else if let Some((client, unsent)) = clients.get_mut(&event.token()) {
                if !echo(client, unsent) {
                    clients.remove(&event.token());
                }
            }
        }
    }
}

/// Echo until a call would block. False at the end.
fn echo(client: &mut TcpStream, unsent: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        let outcome = if unsent.is_empty() {
            client
                .read(&mut buffer)
                .inspect(|&length| unsent.extend(&buffer[..length]))
        } else {
            client
                .write(unsent)
                .inspect(|&length| drop(unsent.drain(..length)))
        };
        match outcome {
            Ok(1..) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
            Ok(0) => return false,
        }
    }
}
