//! What one notification costs, of each kind, by how many sockets are ready at once.
//!
//! Each turn writes one byte to every socket's peer, takes all notifications, and reads each byte.
//! One-shot sockets are armed again after the next write or before it: see [`Order`]. The others stay
//! armed, so that there is no order.

use std::io;
use std::os::unix::net::UnixStream;

use crate::case::{Axis, Case, Effort, ORDERS, Order, Parameter, Setting, Trial};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::stopwatch::Stopwatch;
use crate::ways::{self, Kind, Way};

pub(crate) const ONE_SHOT: Case = Case {
    name: "one-shot",
    about: "one thread, one-shot and level: a notification, and its socket armed again",
    compared_by: Figure::NetCpu,
    axes: &[ORDERS, BATCHES],
    implementations: ways::all,
    parts: 10,
    is_counted: true,
    prepare: |setting, effort| Ready::prepare(Kind::OneShot, setting, effort),
};

pub(crate) const EDGE: Case = Case {
    name: "edge",
    about: "one thread, persistent and edge: a notification",
    axes: &[BATCHES],
    prepare: |setting, effort| Ready::prepare(Kind::Edge, setting, effort),
    ..ONE_SHOT
};

pub(crate) const LEVEL: Case = Case {
    name: "level",
    about: "one thread, persistent and level: a notification",
    axes: &[BATCHES],
    prepare: |setting, effort| Ready::prepare(Kind::Level, setting, effort),
    ..ONE_SHOT
};

pub(super) const ALL: [&str; 3] = [ONE_SHOT.name, EDGE.name, LEVEL.name];

const BATCHES: Axis = Axis {
    parameter: Parameter::Batch,
    values: &[1, 4, 16, 64, 512],
    quick: &[1, 64],
};

/// Turns before those that are measured, at the least: caches fill, and re-arm policies adapt.
const WARM_UP: usize = 16;

/// Sockets that are read, and their peers.
pub(super) struct Sockets {
    pub(super) ours: Vec<UnixStream>,
    theirs: Vec<UnixStream>,
}

impl Sockets {
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let pairs = (0..count).map(|_| UnixStream::pair());
        let (ours, theirs) = pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Sockets { ours, theirs })
    }

    /// Make every socket readable, and have a way read it.
    pub(super) fn turn<'a>(&'a self, way: &mut dyn Way<'a>, order: Order) -> io::Result<()> {
        if order == Order::ArmedWritten {
            way.arm(&self.ours)?;
        }
        for peer in &self.theirs {
            rustix::io::write(peer, &[1])?;
        }
        way.wait_and_read(&self.ours)
    }

    /// What a notification takes, on this thread.
    pub(super) fn time<'a>(
        &'a self,
        way: &mut dyn Way<'a>,
        order: Order,
        notifications: usize,
    ) -> io::Result<Sample> {
        let turns = notifications.div_ceil(self.ours.len());
        (0..turns.div_ceil(10).max(WARM_UP)).try_for_each(|_| self.turn(way, order))?;
        let stopwatch = Stopwatch::of_thread();
        (0..turns).try_for_each(|_| self.turn(way, order))?;
        Ok(stopwatch.per(turns * self.ours.len()))
    }
}

struct Ready {
    kind: Kind,
    order: Order,
    sockets: Sockets,
    effort: Effort,
}

impl Ready {
    fn prepare(kind: Kind, setting: &Setting, effort: Effort) -> io::Result<Box<dyn Trial>> {
        let sockets = Sockets::new(setting.get(Parameter::Batch))?;
        Ok(Box::new(Ready {
            kind,
            order: setting.order(),
            sockets,
            effort,
        }))
    }

    /// An implementation that knows all the sockets. It goes before the next one comes, and leaves them
    /// as they were.
    fn way(&self, implementation: Implementation) -> io::Result<Option<Box<dyn Way<'_> + '_>>> {
        let sockets = &self.sockets.ours;
        let mut way = ways::make(implementation, self.kind, sockets.len(), sockets.len())?;
        if let Some(way) = &mut way {
            way.add(sockets, 0)?;
        }
        Ok(way)
    }
}

impl Trial for Ready {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let Some(mut way) = self.way(implementation)? else {
            return Ok(None);
        };
        let sample = self
            .sockets
            .time(&mut *way, self.order, self.effort.notifications)?;
        Ok(Some(sample))
    }

    fn turns(&mut self, implementation: Implementation, turns: usize) -> io::Result<bool> {
        let Some(mut way) = self.way(implementation)? else {
            return Ok(false);
        };
        (0..turns).try_for_each(|_| self.sockets.turn(&mut *way, self.order))?;
        Ok(true)
    }
}
