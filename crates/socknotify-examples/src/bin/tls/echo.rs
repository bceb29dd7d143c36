//! The server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use socknotify::owned::{BorrowedSocket, Event, Held, Interest, Port, Source, Worker};

const THREADS: usize = 4;
/// How much of what a client says is answered in one turn.
const TURN: usize = 4096;
const IDLE: Duration = Duration::from_secs(60);

struct Client {
    stream: TcpStream,
    tls: ServerConnection,
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

/// What a connection goes on with.
enum Next {
    Wait(Interest),
    /// There is more to be read, of which the socket knows nothing.
    Again,
    End,
}

pub(super) fn main() -> io::Result<()> {
    let config = Arc::new(configuration().map_err(io::Error::other)?);
    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("listening on {}", listener.local_addr()?);

    let port = Port::with_messages()?;
    let arming = Interest::IN.within(IDLE);
    port.listen(listener, arming, move |stream, _| Client {
        stream,
        tls: ServerConnection::new(Arc::clone(&config)).expect("the configuration is complete"),
    })?;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve(&port, port.worker(64)));
        }
        let ended = io::copy(&mut io::stdin(), &mut io::sink());
        port.close();
        ended.map(drop)
    })
}

fn configuration() -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("certificate.pem"))?;
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("key.pem"))?;
    let config = ServerConfig::builder().with_no_client_auth();
    Ok(config.with_single_cert(vec![certificate], key)?)
}

/// Connections that have something left come as messages.
fn serve(port: &Port<Client, Held<Client>>, mut worker: Worker<Client, Held<Client>>) {
    while worker.process(None).is_ok() {
        while let Some(event) = worker.take() {
            let (Event::Ready(mut client, _) | Event::Message(mut client)) = event else {
                // What was idle for too long is dropped, and so closed.
                continue;
            };
            match client.turn() {
                Ok(Next::Wait(interest)) => worker.arm(client, interest.within(IDLE)),
                // Behind those that are ready. If the port is closed, so is the client.
                Ok(Next::Again) => drop(port.send(client)),
                Ok(Next::End) | Err(_) => {}
            }
        }
    }
}

impl Client {
    fn turn(&mut self) -> io::Result<Next> {
        // Who does not take its answers is not listened to.
        if !self.send()? {
            return Ok(Next::Wait(Interest::OUT));
        }
        if !self.has_decrypted()? && !self.receive()? {
            return Ok(Next::Wait(Interest::IN));
        }
        let mut chunk = [0; TURN];
        match self.tls.reader().read(&mut chunk) {
            Ok(0) => {
                self.tls.send_close_notify();
                self.send()?;
                return Ok(Next::End);
            }
            Ok(length) => self.tls.writer().write_all(&chunk[..length])?,
            // It is a part of a record, or of the handshake.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(match self.send()? {
            false => Next::Wait(Interest::OUT),
            true if self.has_decrypted()? => Next::Again,
            true => Next::Wait(Interest::IN),
        })
    }

    /// Receive what the socket has, and decrypt it. False if it has nothing.
    fn receive(&mut self) -> io::Result<bool> {
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                if let Err(error) = self.tls.process_new_packets() {
                    // The reason is for the peer.
                    let _ = self.send();
                    return Err(io::Error::other(error));
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether something was decrypted and not read, be it the end.
    fn has_decrypted(&mut self) -> io::Result<bool> {
        let state = self.tls.process_new_packets().map_err(io::Error::other)?;
        Ok(state.plaintext_bytes_to_read() > 0 || state.peer_has_closed())
    }

    /// Send what is encrypted. False if the socket does not take all.
    fn send(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
