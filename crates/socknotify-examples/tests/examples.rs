//! The examples as processes of their own, and clients that talk to them.
#![cfg(unix)]

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

#[path = "../../socknotify/tests/support/example.rs"]
mod example;

use example::{Example, expect, expect_end, much};

#[test]
fn tokio_echoes() -> io::Result<()> {
    let server = Example::start(env!("CARGO_BIN_EXE_tokio"), &[])?;
    thread::scope(|scope| {
        for _ in 0..8 {
            let client = server.connect().expect("it listens");
            scope.spawn(move || {
                for number in 0..200 {
                    let message = number.to_string();
                    (&client)
                        .write_all(message.as_bytes())
                        .expect("it is taken");
                    expect(&client, message.as_bytes());
                }
                client.shutdown(Shutdown::Write).expect("it is open");
                expect_end(&client);
            });
        }
    });
    server.stop()
}

#[test]
fn tokio_holds_back_who_does_not_read() -> io::Result<()> {
    let server = Example::start(env!("CARGO_BIN_EXE_tokio"), &[])?;
    let client = server.connect()?;
    thread::scope(|scope| {
        scope.spawn(|| -> io::Result<()> {
            (&client).write_all(&much())?;
            client.shutdown(Shutdown::Write)
        });
        let mut found = Vec::new();
        (&client).read_to_end(&mut found).expect("it comes back");
        assert!(found == much(), "{} bytes", found.len());
    });
    server.stop()
}

#[cfg(all(target_os = "linux", feature = "tls"))]
#[test]
fn tls_echoes_records_that_are_longer_than_a_turn() -> io::Result<()> {
    use std::sync::Arc;

    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    let server = Example::start(env!("CARGO_BIN_EXE_tls"), &[])?;
    let certificate = include_bytes!("../src/bin/tls/certificate.pem");
    let certificate = CertificateDer::from_pem_slice(certificate).map_err(io::Error::other)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).map_err(io::Error::other)?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = Arc::new(config.with_no_client_auth());
    thread::scope(|scope| {
        for client in 0..6_u8 {
            let (server, config) = (&server, Arc::clone(&config));
            scope.spawn(move || {
                let name = "localhost".try_into().expect("a name");
                let tls = ClientConnection::new(config, name).expect("it is complete");
                let stream = server.connect().expect("it listens");
                let mut stream = StreamOwned::new(tls, stream);
                // A record has 16384 bytes at most. The last ones are several.
                for length in [1, 4096, 4097, 16_384, 16_385, 50_000] {
                    let said = vec![client; length];
                    stream.write_all(&said).expect("it is taken");
                    stream.flush().expect("it is taken");
                    expect(&mut stream, &said);
                }
                stream.conn.send_close_notify();
                stream.flush().expect("it is taken");
                // The server says goodbye, too: without that, this is an error.
                expect_end(&mut stream);
            });
        }
    });
    server.stop()
}
