//! With tokio: a task for each connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

pub(crate) async fn serve(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut client, _) = listener.accept().await?;
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = client.read(&mut buffer).await {
                if client.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        });
    }
}
