//! rustls, by way of tokio-rustls, which asks of a stream tokio's traits only: an echo server.
//!
//! Talk to it with `openssl s_client -connect 127.0.0.1:PORT`. The key is for nothing but examples.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socknotify_async::TcpListener;
use tokio::io::{copy, split};
use tokio_rustls::TlsAcceptor;

#[allow(dead_code, reason = "not in the tests")]
mod common;

/// The server's certificate, for `localhost`.
pub const CERTIFICATE: &[u8] =
    include_bytes!("../../socknotify-examples/src/certificate/certificate.pem");
const KEY: &[u8] = include_bytes!("../../socknotify-examples/src/certificate/key.pem");

#[allow(dead_code, reason = "not in the tests")]
fn main() -> io::Result<()> {
    common::main(serve)
}

/// Serves echoes.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(KEY).map_err(io::Error::other)?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    socknotify_async_examples::serve(listener, |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await?;
            let (mut read, mut write) = split(stream);
            copy(&mut read, &mut write).await?;
            tokio::io::AsyncWriteExt::shutdown(&mut write).await
        }
    })
    .await
}
