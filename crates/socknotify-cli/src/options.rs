//! Options that several subcommands have: the same words, the same limits, the same errors.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::value_parser;
use socknotify::{Backend, Builder, CompletionPort};

/// The shortest and the longest time, in seconds.
const SECONDS: RangeInclusive<f64> = 0.001..=1_000_000.0;

/// What the port is made with.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct PortOptions {
    /// Concurrency value of the port: how many threads it lets run at once [default: the number of processors]
    #[arg(long, value_name = "NUMBER", value_parser = threads())]
    concurrency: Option<u32>,

    /// Backend of the port [default: the best that works here]
    #[arg(long, value_name = "NAME", value_parser = backends())]
    backend: Option<Backend>,
}

impl PortOptions {
    pub(crate) fn build(&self) -> Result<CompletionPort, socknotify::Error> {
        self.builder().build()
    }

    pub(crate) fn builder(&self) -> Builder {
        let places = self.concurrency.map_or(0, |places| places as usize);
        let builder = CompletionPort::builder().concurrency(places);
        match self.backend {
            Some(backend) => builder.backend(backend),
            None => builder,
        }
    }
}

/// What is printed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputOptions {
    /// Print JSON only, one line per report
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of threads or places.
pub(crate) fn threads() -> impl TypedValueParser<Value = u32> {
    value_parser!(u32).range(1..=10_000)
}

/// A number of clients or connections.
pub(crate) fn connections() -> impl TypedValueParser<Value = u32> {
    value_parser!(u32).range(1..=1_000_000)
}

/// A number of seconds, such as 10 or 0.5.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| SECONDS.contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| {
            let (least, most) = (SECONDS.start(), SECONDS.end());
            format!("it takes a number of seconds from {least} to {most}, such as 10 or 0.5")
        })
}

/// Takes the names of this build's backends, and lists them when it gets another.
fn backends() -> impl TypedValueParser<Value = Backend> {
    PossibleValuesParser::new(Backend::ALL.iter().map(|backend| backend.name()))
        .try_map(|name| name.parse::<Backend>())
}
