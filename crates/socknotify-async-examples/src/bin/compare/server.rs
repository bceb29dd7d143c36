//! The servers.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use clap::ValueEnum;
use hyper::service::service_fn;
use socknotify_async_examples::{SLEEP, Service, serve_http1, serve_http2};

use crate::tokio_io::{Executor, Stream, Timer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    Socknotify,
    Tokio,
    /// tokio, with `spawn_blocking` for the requests that sleep.
    TokioTold,
    /// tokio, with `spawn_blocking` for all requests, as a program has to that does not know which ones block.
    TokioAll,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Runtime::Socknotify => "socknotify",
            Runtime::Tokio => "tokio",
            Runtime::TokioTold => "tokio-told",
            Runtime::TokioAll => "tokio-all",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Say where this serves, and end with the standard input.
fn until_input_ends(address: SocketAddr) -> io::Result<()> {
    println!("{address}");
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

pub(crate) fn serve(runtime: Runtime, protocol: Protocol, sleep: u64) -> io::Result<()> {
    let service = Arc::new(Service::new(sleep));
    // The same queue of connections for both.
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    socket2::SockRef::from(&listener).listen(4096)?;
    match runtime {
        Runtime::Socknotify => socknotify(listener, protocol, service),
        _ => tokio(listener, runtime, protocol, service),
    }
}

fn socknotify(
    listener: std::net::TcpListener,
    protocol: Protocol,
    service: Arc<Service>,
) -> io::Result<()> {
    let runtime = socknotify_async::Runtime::new()?;
    let address = listener.local_addr()?;
    let _entered = runtime.handle().enter();
    let listener = socknotify_async::TcpListener::try_from(listener)?;
    let handler = move |request| {
        let service = Arc::clone(&service);
        async move { service.call(request).await }
    };
    drop(runtime.spawn(async move {
        match protocol {
            Protocol::Http1 => serve_http1(listener, handler).await,
            Protocol::Http2 => serve_http2(listener, handler).await,
        }
    }));
    until_input_ends(address)
}

fn tokio(
    listener: std::net::TcpListener,
    runtime: Runtime,
    protocol: Protocol,
    service: Arc<Service>,
) -> io::Result<()> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let _entered = tokio.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let handler = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move {
            let sleeps = match runtime {
                Runtime::TokioTold | Runtime::TokioAll => service.sleeps_next(),
                _ => return service.call(request).await,
            };
            if sleeps || runtime == Runtime::TokioAll {
                let work = move || {
                    if sleeps {
                        std::thread::sleep(SLEEP);
                    }
                };
                tokio::task::spawn_blocking(work).await.expect("no panic");
            }
            Ok(service.answer(sleeps))
        }
    });
    tokio.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let handler = handler.clone();
            tokio::spawn(async move {
                match protocol {
                    Protocol::Http1 => {
                        let mut server = hyper::server::conn::http1::Builder::new();
                        server.timer(Timer);
                        server.serve_connection(Stream(stream), handler).await
                    }
                    Protocol::Http2 => {
                        let mut server = hyper::server::conn::http2::Builder::new(Executor);
                        server.timer(Timer);
                        server.serve_connection(Stream(stream), handler).await
                    }
                }
            });
        }
        #[allow(unreachable_code, reason = "it says the type")]
        io::Result::Ok(())
    });
    until_input_ends(address)
}
