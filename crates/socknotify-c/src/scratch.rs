//! Memory of each thread for one call's registrations and packets, kept for the next call.

use std::cell::Cell;

use socknotify::{Entry, Registration, RegistrationError};

use crate::caller::{CallerArray, SockNotifyRegistration};
use crate::code::{self, Code};

/// What a call needs beside the caller's memory.
#[derive(Debug)]
pub(crate) struct Scratch {
    batch: Vec<Registration<'static>>,
    room: Vec<Entry>,
}

thread_local! {
    static SPARE: Cell<Scratch> = const { Cell::new(Scratch::new()) };
}

impl Scratch {
    const fn new() -> Self {
        Scratch {
            batch: Vec::new(),
            room: Vec::new(),
        }
    }

    /// Run one call with this thread's memory.
    pub(crate) fn with<R>(call: impl FnOnce(&mut Scratch) -> R) -> R {
        // A call from a destructor at the very end of a thread makes do with memory of its own.
        let mut scratch = SPARE
            .try_with(|spare| spare.replace(Scratch::new()))
            .unwrap_or(Scratch::new());
        let outcome = call(&mut scratch);
        let _ = SPARE.try_with(|spare| spare.set(scratch));
        outcome
    }

    /// What became of one entry of the latest call. Success if there was no such entry.
    pub(crate) fn result(&self, index: usize) -> Result<(), RegistrationError> {
        self.batch.get(index).map_or(Ok(()), Registration::result)
    }

    /// The library's form of the registrations, and room for packets.
    pub(crate) fn prepare(
        &mut self,
        registrations: CallerArray<SockNotifyRegistration>,
        room: usize,
    ) -> Result<(&mut [Registration<'static>], &mut [Entry]), Code> {
        let Scratch { batch, room: spare } = self;
        batch.clear();
        batch
            .try_reserve(registrations.len())
            .map_err(|_| code::NOT_ENOUGH_MEMORY)?;
        batch.extend(
            registrations
                .values()
                .map(SockNotifyRegistration::to_registration),
        );
        if let Some(missing) = room.checked_sub(spare.len()) {
            spare
                .try_reserve(missing)
                .map_err(|_| code::NOT_ENOUGH_MEMORY)?;
            spare.resize(spare.len() + missing, Entry::default());
        }
        Ok((batch, &mut spare[..room]))
    }
}
