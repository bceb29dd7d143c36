//! An echo server, by its threads, connections, and how much computing a request takes.
//!
//! A thread takes up to 3 events at a time, as Microsoft's multi-threaded server does. A single thread also
//! runs with up to 64.

use std::io;
use std::time::{Duration, Instant};

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::load;
use crate::client::{Load, Pace};
use crate::exchange::Exchange;
use crate::figure::{Figure, Sample};
use crate::foreign::Library;
use crate::implementation::Implementation;
use crate::servers::{self, Protocol, Shape};

pub(crate) const CASE: Case = Case {
    name: "echo",
    about: "an echo server of many threads, one message under way on each connection",
    compared_by: Figure::Rate,
    axes: &[
        Axis {
            parameter: Parameter::Connections,
            values: &[100, 10_000],
            quick: &[100],
        },
        Axis {
            parameter: Parameter::Work,
            values: &[0, 20],
            quick: &[0],
        },
        Axis {
            parameter: Parameter::Threads,
            values: &[1, 2, 4, 16, 64],
            quick: &[1, 16],
        },
    ],
    implementations: || {
        use Implementation::*;
        Implementation::servers(
            &[RawEpoll, RawEpollEach, RawUring],
            &[
                Polling,
                Mio,
                Tokio,
                Foreign(Library::Libuv),
                Foreign(Library::Libevent),
            ],
        )
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Ok(Box::new(Echo::new(3, setting, effort))),
};

pub(crate) const ONE_THREAD: Case = Case {
    name: "echo-one",
    about: "an echo server of one thread, which takes up to 64 events at a time",
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[100, 10_000],
        quick: &[100],
    }],
    prepare: |setting, effort| {
        // No work either.
        let setting = setting.with(Parameter::Work, 0);
        Ok(Box::new(Echo::new(64, &setting, effort)))
    },
    ..CASE
};

struct Echo {
    shape: Shape,
    protocol: Echoing,
    load: Load,
}

impl Echo {
    fn new(room: usize, setting: &Setting, effort: Effort) -> Self {
        Echo {
            shape: Shape {
                threads: setting.get(Parameter::Threads),
                room,
            },
            protocol: Echoing {
                work: work(setting),
            },
            load: Load {
                connections: setting.get(Parameter::Connections),
                pace: Pace::Depth(1),
                milliseconds: effort.milliseconds,
                exchange: Exchange::Echo,
                blocking: 0,
                is_apart: false,
            },
        }
    }
}

impl Trial for Echo {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let sample = match implementation {
            Implementation::Foreign(library) => {
                let work = self.protocol.work;
                load::measure_server(self.load, |connections, until| {
                    servers::echo_foreign(library, self.shape, work, connections, until)
                })
            }
            _ => load::measure(implementation, self.shape, &self.protocol, self.load),
        };
        sample.map(Some)
    }
}

#[derive(Clone)]
struct Echoing {
    work: Duration,
}

impl Protocol for Echoing {
    fn answer(&mut self, received: &[u8], answers: &mut Vec<u8>) -> io::Result<()> {
        compute(self.work);
        answers.extend_from_slice(received);
        Ok(())
    }
}

/// How long computing takes for each request.
pub(super) fn work(setting: &Setting) -> Duration {
    Duration::from_micros(setting.get(Parameter::Work) as u64)
}

pub(super) fn compute(time: Duration) {
    if time > Duration::ZERO {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}
