//! `socknotify doctor`: what this system offers.

use std::fmt;
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use socknotify::owned::Port;
use socknotify::{Backend, CompletionPort, Entry, Snapshot};

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
    blocking: Blocking,
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

/// What a port does when the only thread that may run blocks, and another one waits for a packet.
#[derive(Default, Serialize)]
struct Blocking {
    /// How many threads may run then.
    limit: Option<usize>,
    /// How often that has risen because a thread was seen to sleep, and because nobody dequeued.
    rises_asleep: u64,
    rises_starved: u64,
    /// When the other one has got its packet.
    after_microseconds: Option<u64>,
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
            blocking: Blocking::try_out(),
            file_driver: Port::<TcpStream>::new()
                .ok()
                .map(|port| port.file_driver().name()),
            descriptors: system::limits(),
        }
    }
}

impl Blocking {
    fn try_out() -> Self {
        let Ok(port) = CompletionPort::with_concurrency(1) else {
            return Self::default();
        };
        let Some((state, after)) = Self::block(&port) else {
            return Self::default();
        };
        Blocking {
            limit: state.limit,
            rises_asleep: state.rises_asleep,
            rises_starved: state.rises_starved,
            after_microseconds: Some(u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    /// One thread has the only permit, and blocks; another one waits for a packet. The port's state when it has got it, and how long
    /// that took.
    fn block(port: &CompletionPort) -> Option<(Snapshot, Duration)> {
        const LONG: Duration = Duration::from_secs(2);
        let (taken, has_taken) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        port.post(Entry::new(1, 0, 0)).ok()?;
        thread::scope(|scope| {
            // If this returns early, the sender is dropped, which ends the thread.
            let end = end;
            let blocks = move || {
                if port.dequeue_one(Some(LONG)).is_ok() && taken.send(()).is_ok() {
                    let _ = ends.recv();
                }
            };
            thread::Builder::new().spawn_scoped(scope, blocks).ok()?;
            has_taken.recv().ok()?;
            let begin = Instant::now();
            port.post(Entry::new(2, 0, 0)).ok()?;
            port.dequeue_one(Some(LONG)).ok()?;
            let found = (port.snapshot(), begin.elapsed());
            drop(end);
            Some(found)
        })
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
        writeln!(f, "a thread blocks      {}", self.blocking)?;
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

impl fmt::Display for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(micros) = self.after_microseconds else {
            return f.write_str("no other one runs in time");
        };
        let after = Duration::from_micros(micros);
        write!(f, "another one runs after {after:?}: ")?;
        match self {
            Blocking {
                rises_asleep: 1.., ..
            } => f.write_str("it is seen to sleep"),
            Blocking {
                rises_starved: 1.., ..
            } => f.write_str("nobody has dequeued for so long"),
            _ => f.write_str("as the system's own port has it"),
        }
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
