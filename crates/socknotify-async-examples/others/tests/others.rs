//! What the front page of `socknotify-async` says of crates that take long to build.

use std::io::{self, Error};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use socknotify_async::{TcpListener, spawn};

use crate::support::{PATIENCE, run, run_with_tokio};

#[path = "../../tests/support/run.rs"]
mod support;

/// Answers with the length of what is posted, by async-h1.
async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let stream = async_dup::Arc::new(listener.accept().await?.0);
        drop(spawn(async move {
            let answer = async_h1::accept(stream, |mut request| async move {
                let length = request.body_bytes().await?.len();
                let mut response = http_types::Response::new(200);
                response.set_body(length.to_string());
                Ok(response)
            });
            // The client may go at any time.
            let _ = answer.await;
        }));
    }
}

async fn server() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(spawn(serve(listener)));
    Ok(address)
}

#[test]
fn isahc_posts_to_a_server_of_async_h1() -> io::Result<()> {
    run(async {
        let address = server().await?;
        for length in [0, 1, 100_000] {
            let url = format!("http://{address}/");
            let answer = isahc::post_async(url, vec![0_u8; length]).await;
            let mut text = String::new();
            let mut body = answer.map_err(Error::other)?.into_body();
            body.read_to_string(&mut text).await?;
            assert_eq!(text, length.to_string());
        }
        Ok(())
    })
}

#[test]
fn files_and_processes_of_smol_run_as_they_are() -> io::Result<()> {
    run(async {
        let directory = std::env::temp_dir().join(format!("socknotify-{}", std::process::id()));
        async_fs::create_dir_all(&directory).await?;
        let path = directory.join("file");
        async_fs::write(&path, "content").await?;
        assert_eq!(async_fs::read_to_string(&path).await?, "content");
        let output = async_process::Command::new("cat").arg(&path).output();
        assert_eq!(output.await?.stdout, b"content");
        async_fs::remove_dir_all(&directory).await
    })
}

#[test]
fn sqlx_with_async_std_has_a_database() -> io::Result<()> {
    use sqlx::sqlite::SqlitePoolOptions;
    run(async {
        let pool = SqlitePoolOptions::new().max_connections(1);
        let pool = pool
            .connect("sqlite::memory:")
            .await
            .map_err(Error::other)?;
        let create = sqlx::query("CREATE TABLE rows (number INTEGER)").execute(&pool);
        create.await.map_err(Error::other)?;
        let tasks = (0..10).map(|number| {
            let pool = pool.clone();
            spawn(async move {
                let insert = sqlx::query("INSERT INTO rows VALUES (?)").bind(number);
                insert.execute(&pool).await.map(drop)
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await?.map_err(Error::other)?;
        }
        let sum = sqlx::query_scalar::<_, i64>("SELECT sum(number) FROM rows");
        assert_eq!(sum.fetch_one(&pool).await.map_err(Error::other)?, 45);
        pool.close().await;
        Ok(())
    })
}

#[test]
fn quinn_with_smol_sends_a_stream() -> io::Result<()> {
    use quinn::{ClientConfig, Endpoint, ServerConfig};
    use rustls::RootCertStore;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    const CERTIFICATE: &[u8] =
        include_bytes!("../../../socknotify-examples/src/certificate/certificate.pem");
    const KEY: &[u8] = include_bytes!("../../../socknotify-examples/src/certificate/key.pem");
    run(async {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE).map_err(Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(KEY).map_err(Error::other)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).map_err(Error::other)?;
        let config = ServerConfig::with_single_cert(vec![certificate], key);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Endpoint::server(config.map_err(Error::other)?, any)?;
        let address = server.local_addr()?;
        let echo = spawn(async move {
            let connection = server.accept().await.expect("a client").await?;
            let (mut send, mut receive) = connection.accept_bi().await?;
            let text = receive.read_to_end(1_000_000).await.map_err(Error::other)?;
            send.write_all(&text).await?;
            send.finish().map_err(Error::other)?;
            connection.closed().await;
            io::Result::Ok(())
        });
        let mut client = Endpoint::client(any)?;
        let config = ClientConfig::with_root_certificates(Arc::new(roots));
        client.set_default_client_config(config.map_err(Error::other)?);
        let connecting = client.connect(address, "localhost").map_err(Error::other)?;
        let connection = connecting.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        let text: Vec<u8> = (0..500_000_u32).map(|number| number as u8).collect();
        send.write_all(&text).await?;
        send.finish().map_err(Error::other)?;
        let answer = receive.read_to_end(1_000_000).await.map_err(Error::other)?;
        assert!(answer == text);
        connection.close(0_u8.into(), b"");
        echo.await?
    })
}

#[test]
fn reqwest_asks_in_tokio_s_context() -> io::Result<()> {
    run_with_tokio(async {
        let address = server().await?;
        let client = reqwest::Client::new();
        for length in [0, 1, 100_000] {
            let request = client.post(format!("http://{address}/"));
            let answer = request.body(vec![0_u8; length]).send().await;
            let text = answer.map_err(Error::other)?.text().await;
            assert_eq!(text.map_err(Error::other)?, length.to_string());
        }
        Ok(())
    })
}

#[test]
fn tower_http_ends_a_request_that_takes_long_in_tokio_s_context() -> io::Result<()> {
    use http::{Request, Response, StatusCode};
    use tower::{Layer, ServiceExt, service_fn};
    use tower_http::timeout::TimeoutLayer;
    run_with_tokio(async {
        let never = service_fn(|_: Request<String>| {
            std::future::pending::<Result<Response<String>, std::convert::Infallible>>()
        });
        let layer = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, PATIENCE / 10_000);
        let answer = layer.layer(never).oneshot(Request::new(String::new()));
        let answer = answer.await.map_err(Error::other)?;
        assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
        Ok(())
    })
}

/// To a broker that is a few lines here.
#[test]
fn rumqttc_connects_and_publishes_in_tokio_s_context() -> io::Result<()> {
    use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, QoS};
    run_with_tokio(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let broker = spawn(async move {
            let mut stream = listener.accept().await?.0;
            let mut head = [0; 2];
            // Each packet is answered as the protocol says: CONNECT by CONNACK, PUBLISH with its number by PUBACK.
            loop {
                stream.read_exact(&mut head).await?;
                let mut rest = vec![0; head[1].into()];
                stream.read_exact(&mut rest).await?;
                match head[0] >> 4 {
                    1 => stream.write_all(&[0x20, 2, 0, 0]).await?,
                    3 => {
                        let name = usize::from(rest[1]);
                        let number = [rest[2 + name], rest[3 + name]];
                        let text = rest.split_off(4 + name);
                        stream.write_all(&[0x40, 2, number[0], number[1]]).await?;
                        return io::Result::Ok((text, stream));
                    }
                    other => return Err(Error::other(format!("a packet of kind {other}"))),
                }
            }
        });
        let options = MqttOptions::new("client", "127.0.0.1", port);
        let (client, mut events) = AsyncClient::new(options, 4);
        let publish = client.publish("topic", QoS::AtLeastOnce, false, "hello");
        publish.await.map_err(Error::other)?;
        loop {
            let event = events.poll().await.map_err(Error::other)?;
            if matches!(event, Event::Incoming(Incoming::PubAck(_))) {
                break;
            }
        }
        let (text, _stream) = broker.await??;
        assert_eq!(text, b"hello");
        Ok(())
    })
}
