//! What a notification costs beside registrations that nothing happens to, by how many those are.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketType};

use crate::case::{Axis, Case, Effort, ORDERS, Order, Parameter, Setting, Trial};
use crate::cases::ready::Sockets;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::ways::{self, Kind};

pub(crate) const CASE: Case = Case {
    name: "idle",
    about: "one thread, one-shot, 64 ready at once: a notification, beside idle registrations",
    compared_by: Figure::NetCpu,
    axes: &[
        ORDERS,
        Axis {
            parameter: Parameter::Idle,
            values: &[10, 1_000, 100_000, 1_000_000],
            quick: &[10, 1_000, 10_000],
        },
    ],
    implementations,
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Idle::prepare(setting, effort),
};

fn implementations() -> Vec<Implementation> {
    use Implementation::*;
    Implementation::around(&[Bare, RawEpoll, RawUring], &[Polling])
}

const BATCH: usize = 64;

struct Idle {
    idle: Vec<UnixStream>,
    active: Sockets,
    order: Order,
    effort: Effort,
}

/// Sockets that nothing happens to.
pub(super) fn idle_sockets(count: usize) -> io::Result<Vec<UnixStream>> {
    // Not even bound: each takes a descriptor, and no port.
    let socket = || rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    (0..count).map(|_| Ok(socket()?.into())).collect()
}

impl Idle {
    fn prepare(setting: &Setting, effort: Effort) -> io::Result<Box<dyn Trial>> {
        Ok(Box::new(Idle {
            active: Sockets::new(BATCH)?,
            order: setting.order(),
            idle: idle_sockets(setting.get(Parameter::Idle))?,
            effort,
        }))
    }
}

impl Trial for Idle {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let sockets = BATCH + self.idle.len();
        let Some(mut way) = ways::make(implementation, Kind::OneShot, BATCH, sockets)? else {
            return Ok(None);
        };
        way.add(&self.active.ours, 0)?;
        way.add(&self.idle, BATCH)?;
        let sample = self
            .active
            .time(&mut *way, self.order, self.effort.notifications)?;
        Ok(Some(sample))
    }
}
