//! A websocket server that echoes, with tokio-tungstenite, which asks of a stream tokio's traits only.

use std::io;

use futures_util::{SinkExt, StreamExt};
use socknotify_async::TcpListener;
use tokio_tungstenite::accept_async;

/// Serves echoes.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    socknotify_async_examples::serve(listener, async |stream| {
        let socket = accept_async(stream).await.map_err(io::Error::other)?;
        let (mut write, mut read) = socket.split();
        while let Some(message) = read.next().await {
            let message = message.map_err(io::Error::other)?;
            if message.is_text() || message.is_binary() {
                write.send(message).await.map_err(io::Error::other)?;
            }
        }
        io::Result::Ok(())
    })
    .await
}
