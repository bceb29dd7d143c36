//! The report on a load.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::score::Score;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    mode: &'static str,
    connections: u32,
    pipeline: u32,
    seconds: f64,
    requests: u64,
    requests_per_second: f64,
    errors: u64,
    latency_us: Latency,
}

#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Report {
    pub(crate) fn new(
        mode: &'static str,
        connections: u32,
        pipeline: u32,
        time: Duration,
        score: &Score,
    ) -> Self {
        let seconds = time.as_secs_f64();
        Report {
            mode,
            connections,
            pipeline,
            seconds,
            requests: score.requests,
            requests_per_second: (score.requests as f64 / seconds).round(),
            errors: score.errors,
            latency_us: Latency {
                p50: score.percentile(50.0),
                p90: score.percentile(90.0),
                p99: score.percentile(99.0),
                p999: score.percentile(99.9),
                max: score.longest(),
            },
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency {
            p50,
            p90,
            p99,
            p999,
            max,
        } = self.latency_us;
        writeln!(
            f,
            "{}, {} connections, {} requests of each under way",
            self.mode, self.connections, self.pipeline
        )?;
        writeln!(f, "  requests         {:>12}", self.requests)?;
        writeln!(f, "  per second       {:>12}", self.requests_per_second)?;
        writeln!(f, "  errors           {:>12}", self.errors)?;
        writeln!(f, "  latency, 50 %    {p50:>12.1} us")?;
        writeln!(f, "           90 %    {p90:>12.1} us")?;
        writeln!(f, "           99 %    {p99:>12.1} us")?;
        writeln!(f, "           99.9 %  {p999:>12.1} us")?;
        write!(f, "           most    {max:>12.1} us")
    }
}
