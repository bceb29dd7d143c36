//! The option that names a backend.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use socknotify::Backend;

/// Takes the names of this build's backends, and lists them when it gets another.
pub(crate) fn names() -> impl TypedValueParser<Value = Backend> {
    PossibleValuesParser::new(Backend::ALL.iter().map(|backend| backend.name()))
        .try_map(|name| name.parse::<Backend>())
}
