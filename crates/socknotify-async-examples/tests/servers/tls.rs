//! rustls, by way of tokio-rustls, which asks of a stream tokio's traits only: an echo server.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socknotify_async::TcpListener;
use tokio::io::{copy, split};
use tokio_rustls::TlsAcceptor;

/// The server's certificate, for `localhost`.
pub const CERTIFICATE: &[u8] =
    include_bytes!("../../../socknotify-examples/src/certificate/certificate.pem");
const KEY: &[u8] = include_bytes!("../../../socknotify-examples/src/certificate/key.pem");

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
