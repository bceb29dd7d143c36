//! [`Case`]: one question, what is varied, and how it is measured.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;

/// What is varied. The names are those of the JSON output and of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// Sockets that are ready at once.
    Batch,
    Threads,
    Connections,
    /// Microseconds of computing for each request.
    Work,
    /// Registrations that nothing happens to.
    Idle,
    Deadlines,
    /// Operations at a time.
    UnderWay,
    /// 1: all threads run on the same; 2: who waits runs on another than who wakes.
    Processors,
    /// Percent of the highest rate.
    Load,
    /// How many percent of the requests block.
    Blocking,
    /// 1: the server has one processor, and the client the others; 0: they share all.
    Apart,
    /// Bytes of a file.
    Bytes,
    /// 1: the system has the files in memory; 0: it reads them from the disk each time.
    Cached,
    /// An [`Order`].
    Order,
}

impl Parameter {
    pub(crate) const ALL: [Parameter; 14] = [
        Parameter::Batch,
        Parameter::Threads,
        Parameter::Connections,
        Parameter::Work,
        Parameter::Idle,
        Parameter::Deadlines,
        Parameter::UnderWay,
        Parameter::Processors,
        Parameter::Load,
        Parameter::Blocking,
        Parameter::Apart,
        Parameter::Bytes,
        Parameter::Cached,
        Parameter::Order,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Parameter::Batch => "batch",
            Parameter::Threads => "threads",
            Parameter::Connections => "connections",
            Parameter::Work => "work",
            Parameter::Idle => "idle",
            Parameter::Deadlines => "deadlines",
            Parameter::UnderWay => "under-way",
            Parameter::Processors => "processors",
            Parameter::Load => "load",
            Parameter::Blocking => "blocking",
            Parameter::Apart => "apart",
            Parameter::Bytes => "bytes",
            Parameter::Cached => "cached",
            Parameter::Order => "order",
        }
    }

    /// A value as tables, JSON and options have it.
    pub(crate) fn show(self, value: usize) -> String {
        let order = Order::ALL.into_iter().find(|&it| it as usize == value);
        match (self, order) {
            (Parameter::Order, Some(order)) => order.name().to_owned(),
            _ => value.to_string(),
        }
    }

    pub(crate) fn parse(self, text: &str) -> Option<usize> {
        match self {
            Parameter::Order => Some(text.parse::<Order>().ok()? as usize),
            _ => text.parse().ok(),
        }
    }

    /// Whether each takes a file descriptor.
    pub(crate) const fn takes_descriptors(self) -> bool {
        matches!(self, Parameter::Connections | Parameter::Idle)
    }
}

/// Whether data arrive before or after a socket is armed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Written, then armed: a socket that is armed is ready.
    WrittenArmed,
    /// Armed, then written, as in a server whose clients wait for an answer: a socket that is armed is
    /// not ready.
    ArmedWritten,
}

impl Order {
    pub(crate) const ALL: [Order; 2] = [Order::WrittenArmed, Order::ArmedWritten];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Order::WrittenArmed => "written-armed",
            Order::ArmedWritten => "armed-written",
        }
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut orders = Order::ALL.into_iter();
        let found = orders.find(|it| it.name() == text);
        found.ok_or_else(|| {
            let names = Order::ALL.map(Order::name).join(" or ");
            format!("not an order: {text:?}; it is {names}")
        })
    }
}

/// Both orders.
pub(crate) const ORDERS: Axis = Axis {
    parameter: Parameter::Order,
    values: &[Order::WrittenArmed as usize, Order::ArmedWritten as usize],
    quick: &[Order::WrittenArmed as usize, Order::ArmedWritten as usize],
};

/// A parameter and its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) parameter: Parameter,
    pub(crate) values: &'static [usize],
    /// Those for a quick run.
    pub(crate) quick: &'static [usize],
}

/// One value for each parameter of a case.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Setting(Vec<(Parameter, usize)>);

impl Setting {
    /// The value of a parameter, 1 if the case does not have it.
    pub(crate) fn get(&self, parameter: Parameter) -> usize {
        let mut values = self.iter();
        let found = values.find(|&(it, _)| it == parameter);
        found.map_or(1, |(_, value)| value)
    }

    /// Written, then armed, if the case does not vary it.
    pub(crate) fn order(&self) -> Order {
        let is_armed_first = self.iter().any(|it| {
            let (parameter, value) = it;
            parameter == Parameter::Order && value == Order::ArmedWritten as usize
        });
        match is_armed_first {
            true => Order::ArmedWritten,
            false => Order::WrittenArmed,
        }
    }

    pub(crate) fn with(&self, parameter: Parameter, value: usize) -> Self {
        let mut setting = self.clone();
        setting.0.push((parameter, value));
        setting
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Parameter, usize)> {
        self.0.iter().copied()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (parameter, value)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            let (name, value) = (parameter.name(), parameter.show(value));
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |word: &str| {
            let (name, value) = word.split_once('=')?;
            let parameter = Parameter::ALL.into_iter().find(|it| it.name() == name)?;
            Some((parameter, parameter.parse(value)?))
        };
        let words = text.split_whitespace().map(pair);
        let pairs = words.collect::<Option<_>>();
        pairs
            .map(Setting)
            .ok_or_else(|| format!("no setting: {text:?}"))
    }
}

/// How much is done for one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Notifications, where they are counted out.
    pub(crate) notifications: usize,
    /// Milliseconds, where a client sets the pace.
    pub(crate) milliseconds: usize,
}

/// One question.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What is done, and what a figure is of.
    pub(crate) about: &'static str,
    /// Ratios are of this figure.
    pub(crate) compared_by: Figure,
    pub(crate) axes: &'static [Axis],
    /// The first one is what the others are compared to.
    pub(crate) implementations: fn() -> Vec<Implementation>,
    /// Into how many parts a round is split. Implementations alternate with each part, so that a busy
    /// moment of the machine falls on few of the samples.
    pub(crate) parts: usize,
    /// Whether [`Trial::turns`] works, so that a turn's system calls, instructions and allocations can
    /// be counted.
    pub(crate) is_counted: bool,
    pub(crate) prepare: fn(&Setting, Effort) -> io::Result<Box<dyn Trial>>,
}

/// A case with its parameters set.
pub(crate) trait Trial {
    /// Measure an implementation once. `None` where it does not apply.
    ///
    /// [`Implementation::Bare`] comes first in each round; what it takes is taken off the others.
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>>;

    /// Do this many turns, for someone who counts from outside. False where it does not apply.
    fn turns(&mut self, implementation: Implementation, turns: usize) -> io::Result<bool> {
        let _ = (implementation, turns);
        Ok(false)
    }
}
