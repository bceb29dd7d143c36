//! How long an answer takes at a rate that the server can bear: the responder of `http`, and a client that
//! sends at scheduled times.
//!
//! A client that waits for an answer before it sends again sends less while the server is slow, and so
//! measures best where it matters most. This one sends on time, whatever has been answered, and a request
//! counts from the time that it was scheduled for: if one is late, those behind it are.

use std::io;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::http;
use crate::client::{Load, Pace};
use crate::exchange::Exchange;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;

pub(crate) const CASE: Case = Case {
    name: "latency",
    about: "the HTTP responder at a part of the highest rate, requests sent at scheduled times",
    compared_by: Figure::P99,
    axes: &[
        http::APART,
        Axis {
            parameter: Parameter::Connections,
            values: &[100],
            quick: &[100],
        },
        Axis {
            parameter: Parameter::Load,
            values: &[20, 50, 80],
            quick: &[50],
        },
    ],
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Ok(Box::new(Latency::new(setting, effort)?)),
    ..http::CASE
};

/// How much longer than other clients this one sends: one in a thousand requests is few.
const LONGER: usize = 2;

struct Latency {
    load: Load,
}

impl Latency {
    /// Find the highest rate, and take the part of it that is asked for.
    fn new(setting: &Setting, effort: Effort) -> io::Result<Self> {
        let closed = Load {
            connections: setting.get(Parameter::Connections),
            pace: Pace::Depth(1),
            milliseconds: effort.milliseconds,
            exchange: Exchange::Http,
            blocking: 0,
            is_apart: http::is_apart(setting),
        };
        let reference = Implementation::Tokio;
        let highest = http::measure(reference, closed)?[&Figure::Rate];
        let percent = setting.get(Parameter::Load);
        let rate = highest * percent as f64 / 100.0;
        // Not among the rows, which may be JSON.
        eprintln!(
            "\n{setting}: {reference} answers {highest:.0} requests/s; {rate:.0} are sent to each"
        );
        Ok(Latency {
            load: Load {
                pace: Pace::Rate(rate as usize),
                milliseconds: effort.milliseconds * LONGER,
                ..closed
            },
        })
    }
}

impl Trial for Latency {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        http::measure(implementation, self.load).map(Some)
    }
}
