//! Blocking work: it runs on helper threads, and its result is a message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::port::{Notice, Panic, Shared};
use super::{Port, SendError};

impl<T: Send + 'static, M: Send + 'static> Port<T, M> {
    /// Runs blocking work on a helper thread. Its result is a [message](super::Event::Message) to one of the port's
    /// threads.
    ///
    /// Use it for what cannot be watched: name resolution, or a library's blocking call. Work begins in the order of
    /// the calls. The number of helper threads is [limited](super::Builder::helper_threads); they start when there is
    /// work, and end after a second without any.
    ///
    /// If the work panics, one thread takes [`Event::Panicked`](super::Event::Panicked).
    ///
    /// Closing the port drops work that has not begun. It does not wait for work that has, whose result is dropped.
    ///
    /// # Errors
    ///
    /// Returns the work if the port is closed, in a forked child of the port's process, or if the system cannot start a
    /// thread for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io;
    /// use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
    /// use socknotify::owned::{Event, Port};
    ///
    /// # fn main() -> io::Result<()> {
    /// let port = Port::<TcpStream, io::Result<Vec<SocketAddr>>>::new()?;
    /// port.run(|| Ok(("localhost", 80).to_socket_addrs()?.collect()))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Message(addresses)) = worker.take() else { panic!() };
    /// assert!(addresses?.iter().all(|address| address.ip().is_loopback()));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "spawn_blocking")]
    #[doc(alias = "QueueUserWorkItem")]
    pub fn run<F>(&self, work: F) -> Result<(), SendError<F>>
    where
        F: FnOnce() -> M + Send + 'static,
    {
        if self.shared.home.is_closed() {
            return Err(SendError(work));
        }
        // The port may be dropped while this runs.
        let shared = Arc::downgrade(&self.shared);
        let mut work = Some(work);
        self.shared.helpers.run(|| {
            let work = work.take();
            Box::new(move || {
                let outcome = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
                if let (Some(outcome), Some(shared)) = (outcome, Weak::upgrade(&shared)) {
                    shared.send_result(outcome);
                }
            })
        });
        work.map_or(Ok(()), |work| Err(SendError(work)))
    }
}

impl<T, M> Port<T, M> {
    /// The present number of helper threads, for diagnosis.
    pub fn helper_threads(&self) -> usize {
        self.shared.helpers.threads()
    }
}

impl<T, M> Shared<T, M> {
    /// Send what the caller's code has returned, or report its panic.
    pub(super) fn send_result(&self, result: Result<M, Panic>) {
        match result {
            Ok(message) => self.send_all(vec![message]),
            Err(panic) => self.notify(Notice::Panicked(panic)),
        }
    }
}
