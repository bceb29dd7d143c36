//! What it costs to register a socket and to deregister it: nothing happens to it in between.

use std::io;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::ready::Sockets;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::stopwatch::Stopwatch;
use crate::ways::{self, Kind, Way};

pub(crate) const CASE: Case = Case {
    name: "churn",
    about: "one thread: a socket registered, and deregistered until that is certain",
    compared_by: Figure::Cpu,
    axes: &[Axis {
        parameter: Parameter::Batch,
        values: &[1, 64],
        quick: &[1, 64],
    }],
    implementations,
    parts: 1,
    is_counted: true,
    prepare: |setting, effort| Churn::prepare(setting, effort),
};

fn implementations() -> Vec<Implementation> {
    use Implementation::*;
    Implementation::around(&[RawEpoll, RawUring], &[Polling, Mio])
}

struct Churn {
    sockets: Sockets,
    effort: Effort,
}

impl Churn {
    fn prepare(setting: &Setting, effort: Effort) -> io::Result<Box<dyn Trial>> {
        let sockets = Sockets::new(setting.get(Parameter::Batch))?;
        Ok(Box::new(Churn { sockets, effort }))
    }

    fn way(&self, implementation: Implementation) -> io::Result<Option<Box<dyn Way<'_> + '_>>> {
        // mio knows edges, ours and polling say it for one-shot.
        let kind = match implementation {
            Implementation::Mio => Kind::Edge,
            _ => Kind::OneShot,
        };
        let count = self.sockets.ours.len();
        ways::make(implementation, kind, count, count)
    }

    fn turn<'a>(&'a self, way: &mut dyn Way<'a>) -> io::Result<()> {
        way.add(&self.sockets.ours, 0)?;
        way.remove(&self.sockets.ours, 0)
    }
}

impl Trial for Churn {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let Some(mut way) = self.way(implementation)? else {
            return Ok(None);
        };
        let batch = self.sockets.ours.len();
        let turns = self.effort.notifications.div_ceil(batch);
        (0..turns.div_ceil(10)).try_for_each(|_| self.turn(&mut *way))?;
        let stopwatch = Stopwatch::of_thread();
        (0..turns).try_for_each(|_| self.turn(&mut *way))?;
        Ok(Some(stopwatch.per(turns * batch)))
    }

    fn turns(&mut self, implementation: Implementation, turns: usize) -> io::Result<bool> {
        let Some(mut way) = self.way(implementation)? else {
            return Ok(false);
        };
        (0..turns).try_for_each(|_| self.turn(&mut *way))?;
        Ok(true)
    }
}
