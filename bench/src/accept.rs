//! How long it takes to accept a connection, set it up and have it watched.
//!
//! The connections are there already, in the listener's queue, when the clock starts: what is measured is the
//! server, and not its clients.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use socknotify::owned::{Interest, Port};

use crate::compare::{Options, Sample};
use crate::stopwatch::Stopwatch;

/// What a listener's queue holds, unless the system was told otherwise.
const CONNECTIONS: usize = 2000;

type Accept = fn(usize) -> io::Result<Sample>;

/// The first ones leave the connections unwatched: they do nothing else.
const SIDES: [(&str, Accept); 3] = [("a loop", accept), ("owned", owned), ("tokio", tokio)];

/// Each of them is short.
const ROUNDS: usize = 15;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    for (case, threads) in [("1 thread", 1), ("2 threads", 2), ("4 threads", 4)] {
        if options.wants(case) {
            options.compare(case, ROUNDS, &SIDES, |accept| accept(threads).map(Some))?;
        }
    }
    Ok(())
}

/// Counts what was accepted, and says when that is all.
struct Count {
    accepted: AtomicUsize,
    watch: Stopwatch,
    /// What it has taken.
    taken: Mutex<Option<Sample>>,
    over: Condvar,
}

impl Count {
    /// The clock starts now.
    fn start() -> Arc<Self> {
        Arc::new(Count {
            accepted: AtomicUsize::new(0),
            watch: Stopwatch::of_process(),
            taken: Mutex::default(),
            over: Condvar::new(),
        })
    }

    /// One more. False if it was the last.
    fn add(&self) -> bool {
        let number = self.accepted.fetch_add(1, Ordering::AcqRel) + 1;
        if number == CONNECTIONS {
            *self.lock() = Some(self.watch.per(CONNECTIONS));
            self.over.notify_all();
        }
        number < CONNECTIONS
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sample>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> Sample {
        let taken = self
            .over
            .wait_while(self.lock(), |taken| taken.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        taken.clone().expect("it was waited for")
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

fn accept(threads: usize) -> io::Result<Sample> {
    let (listener, _clients) = queue()?;
    listener.set_nonblocking(true)?;
    let start = Barrier::new(threads + 1);
    let count = OnceLock::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                start.wait();
                let count = count.get_or_init(Count::start);
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
        Ok(count.get_or_init(Count::start).wait())
    })
}

fn owned(threads: usize) -> io::Result<Sample> {
    let (listener, _clients) = queue()?;
    let port = Port::<TcpStream>::builder().build()?;
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut worker = port.worker(64);
                while worker.process(None).is_ok() {
                    while worker.take().is_some() {}
                }
            });
        }
        while port.snapshot().waiting < threads {
            thread::yield_now();
        }
        let count = Count::start();
        let counted = Arc::clone(&count);
        port.listen(listener, Interest::IN, move |stream, _| {
            counted.add();
            stream
        })?;
        let taken = count.wait();
        drop(port.close());
        Ok(taken)
    })
}

fn tokio(threads: usize) -> io::Result<Sample> {
    let (listener, _clients) = queue()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_io()
        .build()?;
    let count = Count::start();
    let counted = Arc::clone(&count);
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
    let taken = count.wait();
    let tasks = runtime.block_on(accepting).expect("no task panics")?;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(taken)
}
