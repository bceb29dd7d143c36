//! What one notification costs: N socket pairs on one thread.
//!
//! Each turn writes one byte to every pair, takes all notifications, reads each byte, and arms again
//! what has to be armed. `net` is the cost with the writes and reads taken off, which are measured
//! in the same round.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::median;
use crate::ways::{Kind, NAMES, Pairs, Reads, Way, make};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Numbers of sockets that are ready in each turn.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,512")]
    batch: Vec<usize>,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Notifications in each measurement.
    #[arg(long, default_value_t = 200_000)]
    notifications: usize,
    /// Few rounds and notifications, for a first look.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object for each implementation and number of sockets.
    #[arg(long)]
    json: bool,
    /// Measure this implementation alone, in one round; for profilers.
    #[arg(long)]
    only: Option<String>,
    /// Measure this kind of notification alone.
    #[arg(long)]
    kind: Option<String>,
}

impl Options {
    fn rounds(&self) -> usize {
        match (self.only.is_some(), self.quick) {
            (true, _) => 1,
            (_, true) => self.rounds.min(3),
            _ => self.rounds,
        }
    }

    fn notifications(&self) -> usize {
        match self.quick {
            true => self.notifications.min(20_000),
            false => self.notifications,
        }
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let wanted = |kind: &Kind| self.kind.as_ref().is_none_or(|name| name == kind.name());
        Kind::ALL.into_iter().filter(wanted)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        let wanted = |name: &&str| self.only.as_ref().is_none_or(|only| only == name);
        NAMES.into_iter().filter(wanted)
    }
}

/// What was measured of one implementation.
struct Cost {
    name: &'static str,
    /// Nanoseconds per notification, reads and writes among them: one for each round.
    gross: Vec<f64>,
    /// The same without them.
    net: Vec<f64>,
}

/// Nanoseconds per notification.
fn measure(way: &mut dyn Way, pairs: &Pairs, notifications: usize) -> io::Result<f64> {
    let turns = notifications.div_ceil(pairs.len());
    let mut time = Duration::ZERO;
    for turn in 0..turns + turns / 10 {
        let start = Instant::now();
        for (_, peer) in pairs {
            (&mut &*peer).write_all(&[1])?;
        }
        way.turn(pairs)?;
        // The first tenth warms up.
        if turn >= turns / 10 {
            time += start.elapsed();
        }
    }
    Ok(time.as_nanos() as f64 / (turns * pairs.len()) as f64)
}

/// All implementations in turn, on the same sockets, and again in each round.
fn compare(options: &Options, kind: Kind, pairs: &Pairs) -> io::Result<Vec<Cost>> {
    let mut costs: Vec<Cost> = options
        .names()
        .map(|name| Cost {
            name,
            gross: Vec::new(),
            net: Vec::new(),
        })
        .collect();
    for _ in 0..options.rounds() {
        let base = measure(&mut Reads, pairs, options.notifications())?;
        for cost in &mut costs {
            // It goes before the next one comes, and leaves the sockets as they were.
            if let Some(mut way) = make(cost.name, kind, pairs)? {
                let gross = measure(&mut *way, pairs, options.notifications())?;
                cost.gross.push(gross);
                cost.net.push(gross - base);
            }
        }
    }
    costs.retain(|cost| !cost.gross.is_empty());
    Ok(costs)
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    if !options.json {
        println!(
            "ready: nanoseconds per notification; median of {} rounds",
            options.rounds()
        );
    }
    for kind in options.kinds() {
        for &batch in &options.batch {
            let pairs = (0..batch)
                .map(|_| UnixStream::pair())
                .collect::<io::Result<Vec<_>>>()?;
            let costs = compare(options, kind, &pairs)?;
            report(options, kind, batch, costs);
        }
    }
    Ok(())
}

fn report(options: &Options, kind: Kind, batch: usize, costs: Vec<Cost>) {
    if !options.json {
        println!("\n{}, {batch} ready:", kind.name());
        println!("  {:<20} {:>8} {:>8} {:>7}", "", "gross", "net", "ratio");
    }
    let mut reference = None;
    for Cost { name, gross, net } in costs {
        let (gross, net) = (median(gross), median(net));
        let ratio = net / *reference.get_or_insert(net);
        match options.json {
            true => println!(
                "{}",
                json!({
                    "case": format!("ready {}", kind.name()),
                    "impl": name,
                    "batch": batch,
                    "threads": 1,
                    "connections": batch,
                    "ns_per_notification": gross,
                    "net_ns_per_notification": net,
                    "ratio": ratio,
                })
            ),
            false => println!("  {name:<20} {gross:>8.0} {net:>8.0} {ratio:>7.2}"),
        }
    }
}
