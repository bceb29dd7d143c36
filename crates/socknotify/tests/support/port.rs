//! What most tests do to a port, in few words.

use socknotify::{CompletionPort, EventFilter, RegisterError, Registration, Trigger};

use super::system::AsSocket;

pub(crate) trait PortExt {
    /// Registers a socket, or enables its registration.
    fn enable(
        &self,
        socket: &impl AsSocket,
        key: usize,
        filter: EventFilter,
        trigger: Trigger,
    ) -> Result<(), RegisterError>;
}

impl PortExt for CompletionPort {
    fn enable(
        &self,
        socket: &impl AsSocket,
        key: usize,
        filter: EventFilter,
        trigger: Trigger,
    ) -> Result<(), RegisterError> {
        self.register(Registration::enable(socket, key, filter, trigger))
    }
}
