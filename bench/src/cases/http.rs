//! An HTTP responder: it parses each request with `httparse`, keeps the connection alive, and answers
//! with the same bytes.

use std::io;
use std::thread;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::load;
use crate::client::{Load, Pace};
use crate::exchange::{Exchange, RESPONSE};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::servers::{Protocol, Shape};

pub(crate) const CASE: Case = Case {
    name: "http",
    about: "an HTTP responder; ports have 4 threads, the others one for each processor",
    compared_by: Figure::Rate,
    axes: &[
        APART,
        Axis {
            parameter: Parameter::Connections,
            values: &[100, 1000],
            quick: &[100],
        },
    ],
    implementations: || {
        use Implementation::*;
        Implementation::servers(&[Tokio, RawEpollEach, RawUring], &[Mio])
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Ok(Box::new(Http::new(setting, effort))),
};

struct Http {
    load: Load,
}

impl Http {
    fn new(setting: &Setting, effort: Effort) -> Self {
        Http {
            load: Load {
                connections: setting.get(Parameter::Connections),
                pace: Pace::Depth(1),
                milliseconds: effort.milliseconds,
                exchange: Exchange::Http,
                blocking: 0,
                is_apart: is_apart(setting),
            },
        }
    }
}

impl Trial for Http {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        measure(implementation, self.load).map(Some)
    }
}

/// First what people believe: one side does not take the other's time.
pub(super) const APART: Axis = Axis {
    parameter: Parameter::Apart,
    values: &[1, 0],
    quick: &[1],
};

pub(super) fn is_apart(setting: &Setting) -> bool {
    setting.iter().any(|it| it == (Parameter::Apart, 1))
}

/// A responder under load.
pub(super) fn measure(implementation: Implementation, load: Load) -> io::Result<Sample> {
    let threads = match implementation.is_ours() {
        true => 4,
        false if load.is_apart => 1,
        false => thread::available_parallelism()?.get(),
    };
    let shape = Shape { threads, room: 64 };
    load::measure(implementation, shape, &Responder::default(), load)
}

/// What has been received and not been answered.
#[derive(Clone, Default)]
struct Responder {
    received: Vec<u8>,
}

impl Protocol for Responder {
    /// Take every complete request, and put its answer down.
    fn answer(&mut self, received: &[u8], answers: &mut Vec<u8>) -> io::Result<()> {
        self.received.extend_from_slice(received);
        let mut taken = 0;
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            let outcome = request.parse(&self.received[taken..]);
            match outcome.map_err(io::Error::other)? {
                httparse::Status::Complete(length) => {
                    taken += length;
                    answers.extend_from_slice(RESPONSE);
                }
                httparse::Status::Partial => break,
            }
        }
        self.received.drain(..taken);
        Ok(())
    }
}
