//! `socknotify doctor`: what this system offers.

use std::fmt;
use std::net::TcpStream;

use serde::Serialize;
use socknotify::owned::Port;
use socknotify::{Backend, CompletionPort};

use crate::descriptors::Limit;
use crate::options::OutputOptions;
use crate::output;
use crate::system::{self, Limits, System};

/// Report what this system offers: backends, processors, descriptor limits
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the report. True if a completion port works here.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let diagnosis = Diagnosis::make();
    if arguments.output.json {
        output::line(serde_json::to_string(&diagnosis)?)?;
    } else {
        output::line(&diagnosis)?;
    }
    Ok(diagnosis.chosen.backend.is_some())
}

#[derive(Serialize)]
struct Diagnosis {
    os: String,
    kernel: String,
    architecture: String,
    backends: Vec<Candidate>,
    chosen: Chosen,
    processors: Option<usize>,
    default_concurrency: usize,
    wake_policy: Option<String>,
    /// What does operations on files.
    file_driver: Option<&'static str>,
    descriptors: Limits,
}

/// A backend of this build.
#[derive(Serialize)]
struct Candidate {
    name: &'static str,
    available: bool,
    /// What keeps it from working.
    reason: Option<String>,
}

/// The backend that a port gets when none is asked for.
#[derive(Serialize)]
struct Chosen {
    backend: Option<&'static str>,
    reason: String,
}

impl Diagnosis {
    fn make() -> Self {
        let System {
            os,
            kernel,
            architecture,
        } = system::name();
        Diagnosis {
            os,
            kernel,
            architecture,
            backends: Backend::ALL
                .iter()
                .copied()
                .map(Candidate::try_out)
                .collect(),
            chosen: Chosen::find(),
            processors: std::thread::available_parallelism().ok().map(usize::from),
            default_concurrency: socknotify::default_concurrency(),
            wake_policy: CompletionPort::new()
                .ok()
                .map(|port| port.wake_policy().to_string()),
            file_driver: Port::<TcpStream>::new()
                .ok()
                .map(|port| port.file_driver().name()),
            descriptors: system::limits(),
        }
    }
}

impl Candidate {
    fn try_out(backend: Backend) -> Self {
        let obstacle = backend.probe().err();
        Candidate {
            name: backend.name(),
            available: obstacle.is_none(),
            reason: obstacle.map(|error| error.to_string()),
        }
    }
}

impl Chosen {
    fn find() -> Self {
        match CompletionPort::new() {
            Ok(port) => Chosen {
                backend: Some(port.backend().name()),
                reason: port.backend_reason().to_owned(),
            },
            Err(error) => Chosen {
                backend: None,
                reason: error.to_string(),
            },
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel               {} {}", self.os, self.kernel)?;
        writeln!(f, "architecture         {}", self.architecture)?;
        for candidate in &self.backends {
            writeln!(f, "backend {:<12} {candidate}", candidate.name)?;
        }
        writeln!(f, "chosen               {}", self.chosen)?;
        match self.processors {
            Some(count) => writeln!(f, "processors           {count}")?,
            None => writeln!(f, "processors           unknown")?,
        }
        writeln!(f, "default concurrency  {}", self.default_concurrency)?;
        let policy = self.wake_policy.as_deref().unwrap_or("none");
        writeln!(f, "wake policy          {policy}")?;
        let driver = self.file_driver.unwrap_or("none");
        writeln!(f, "operations on files  {driver}")?;
        let Limits { soft, hard } = self.descriptors;
        write!(
            f,
            "file descriptors     {} (hard limit {})",
            Limit(soft),
            Limit(hard)
        )
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            None => f.write_str("available"),
            Some(reason) => write!(f, "not available: {reason}"),
        }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend.unwrap_or("none"), self.reason)
    }
}
