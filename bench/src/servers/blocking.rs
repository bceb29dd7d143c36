//! Servers whose handlers may block. A request is a byte, which says what its handler does, and the answer is the same
//! byte.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use socknotify::owned::{Event, Interest, Port, Serving};
use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Registration, Trigger, default_concurrency,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Until, is_end, on_threads, tokio::finish};
use crate::exchange::QUICK;
use crate::implementation::Implementation;

/// What a handler does for a request.
pub(crate) type Work = Arc<dyn Fn(u8) + Send + Sync>;

/// How many threads there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of the port; of tokio, the workers. It is the number of processors where nothing else is asked for.
    pub(crate) places: usize,
    /// Of the port. Tokio and threads for each connection have as many as they need.
    pub(crate) threads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            places: default_concurrency(),
            threads: 512,
        }
    }
}

/// Serve these connections, which are in non-blocking mode.
pub(crate) fn serve(
    implementation: Implementation,
    limits: Limits,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    match implementation {
        Implementation::Serve(backend) => serve_port(backend, limits, false, work, streams, until),
        Implementation::ServeBlocking(backend) => {
            serve_port(backend, limits, true, work, streams, until)
        }
        Implementation::Async => serve_async(limits, work, streams, until),
        Implementation::Socknotify(backend) => serve_keys(backend, limits, work, streams, until),
        Implementation::Tokio => serve_tokio(limits, false, work, streams, until),
        Implementation::TokioSpawning => serve_tokio(limits, true, work, streams, until),
        Implementation::Threads => serve_threads(work, streams, until),
        _ => Err(io::Error::other(format!("{implementation} does not block"))),
    }
}

/// `Port::serve`.
fn serve_port(
    backend: Backend,
    limits: Limits,
    says_so: bool,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let builder = Port::<TcpStream>::builder().backend(backend);
    let port = builder.concurrency(limits.places).build()?;
    for stream in streams {
        port.arm(port.adopt(stream)?, Interest::IN);
    }
    let serve = || {
        let serving = Serving::default().threads(limits.threads);
        let served = port.serve(serving, |worker, event| {
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

/// `CompletionPort::process` with room for one, on all of the threads.
fn serve_keys(
    backend: Backend,
    limits: Limits,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    let builder = CompletionPort::builder().backend(backend);
    let port = builder.concurrency(limits.places).build()?;
    let enable = |key: usize| Registration::enable(&streams[key], key, EventFilter::IN, ONESHOT);
    for key in 0..streams.len() {
        port.register(enable(key))?;
    }
    let serve = || -> io::Result<()> {
        let mut entries = [Entry::default()];
        let mut batch = Vec::new();
        loop {
            let taken = match port.process(&mut batch, &mut entries, None) {
                Ok(taken) => taken,
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            batch.clear();
            for entry in taken {
                let key = entry.completion_key;
                let mut byte = [QUICK];
                match (&streams[key]).read(&mut byte) {
                    Ok(1) => {
                        work(byte[0]);
                        if (&streams[key]).write_all(&byte).is_ok() {
                            batch.push(enable(key));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        batch.push(enable(key));
                    }
                    _ => {}
                }
            }
        }
    };
    on_threads(std::iter::repeat_n(serve, limits.threads), until, || {
        port.close();
        Ok(())
    })
}

fn serve_tokio(
    limits: Limits,
    says_so: bool,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(limits.places)
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
fn serve_async(
    limits: Limits,
    work: &Work,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let builder = socknotify_async::Runtime::builder();
    let builder = builder.places(limits.places).threads(limits.threads);
    let runtime = builder.build()?;
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
