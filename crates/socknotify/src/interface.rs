//! What the interfaces above this one need and no program does: `socknotify-c` and `socknotify.dll`.

use crate::Registration;
use crate::registration::Extra;
#[cfg(windows)]
pub use crate::system::host::{
    closing, feed, is_own, kernel_port, port_on, say_closes, status, wake,
};

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
