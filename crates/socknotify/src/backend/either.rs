//! [`SystemPort`] on Windows: the engine over `afd`, or the kernel's own port.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use windows_sys::Win32::Foundation::HANDLE;

use super::Afd;
use super::native::Native;
use crate::engine::Engine;
use crate::engine::owned::{Caller, Left};
use crate::os::RawSocket;
use crate::support::deadline::Deadline;
use crate::values::entry::Arming;
use crate::{
    Entry, Error, EventFilter, Registration, RegistrationError, SlowThread, Snapshot, WakePolicy,
};

/// A port on either backend.
#[derive(Clone)]
pub(crate) enum SystemPort {
    Engine(Arc<Engine<Afd>>),
    Native(Arc<Native>),
}

/// Passes a call to the port of its kind.
macro_rules! either {
    ($system:expr, $port:ident => $call:expr) => {
        match $system {
            SystemPort::Engine($port) => $call,
            SystemPort::Native($port) => $call,
        }
    };
}

impl SystemPort {
    /// The engine. The kernel's own port needs no call of those that are for this alone.
    fn engine(&self) -> Option<&Arc<Engine<Afd>>> {
        match self {
            SystemPort::Engine(engine) => Some(engine),
            SystemPort::Native(_) => None,
        }
    }

    /// As [`Engine::enable_owned`]. The kernel's own port arms by a call, and knows no numbers.
    #[inline]
    pub(crate) fn enable_owned(
        &self,
        socket: RawSocket,
        key: usize,
        filter: EventFilter,
        arming: Arming,
        is_drained: bool,
    ) -> Result<Left, RegistrationError> {
        self.engine().map_or(Ok(Left::Arm), |engine| {
            engine.enable_owned(socket, key, filter, arming, is_drained)
        })
    }

    /// As [`Engine::claim_owned`]. The kernel's own port cannot: whoever dequeues something there looks at once.
    pub(crate) fn is_dequeued(&self, socket: RawSocket, key: usize, arming: Arming) -> bool {
        self.engine()
            .is_some_and(|it| it.is_dequeued(socket, key, arming))
    }

    pub(crate) fn claim_owned(&self, socket: RawSocket, key: usize, arming: Arming) -> bool {
        self.engine()
            .is_none_or(|it| it.claim_owned(socket, key, arming))
    }

    pub(crate) fn process(
        &self,
        registrations: &mut [Registration<'_>],
        entries: &mut [Entry],
        deadline: impl Into<Deadline>,
        caller: Option<Caller<'_>>,
    ) -> Result<usize, Error> {
        match self {
            SystemPort::Engine(engine) => engine.process(registrations, entries, deadline, caller),
            SystemPort::Native(port) => port.process(registrations, entries, deadline.into()),
        }
    }

    pub(crate) fn post(
        &self,
        entries: &[Entry],
        before_waking: impl FnOnce(),
    ) -> Result<(), Error> {
        either!(self, port => port.post(entries, before_waking))
    }

    /// Queue packets that were dequeued before: ahead of what is queued, but for the kernel's own port, which has no
    /// such call.
    pub(crate) fn requeue(&self, entries: &[Entry]) -> Result<(), Error> {
        match self {
            SystemPort::Engine(engine) => engine.requeue(entries),
            SystemPort::Native(port) => port.post(entries, || {}),
        }
    }

    /// Queue a packet that is not to wait behind others, if the port can do that.
    pub(crate) fn post_ahead(&self, entry: Entry) -> Result<(), Error> {
        match self {
            SystemPort::Engine(engine) => engine.post_ahead(entry),
            SystemPort::Native(port) => port.post(&[entry], || {}),
        }
    }

    pub(crate) fn prepare_alarm(&self, key: usize) -> Result<(), Error> {
        either!(self, port => port.prepare_alarm(key))
    }

    pub(crate) fn on_raise(&self, call: Box<dyn Fn() + Send + Sync>) {
        if let SystemPort::Engine(engine) = self {
            engine.on_raise(call);
        }
    }

    pub(crate) fn in_vain(&self) {
        if let SystemPort::Engine(engine) = self {
            engine.in_vain();
        }
    }

    pub(crate) fn ask_next(&self) {
        if let SystemPort::Engine(engine) = self {
            engine.ask_next();
        }
    }

    pub(crate) fn post_after(&self, delay: Duration, entry: Entry) -> Result<(), Error> {
        either!(self, port => port.post_after(delay, entry))
    }

    /// Have operations on this handle complete on the port, under this key.
    pub(crate) fn associate(&self, handle: HANDLE, key: usize) -> Result<(), Error> {
        match self {
            SystemPort::Engine(engine) => engine.backend().associate(handle, key),
            SystemPort::Native(port) => port.associate(handle, key),
        }
    }

    pub(crate) fn adopt(
        &self,
        socket: RawSocket,
        key: usize,
        is_descriptor: bool,
    ) -> Result<Result<(), RegistrationError>, Error> {
        either!(self, port => port.adopt(socket, key, is_descriptor))
    }

    pub(crate) fn release(&self, socket: RawSocket, key: usize, stays_open: bool) {
        either!(self, port => port.release(socket, key, stays_open));
    }

    /// Lend this thread's permit until the returned value is dropped. The kernel's own port needs no call: it sees when
    /// a thread blocks.
    pub(crate) fn lend_permit(&self) -> impl Sized + '_ {
        self.engine().map(|it| it.lend_permit())
    }

    pub(crate) fn give_permit_back(&self) {
        if let Some(engine) = self.engine() {
            engine.give_permit_back();
        }
    }

    pub(crate) fn close(&self) {
        either!(self, port => port.close());
    }

    pub(crate) fn concurrency(&self) -> usize {
        either!(self, port => port.concurrency())
    }

    pub(crate) fn wake_policy(&self) -> WakePolicy {
        self.engine()
            .map_or(WakePolicy::Eager, |it| it.wake_policy())
    }

    pub(crate) fn slow(
        &self,
        one_of: &mut dyn FnMut(ThreadId, Duration) -> bool,
    ) -> Vec<(SlowThread, Option<usize>)> {
        // The kernel does not say.
        self.engine()
            .map_or(Vec::new(), |engine| engine.slow(one_of))
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        either!(self, port => port.snapshot())
    }
}
