//! Servers whose handlers may block. A request is a byte, which says what its handler does, and the answer is the same
//! byte.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use socknotify::owned::{Event, Interest, Port, Serving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::QUICK;
use crate::servers::{Until, is_end, on_threads, tokio::finish};

/// What a handler does for a request.
pub(crate) type Work = Arc<dyn Fn(u8) + Send + Sync>;

/// Serves these connections, which are in non-blocking mode.
pub(super) type Serve = fn(&Work, Vec<TcpStream>, Until<'_>) -> io::Result<()>;

pub(super) const SIDES: [(&str, Serve); 5] = [
    ("tokio, spawn_blocking", |work, streams, until| {
        serve_tokio(true, work, streams, until)
    }),
    ("tokio", |work, streams, until| {
        serve_tokio(false, work, streams, until)
    }),
    ("serve", |work, streams, until| {
        serve_port(false, work, streams, until)
    }),
    ("async", serve_async),
    ("threads", serve_threads),
];

/// `Port::serve`, where handlers that block say so.
pub(super) const BLOCKING: (&str, Serve) = ("serve, blocking", |work, streams, until| {
    serve_port(true, work, streams, until)
});

/// `Port::serve`.
fn serve_port(
    says_so: bool,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let port = Port::<TcpStream>::builder().build()?;
    for stream in streams {
        port.arm(port.adopt(stream)?, Interest::IN);
    }
    let serve = || {
        let served = port.serve(Serving::default(), |worker, event| {
            let Event::Ready(mut client, _) = event else {
                return;
            };
            let mut byte = [QUICK];
            match client.read(&mut byte) {
                Ok(1) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return worker.arm(client, Interest::IN);
                }
                _ => return,
            }
            match says_so && byte[0] != QUICK {
                true => worker.blocking(|| work(byte[0])),
                false => work(byte[0]),
            }
            if client.write_all(&byte).is_ok() {
                worker.arm(client, Interest::IN);
            }
        });
        served.map_err(io::Error::from)
    };
    on_threads(std::iter::once(serve), until, || {
        port.close();
        Ok(())
    })
}

fn serve_tokio(
    says_so: bool,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .build()?;
    let tasks = streams.into_iter().map(|stream| {
        let work = Arc::clone(work);
        runtime.spawn(async move {
            let mut stream = tokio::net::TcpStream::from_std(stream)?;
            while let Ok(byte) = stream.read_u8().await {
                match says_so && byte != QUICK {
                    true => {
                        let work = Arc::clone(&work);
                        let blocking = tokio::task::spawn_blocking(move || work(byte));
                        blocking.await.map_err(io::Error::other)?;
                    }
                    false => work(byte),
                }
                match stream.write_u8(byte).await {
                    Err(error) if is_end(&error) => break,
                    outcome => outcome?,
                }
            }
            Ok(())
        })
    });
    let tasks = tasks.collect();
    finish(&runtime, tasks, until)
}

/// Tasks of `socknotify-async`. They say nothing.
fn serve_async(work: &Work, streams: Vec<TcpStream>, until: Until<'_>) -> io::Result<()> {
    let runtime = socknotify_async::Runtime::builder().build()?;
    let tasks = streams.into_iter().map(|stream| {
        let work = Arc::clone(work);
        runtime.spawn(async move {
            let mut stream = socknotify_async::TcpStream::try_from(stream)?;
            while let Ok(byte) = stream.read_u8().await {
                work(byte);
                match stream.write_u8(byte).await {
                    Err(error) if is_end(&error) => break,
                    outcome => outcome?,
                }
            }
            io::Result::Ok(())
        })
    });
    let tasks: Vec<_> = tasks.collect();
    until()?;
    runtime.block_on(async {
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        Ok(())
    })
}

fn serve_threads(work: &Work, streams: Vec<TcpStream>, until: Until<'_>) -> io::Result<()> {
    let serve = |mut stream: TcpStream| -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let mut byte = [QUICK];
        while stream.read_exact(&mut byte).is_ok() {
            work(byte[0]);
            match stream.write_all(&byte) {
                Err(error) if is_end(&error) => break,
                outcome => outcome?,
            }
        }
        Ok(())
    };
    let threads = streams.into_iter().map(|stream| move || serve(stream));
    on_threads(threads, until, || Ok(()))
}
