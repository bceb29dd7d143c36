//! [`Port::offload`]: blocking work on helper threads, whose result is a message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::messages::Message;
use super::{BeginError, Port};

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
    /// let port = Port::<TcpStream, io::Result<Vec<SocketAddr>>>::with_messages()?;
    /// port.offload(|| Ok(("localhost", 80).to_socket_addrs()?.collect()))?;
    ///
    /// let mut worker = port.worker(8);
    /// worker.process(None)?;
    /// let Some(Event::Message(addresses)) = worker.take() else { panic!() };
    /// assert!(addresses?.iter().all(|address| address.ip().is_loopback()));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "run")]
    #[doc(alias = "spawn_blocking")]
    #[doc(alias = "QueueUserWorkItem")]
    pub fn offload<F>(&self, work: F) -> Result<(), BeginError<F>>
    where
        F: FnOnce() -> M + Send + 'static,
    {
        if let Err(reason) = self.shared.connections.check() {
            return Err(BeginError::new(work, reason));
        }
        // The port may be dropped while this runs.
        let shared = Arc::downgrade(&self.shared);
        let mut work = Some(work);
        self.shared.connections.begin_work();
        let queued = self.shared.helpers.run(|| {
            let work = work.take();
            Box::new(move || {
                let outcome = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
                if let (Some(outcome), Some(shared)) = (outcome, Weak::upgrade(&shared)) {
                    shared.notify(Message::Result(outcome));
                }
            })
        });
        match (queued, work) {
            (Err(reason), Some(work)) => {
                self.shared.connections.end_work(1);
                Err(BeginError::new(work, reason))
            }
            _ => Ok(()),
        }
    }
}

impl<T, M> Port<T, M> {
    /// The present number of helper threads, for diagnosis.
    pub fn helper_threads(&self) -> usize {
        self.shared.helpers.threads() + self.shared.files.threads()
    }
}
