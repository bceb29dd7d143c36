//! What the interfaces above this one need and no program does: `socknotify-c`, `socknotify.dll` and `socknotify-async`.

pub use crate::os::{Process, accept};
pub use crate::owned::serve::crew::{Crew, OnLimit};
#[cfg(windows)]
pub use crate::port::host::{
    closing, feed, is_own, kernel_port, port_on, say_closes, status, wake,
};
pub use crate::port::slow::SlowWatch;
pub use crate::support::wheel::Wheel;
use crate::values::registration::Extra;
use crate::{CompletionPort, EventFilter, Registration, owned};
#[cfg(unix)]
use crate::{RegisterError, Trigger};

/// Call this before the first port is made where threads are not Rust's, and nobody is told of slow ones.
pub fn leave_threads_unnamed() {
    crate::engine::leave_threads_unnamed();
}

/// Call this before the first port is made where all timeouts are whole milliseconds. What is left of one after a wake-up is
/// rounded up to them. `epoll_pwait2` is not called then, of which older versions of valgrind warn.
pub fn count_milliseconds() {
    #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
    crate::backend::count_milliseconds();
}

/// Call this whenever the limit of running threads rises, with no lock held. The first one stays.
pub fn on_raise(port: &CompletionPort, call: impl Fn() + Send + Sync + 'static) {
    port.system().on_raise(Box::new(call));
}

/// What this thread has dequeued last was nothing to do, for instance the readiness of a socket with which another thread works. So
/// while others run, this one does not poll in their place.
pub fn in_vain(port: &CompletionPort) {
    port.system().in_vain();
}

/// [`CompletionPort::register`] for a socket that is known by its number. The caller sees to it that it is open, and stays open
/// until this returns: what else has the number would be registered.
#[cfg(unix)]
#[allow(unsafe_code, reason = "a number is no borrow")]
pub fn register_number(
    port: &CompletionPort,
    socket: std::os::fd::RawFd,
    completion_key: usize,
    filter: EventFilter,
    trigger: Trigger,
) -> Result<(), RegisterError> {
    // SAFETY: it is open, by the caller's word; and if it is not, the call fails.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket) };
    let enable = Registration::enable(&socket, completion_key, filter, trigger);
    port.register(enable)
}

/// Have ENABLE take any descriptor, as in [`Registration::descriptor`].
#[cfg(unix)]
pub fn any_descriptor(mut registration: Registration<'_>) -> Registration<'_> {
    registration.extra = Extra::Descriptor;
    registration
}

/// Have REMOVE take effect at once, as in [`Registration::deregister`].
pub fn silent(mut registration: Registration<'_>) -> Registration<'_> {
    registration.extra = Extra::Silent;
    registration
}

/// The interest in these conditions.
pub fn interest(filter: EventFilter) -> owned::Interest {
    owned::Interest::of(filter)
}
