//! [`Port::serve`]: the loop of a server's threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use super::{Event, Port, Source, Worker};
use crate::{Error, default_concurrency};

/// How many threads [`Port::serve`] has.
///
/// # Examples
///
/// ```
/// use socknotify::owned::Serving;
///
/// // No more than 64 handlers block at once.
/// let _ = Serving::default().threads(64);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Serving {
    threads: usize,
    room: usize,
    idle: Duration,
}

/// Up to 512 threads, which end after ten seconds without an event, and have [room](Port::worker) for 64 events each.
impl Default for Serving {
    fn default() -> Self {
        Serving {
            threads: 512,
            room: 64,
            idle: Duration::from_secs(10),
        }
    }
}

impl Serving {
    /// The maximum number of threads, at least one: that many handlers can block at once. While all of them do, events
    /// wait.
    pub const fn threads(self, threads: usize) -> Self {
        let threads = if threads == 0 { 1 } else { threads };
        Serving { threads, ..self }
    }

    /// The room of each thread's [worker](Port::worker).
    pub const fn room(self, room: usize) -> Self {
        Serving { room, ..self }
    }

    /// How long a thread waits for an event before it ends, while another one waits, too.
    pub const fn idle(self, time: Duration) -> Self {
        Serving { idle: time, ..self }
    }
}

impl<T: Source + Send, M: Send> Port<T, M> {
    /// Serves connections until the port is closed or has [drained](Self::drain): calls `handler` for each event, on as
    /// many threads as are needed.
    ///
    /// A handler may block. It starts with one thread for each place. When the last of its threads that waits gets an
    /// event, another thread starts, up to the [limit](Serving::threads); so a handler that blocks keeps nobody waiting
    /// but its own connection. Threads that have nothing to do end after a while. No more threads run than the port has
    /// places. This thread is one of them.
    ///
    /// A handler arms the connection again, with [`Worker::arm`], or drops it, which closes it. If it panics, its
    /// connection is closed, the thread goes on, and `handler` is called with [`Event::Panicked`].
    ///
    /// If the system cannot start a thread, those that there are go on.
    ///
    /// # Errors
    ///
    /// [`Error::OtherProcess`] in a forked child of the port's process.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    /// use socknotify::owned::{Event, Interest, Listening, Port, Serving};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let port = Port::<TcpStream>::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// // Reads and writes block, for ten seconds at most.
    /// let listening = Listening::arming(Interest::IN).blocking_mode(Duration::from_secs(10));
    /// port.listen(listener, listening, |client, _| client)?;
    /// # let (port, peer) = (std::sync::Arc::new(port), TcpStream::connect(address)?);
    /// # let closing = std::thread::spawn({
    /// #     let port = port.clone();
    /// #     move || {
    /// #         let mut peer = peer;
    /// #         peer.write_all(b"ping").unwrap();
    /// #         peer.read_exact(&mut [0; 4]).unwrap();
    /// #         port.close();
    /// #     }
    /// # });
    /// port.serve(Serving::default(), |worker, event| {
    ///     let Event::Ready(mut client, _) = event else { return };
    ///     let mut buffer = [0; 4096];
    ///     if let Ok(length @ 1..) = client.read(&mut buffer) {
    ///         if client.write_all(&buffer[..length]).is_ok() {
    ///             worker.arm(client, Interest::IN);
    ///         }
    ///     }
    /// })?;
    /// # closing.join().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "CreateThreadpoolIo")]
    pub fn serve<F>(&self, serving: Serving, handler: F) -> Result<(), Error>
    where
        F: Fn(&mut Worker<T, M>, Event<T, M>) + Sync,
    {
        if !self.shared.connections.is_here() {
            return Err(Error::OtherProcess);
        }
        // A port without a limit has more places than there are processors.
        let first = self.concurrency().min(default_concurrency());
        let crew = Crew {
            port: self,
            serving,
            handler,
            threads: AtomicUsize::new(1),
            waiting: AtomicUsize::new(1),
        };
        thread::scope(|scope| {
            for _ in 1..first.min(serving.threads) {
                crew.start_thread(scope);
            }
            crew.run(scope);
        });
        Ok(())
    }
}

/// The threads of one call.
struct Crew<'port, T, M, F> {
    port: &'port Port<T, M>,
    serving: Serving,
    handler: F,
    threads: AtomicUsize,
    /// Threads that wait for events, or have been started and will.
    waiting: AtomicUsize,
}

impl<T: Source + Send, M: Send, F> Crew<'_, T, M, F>
where
    F: Fn(&mut Worker<T, M>, Event<T, M>) + Sync,
{
    /// Start one thread more, if the limit and the system allow it.
    #[cold]
    fn start_thread<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let most = self.serving.threads;
        if !change(&self.threads, |threads| {
            (threads < most).then_some(threads + 1)
        }) {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let thread = thread::Builder::new().name("socknotify".into());
        if thread.spawn_scoped(scope, || self.run(scope)).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One thread.
    fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut worker = self.port.worker(self.serving.room);
        let idle = Some(self.serving.idle);
        let mut timeout = idle;
        loop {
            let mut is_busy = false;
            let mut begin = || {
                if !std::mem::replace(&mut is_busy, true)
                    && self.waiting.fetch_sub(1, Ordering::Relaxed) == 1
                {
                    self.start_thread(scope);
                }
            };
            // Dropping what the caller has made may panic.
            let process = || worker.process_beside(timeout, &mut begin);
            let outcome = catch_unwind(AssertUnwindSafe(process));
            if let Ok(Ok(1..)) = outcome {
                begin();
            }
            if is_busy {
                while self.handle_next(&mut worker) {}
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            match outcome {
                Ok(Err(_)) => return,
                Ok(Ok(0)) => {
                    // One thread stays, to start others, and need not look again.
                    timeout = None;
                    if change(&self.waiting, |waiting| (waiting > 1).then(|| waiting - 1)) {
                        self.threads.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                }
                Ok(Ok(_)) => timeout = idle,
                Err(_) => {}
            }
        }
    }

    /// Take an event, and handle it. False if there is none.
    fn handle_next(&self, worker: &mut Worker<T, M>) -> bool {
        let handled = catch_unwind(AssertUnwindSafe(|| {
            let event = worker.take();
            event.map(|event| (self.handler)(worker, event)).is_some()
        }));
        handled.unwrap_or_else(|panic| {
            self.report(worker, panic);
            true
        })
    }

    #[cold]
    fn report(&self, worker: &mut Worker<T, M>, panic: Box<dyn Any + Send>) {
        let report = || (self.handler)(worker, Event::Panicked(panic));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(report)) {
            // The panic hook has reported both. To drop this may panic as well.
            std::mem::forget(panic);
        }
    }
}

/// Change a count, unless it has to stay as it is.
fn change(count: &AtomicUsize, next: impl FnMut(usize) -> Option<usize>) -> bool {
    let changed = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    changed.is_ok()
}
