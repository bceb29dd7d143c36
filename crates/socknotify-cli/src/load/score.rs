//! What was measured.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::fates::Fates;

/// Latencies are kept in nanoseconds, to three digits, up to an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// What a thread has measured, or all of them.
pub(crate) struct Score {
    pub(crate) requests: u64,
    pub(crate) fates: Fates,
    /// Connections that were made anew, since the server had said that it closes them.
    pub(crate) reconnects: u64,
    /// Requests that were not answered by the end, though they had waited for long.
    pub(crate) unanswered: u64,
    /// Connections that have had an answer, and then such a request.
    pub(crate) silent: u64,
    pub(crate) latencies: Histogram<u64>,
}

impl Score {
    pub(crate) fn new() -> Self {
        Score {
            requests: 0,
            fates: Fates::default(),
            reconnects: 0,
            unanswered: 0,
            silent: 0,
            latencies: Histogram::new_with_bounds(1, LONGEST, 3)
                .expect("the bounds are in order, and so are the digits"),
        }
    }

    pub(crate) fn answered(&mut self, count: usize, after: Duration) {
        let latency = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.requests += count as u64;
        self.latencies
            .saturating_record_n(latency.max(1), count as u64);
    }

    /// How long a request may be without an answer at the end.
    pub(crate) fn patience(&self, least: Duration) -> Duration {
        least.max(2 * Duration::from_nanos(self.latencies.max()))
    }

    /// Requests of one connection have waited for so long, and the time is over.
    pub(crate) fn unanswered(&mut self, waits: impl Iterator<Item = Duration>, is_answered: bool) {
        let before = self.unanswered;
        for wait in waits {
            self.unanswered += 1;
            let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            self.latencies.saturating_record(wait.max(1));
        }
        self.silent += u64::from(is_answered && self.unanswered > before);
    }

    pub(crate) fn add(&mut self, other: &Score) {
        self.requests += other.requests;
        self.reconnects += other.reconnects;
        self.unanswered += other.unanswered;
        self.silent += other.silent;
        self.fates.add(&other.fates);
        // They have the same bounds, and so it cannot fail.
        let _ = self.latencies.add(&other.latencies);
    }

    /// The latency in microseconds that so many percent of the requests did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        microseconds(self.latencies.value_at_percentile(percent))
    }

    pub(crate) fn longest(&self) -> f64 {
        microseconds(self.latencies.max())
    }
}

/// To the digits that the histogram knows.
fn microseconds(nanoseconds: u64) -> f64 {
    let time = nanoseconds as f64 / 1000.0;
    let decimals = decimals(time);
    let unit = 10_f64.powi(decimals);
    match decimals {
        // To be divided by what can be represented exactly.
        0.. => (time * unit).round() / unit,
        _ => (time * unit).round() * 10_f64.powi(-decimals),
    }
}

/// How many decimals a number with three digits has: less than none for a large one.
pub(crate) fn decimals(number: f64) -> i32 {
    match number > 0.0 {
        true => 2 - number.log10().floor() as i32,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_three_digits() {
        for (nanoseconds, expected) in [
            (0, "0"),
            (5, "0.005"),
            (999, "0.999"),
            (1234, "1.23"),
            (99_961, "100"),
            (1_234_567, "1230"),
            (98_765_432_100, "98800000"),
        ] {
            assert_eq!(microseconds(nanoseconds).to_string(), expected);
        }
    }
}
