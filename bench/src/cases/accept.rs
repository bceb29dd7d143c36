//! How long it takes to accept a connection, set it up and have it watched.
//!
//! The connections are there already, in the listener's queue, when the clock starts: what is measured is the
//! server, and not its clients.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use socknotify::Backend;
use socknotify::owned::{Interest, Port};

use crate::case::{Axis, Case, Parameter, Trial};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;

/// What a listener's queue holds, unless the system was told otherwise.
const CONNECTIONS: usize = 2000;

pub(crate) const CASE: Case = Case {
    name: "accept",
    about: "connections that wait at a listener are accepted; bare: threads that do nothing else, \
            and leave them unwatched",
    compared_by: Figure::Gross,
    axes: &[Axis {
        parameter: Parameter::Threads,
        values: &[1, 2, 4, 16],
        quick: &[1, 2],
    }],
    implementations: || Implementation::around(&[Implementation::Bare], &[Implementation::Tokio]),
    parts: 4,
    is_counted: false,
    prepare: |setting, _| {
        Ok(Box::new(Accept {
            threads: setting.get(Parameter::Threads),
        }))
    },
};

struct Accept {
    threads: usize,
}

/// Counts what was accepted, and says when that is all.
#[derive(Default)]
struct Count {
    accepted: AtomicUsize,
    end: Mutex<Option<Instant>>,
    over: Condvar,
}

impl Count {
    /// One more. False if it was the last.
    fn add(&self) -> bool {
        let number = self.accepted.fetch_add(1, Ordering::AcqRel) + 1;
        if number == CONNECTIONS {
            *self.lock() = Some(Instant::now());
            self.over.notify_all();
        }
        number < CONNECTIONS
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> Instant {
        let end = self
            .over
            .wait_while(self.lock(), |end| end.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        end.expect("it was waited for")
    }
}

/// A listener with its queue full of connections.
fn queue() -> io::Result<(TcpListener, Vec<TcpStream>)> {
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listen(&listener, 2 * CONNECTIONS as i32)?;
    let listener = TcpListener::from(listener);
    let address = listener.local_addr()?;
    let clients = (0..CONNECTIONS).map(|_| TcpStream::connect(address));
    let clients = clients.collect::<io::Result<_>>()?;
    Ok((listener, clients))
}

/// Nanoseconds for each.
fn each(begin: Instant, end: Instant) -> f64 {
    (end - begin).as_nanos() as f64 / CONNECTIONS as f64
}

impl Accept {
    fn bare(&self) -> io::Result<f64> {
        let (listener, _clients) = queue()?;
        listener.set_nonblocking(true)?;
        let count = Count::default();
        let start = Barrier::new(self.threads + 1);
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    start.wait();
                    let mut streams = Vec::with_capacity(CONNECTIONS);
                    while let Ok((stream, _)) = listener.accept() {
                        if stream.set_nonblocking(true).is_err() {
                            return;
                        }
                        streams.push(stream);
                        count.add();
                    }
                    // They are closed when all threads have theirs.
                    count.wait();
                });
            }
            start.wait();
            let begin = Instant::now();
            Ok(each(begin, count.wait()))
        })
    }

    fn owned(&self, backend: Backend) -> io::Result<f64> {
        let (listener, _clients) = queue()?;
        let port = Port::<TcpStream>::builder().backend(backend).build()?;
        let count = Arc::new(Count::default());
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| {
                    let mut worker = port.worker(64);
                    while worker.process(None).is_ok() {
                        while worker.take().is_some() {}
                    }
                });
            }
            while port.snapshot().waiting < self.threads {
                thread::yield_now();
            }
            let counted = Arc::clone(&count);
            let begin = Instant::now();
            port.listen(listener, Interest::IN, move |stream, _| {
                counted.add();
                stream
            })?;
            let end = count.wait();
            drop(port.close());
            Ok(each(begin, end))
        })
    }

    fn tokio(&self) -> io::Result<f64> {
        let (listener, _clients) = queue()?;
        listener.set_nonblocking(true)?;
        let count = Arc::new(Count::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .enable_io()
            .build()?;
        let counted = Arc::clone(&count);
        let begin = Instant::now();
        let accepting = runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let mut tasks = Vec::with_capacity(CONNECTIONS);
            loop {
                let (stream, _) = listener.accept().await?;
                // A task of its own, as it is done there.
                tasks.push(tokio::spawn(async move { stream.readable().await }));
                if !counted.add() {
                    return io::Result::Ok(tasks);
                }
            }
        });
        let end = count.wait();
        let tasks = runtime.block_on(accepting).expect("no task panics")?;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        Ok(each(begin, end))
    }
}

impl Trial for Accept {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let time = match implementation {
            Implementation::Bare => self.bare()?,
            Implementation::Owned(backend) => self.owned(backend)?,
            Implementation::Tokio => self.tokio()?,
            _ => return Ok(None),
        };
        Ok(Some(Sample::from([(Figure::Gross, time)])))
    }
}
