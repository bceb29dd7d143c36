//! [`Figure`]: what can be known of an implementation, and [`Sample`], what one measurement found.

use std::collections::BTreeMap;

/// A quantity that is measured or counted. The names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    /// Nanoseconds for each notification, all in all.
    Gross,
    /// The same without the case's own reads and writes.
    Net,
    /// Answers that the client got in a second.
    Rate,
    /// How often a thread of the server had to wait, for each request.
    Switches,
    /// System calls, without the case's own reads and writes.
    SystemCalls,
    /// `futex` calls among them.
    Futexes,
    /// Instructions in user space, without those of the case's own reads and writes.
    Instructions,
    /// Calls of the allocator.
    Allocations,
    /// Bytes that the process allocated for each registration.
    Bytes,
    /// Bytes that the kernel allocated for each registration.
    KernelBytes,
}

impl Figure {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Figure::Gross => "ns_per_notification",
            Figure::Net => "net_ns_per_notification",
            Figure::Rate => "requests_per_second",
            Figure::Switches => "context_switches",
            Figure::SystemCalls => "syscalls_per_turn",
            Figure::Futexes => "futex_calls_per_turn",
            Figure::Instructions => "instructions_per_notification",
            Figure::Allocations => "allocations_per_turn",
            Figure::Bytes => "bytes_per_registration",
            Figure::KernelBytes => "kernel_bytes_per_registration",
        }
    }

    /// The head of its column.
    pub(crate) const fn heading(self) -> &'static str {
        match self {
            Figure::Gross => "ns",
            Figure::Net => "net ns",
            Figure::Rate => "requests/s",
            Figure::Switches => "switches",
            Figure::SystemCalls => "syscalls",
            Figure::Futexes => "futexes",
            Figure::Instructions => "instr.",
            Figure::Allocations => "allocs",
            Figure::Bytes => "bytes",
            Figure::KernelBytes => "kernel",
        }
    }

    /// What its axis in a plot says.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Figure::Gross => "nanoseconds",
            Figure::Net => "nanoseconds, net of the case's own reads and writes",
            Figure::Rate => "requests per second",
            Figure::Switches => "waits for each request",
            Figure::SystemCalls | Figure::Futexes => "calls per turn",
            Figure::Instructions => "instructions per notification",
            Figure::Allocations => "allocations per turn",
            Figure::Bytes | Figure::KernelBytes => "bytes per registration",
        }
    }

    /// A value with the decimals that are worth printing.
    pub(crate) fn show(self, value: f64) -> String {
        let decimals = match self {
            Figure::Switches | Figure::SystemCalls | Figure::Futexes | Figure::Allocations => 2,
            _ => 0,
        };
        // What is almost nothing has no sign.
        let scale = 10_f64.powi(decimals);
        let value = (value * scale).round() / scale + 0.0;
        format!("{value:.*}", decimals as usize)
    }

    /// Whether a value is too small to be printed.
    pub(crate) fn is_nothing(self, value: f64) -> bool {
        self.show(value) == self.show(0.0)
    }
}

/// What one measurement found.
pub(crate) type Sample = BTreeMap<Figure, f64>;

/// The median of each figure.
pub(crate) fn medians(samples: &[Sample]) -> Sample {
    let mut values = BTreeMap::<Figure, Vec<f64>>::new();
    for sample in samples {
        for (&figure, &value) in sample {
            values.entry(figure).or_default().push(value);
        }
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() % 2 {
            0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        }
    };
    values
        .into_iter()
        .map(|(figure, values)| (figure, median(values)))
        .collect()
}
