//! [`Figure`]: what can be known of an implementation; [`Sample`]: what one measurement found; [`Summary`]:
//! what all rounds found.

use std::collections::BTreeMap;

/// A quantity that is measured or counted. The names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    /// Wall time: nanoseconds for each notification, all in all.
    Gross,
    /// The same without the case's own reads and writes.
    Net,
    /// CPU time: nanoseconds for each notification, all in all. Of the measuring thread, or of the
    /// process where several threads take part.
    Cpu,
    /// The same without the case's own reads and writes.
    NetCpu,
    /// Microseconds from the time that a request was scheduled for to its whole answer: the median.
    P50,
    /// The same: 99 of 100 took at most this long.
    P99,
    /// The same: 999 of 1,000 took at most this long.
    P999,
    /// The same: the longest.
    Longest,
    /// How many handlers computed at once on average, for each place.
    Computing,
    /// Answers that the client got in a second.
    Rate,
    /// How many percent of the requests that were due were not answered in time, if more than 2: the
    /// server does not keep up.
    Behind,
    /// CPU time of the server's process for each request, in microseconds.
    ServerCpu,
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
    pub(crate) const ALL: [Figure; 19] = [
        Figure::Gross,
        Figure::Net,
        Figure::Cpu,
        Figure::NetCpu,
        Figure::P50,
        Figure::P99,
        Figure::P999,
        Figure::Longest,
        Figure::Computing,
        Figure::Rate,
        Figure::Behind,
        Figure::ServerCpu,
        Figure::Switches,
        Figure::SystemCalls,
        Figure::Futexes,
        Figure::Instructions,
        Figure::Allocations,
        Figure::Bytes,
        Figure::KernelBytes,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Figure::Gross => "ns_per_notification",
            Figure::Net => "net_ns_per_notification",
            Figure::Cpu => "cpu_ns_per_notification",
            Figure::NetCpu => "net_cpu_ns_per_notification",
            Figure::P50 => "latency_p50_us",
            Figure::P99 => "latency_p99_us",
            Figure::P999 => "latency_p999_us",
            Figure::Longest => "latency_longest_us",
            Figure::Computing => "computing_per_place",
            Figure::Rate => "requests_per_second",
            Figure::Behind => "behind_percent",
            Figure::ServerCpu => "server_cpu_us_per_request",
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
            Figure::Cpu => "cpu ns",
            Figure::NetCpu => "net cpu ns",
            Figure::P50 => "p50 µs",
            Figure::P99 => "p99 µs",
            Figure::P999 => "p99.9 µs",
            Figure::Longest => "longest µs",
            Figure::Computing => "computing",
            Figure::Rate => "requests/s",
            Figure::Behind => "behind %",
            Figure::ServerCpu => "cpu µs/req",
            Figure::Switches => "switches",
            Figure::SystemCalls => "syscalls",
            Figure::Futexes => "futexes",
            Figure::Instructions => "instr.",
            Figure::Allocations => "allocs",
            Figure::Bytes => "bytes",
            Figure::KernelBytes => "kernel",
        }
    }

    /// A value with the decimals that are worth printing.
    pub(crate) fn show(self, value: f64) -> String {
        let decimals = match self {
            Figure::P50 | Figure::P99 | Figure::P999 | Figure::Longest | Figure::Behind => 1,
            Figure::Computing
            | Figure::ServerCpu
            | Figure::Switches
            | Figure::SystemCalls
            | Figure::Futexes
            | Figure::Allocations => 2,
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

/// The lower and the upper quartile of each figure.
pub(crate) type Spread = BTreeMap<Figure, [f64; 2]>;

/// What all rounds found.
#[derive(Clone, Default)]
pub(crate) struct Summary {
    pub(crate) medians: Sample,
    pub(crate) spread: Spread,
}

impl Summary {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let mut values = BTreeMap::<Figure, Vec<f64>>::new();
        for sample in samples {
            for (&figure, &value) in sample {
                values.entry(figure).or_default().push(value);
            }
        }
        let mut summary = Summary::default();
        for (figure, mut values) in values {
            values.sort_by(f64::total_cmp);
            let [lower, median, upper] = [0.25, 0.5, 0.75].map(|part| quantile(&values, part));
            summary.medians.insert(figure, median);
            summary.spread.insert(figure, [lower, upper]);
        }
        summary
    }
}

/// Between the two values that are next to it, in proportion.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    below + (above - below) * place.fract()
}

/// With thousands set apart.
pub(crate) fn grouped(value: f64) -> String {
    if value.abs() < 10.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value <= -0.5 { "−" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
