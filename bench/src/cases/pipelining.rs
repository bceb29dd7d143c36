//! An echo server whose clients do not wait: while a request is worked on, the next ones arrive on the
//! same connection.
//!
//! Requests are received and answered one by one. What arrives meanwhile is nothing that another thread
//! could do anything about: a thread that wakes for it wakes for nothing.

use std::io;
use std::time::Duration;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::echo::{compute, work};
use crate::cases::load;
use crate::client::{Load, Pace};
use crate::exchange::{Exchange, MESSAGE};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::servers::{Protocol, Shape};

pub(crate) const CASE: Case = Case {
    name: "pipelining",
    about: "an echo server, 20 µs of work for each request, 4 messages under way on each connection",
    compared_by: Figure::Rate,
    axes: &[
        Axis {
            parameter: Parameter::Work,
            values: &[20],
            quick: &[20],
        },
        Axis {
            parameter: Parameter::Connections,
            values: &[1, 16],
            quick: &[16],
        },
        Axis {
            parameter: Parameter::Threads,
            values: &[2, 4, 16],
            quick: &[2, 16],
        },
    ],
    implementations: || {
        use Implementation::*;
        Implementation::servers(&[RawEpoll, RawEpollEach, RawUring], &[Polling, Mio, Tokio])
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Ok(Box::new(Pipelining::new(setting, effort))),
};

struct Pipelining {
    shape: Shape,
    protocol: OneByOne,
    load: Load,
}

impl Pipelining {
    fn new(setting: &Setting, effort: Effort) -> Self {
        Pipelining {
            shape: Shape {
                threads: setting.get(Parameter::Threads),
                room: 3,
            },
            protocol: OneByOne {
                work: work(setting),
            },
            load: Load {
                connections: setting.get(Parameter::Connections),
                pace: Pace::Depth(4),
                milliseconds: effort.milliseconds,
                exchange: Exchange::Echo,
                blocking: 0,
                is_apart: false,
            },
        }
    }
}

impl Trial for Pipelining {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        load::measure(implementation, self.shape, &self.protocol, self.load).map(Some)
    }
}

#[derive(Clone)]
struct OneByOne {
    work: Duration,
}

impl Protocol for OneByOne {
    const ROOM: usize = MESSAGE;

    fn answer(&mut self, received: &[u8], answers: &mut Vec<u8>) -> io::Result<()> {
        compute(self.work);
        answers.extend_from_slice(received);
        Ok(())
    }
}
