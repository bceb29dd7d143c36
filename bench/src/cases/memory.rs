//! What an idle registration takes in memory: of the process, which its allocator counts, and of the
//! kernel, as far as `/proc/meminfo` tells.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::allocator;
use crate::case::{Axis, Case, Parameter, Trial};
use crate::cases::idle::idle_sockets;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::ways::{self, Kind};

pub(crate) const CASE: Case = Case {
    name: "memory",
    about: "bytes for each idle registration, of the process and of the kernel",
    compared_by: Figure::Bytes,
    axes: &[Axis {
        parameter: Parameter::Idle,
        values: &[100_000],
        quick: &[10_000],
    }],
    implementations,
    parts: 1,
    is_counted: false,
    prepare: |setting, _| {
        let idle = idle_sockets(setting.get(Parameter::Idle))?;
        Ok(Box::new(Memory { idle }))
    },
};

fn implementations() -> Vec<Implementation> {
    use Implementation::*;
    Implementation::around(&[RawEpoll, RawUring], &[Polling, Mio])
}

struct Memory {
    idle: Vec<UnixStream>,
}

impl Trial for Memory {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let kind = match implementation {
            Implementation::Mio => Kind::Edge,
            _ => Kind::OneShot,
        };
        let Some(mut way) = ways::make(implementation, kind, 64, self.idle.len())? else {
            return Ok(None);
        };
        let count = self.idle.len() as f64;
        let (bytes, kernel) = (allocator::bytes(), slabs()?);
        way.add(&self.idle, 0)?;
        Ok(Some(Sample::from([
            (Figure::Bytes, (allocator::bytes() - bytes) as f64 / count),
            (Figure::KernelBytes, (slabs()? - kernel) / count),
        ])))
    }
}

/// Bytes of the kernel's own small objects, once they are as many as a moment before: what was freed
/// goes with some delay.
fn slabs() -> io::Result<f64> {
    let mut before = 0.0;
    loop {
        let information = std::fs::read_to_string("/proc/meminfo")?;
        let mut lines = information.lines();
        let line = lines.find(|line| line.starts_with("SUnreclaim:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        let now = kibibytes.ok_or_else(|| io::Error::other("no SUnreclaim in /proc/meminfo"))?;
        if now == before {
            return Ok(now * 1024.0);
        }
        before = now;
        thread::sleep(Duration::from_millis(100));
    }
}
