//! What can be counted and does not depend on a quiet machine: system calls, instructions, allocations, bytes.
//!
//! The program runs itself, twice: with some turns and with more. The difference is what turns cost, without start and end. It
//! runs on one processor, so that it does not depend on chance, nor on the tools, who comes to a lock when; and its tracer
//! runs there too, because the two take turns.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread::{self, Thread};

use rustix::net::{AddressFamily, SocketType};
use serde_json::json;

use crate::notifications::{CASES, Kind, Side, Sockets, make};
use crate::servers::{Outcome, Session, connections, serve_keys, serve_owned};
use crate::{allocator, processors};

const SIDES: [(&str, Side); 4] = [
    // The turns' own reads and writes, which are taken off the others.
    ("bare", Side::Bare),
    ("keys", Side::Keys),
    ("owned", Side::Owned),
    ("drained", Side::Drained),
];

/// Threads at full load: every connection is ready all the time, and nobody reads. A turn is a call that hands back what the
/// thread had, and takes the next.
const SATURATED: &str = "saturated";
const THREADS: usize = 16;
const CONNECTIONS: usize = 128;

/// Registrations that nothing happens to.
const IDLE: &str = "idle";
const REGISTRATIONS: usize = 10_000;

/// How many turns of the first run: what happens every so many turns falls into both alike.
const FEW: usize = 64;

/// Prints a line of JSON for each case and side. Figures are of a turn, instructions of a notification.
pub(crate) fn run(asked: &str) -> io::Result<()> {
    for tool in ["strace", "valgrind"] {
        let outcome = Command::new(tool).arg("--version").output();
        outcome.map_err(|error| io::Error::new(error.kind(), format!("{tool}: {error}")))?;
    }
    processors::stay_on_first()?;
    let cases = CASES
        .iter()
        .flat_map(|(case, ..)| [1, 64].map(|batch| (*case, batch)));
    for (case, batch) in cases
        .chain([(SATURATED, 16)])
        .filter(|(case, _)| case.contains(asked))
    {
        let bare = per_turn(case, SIDES[0].0, batch)?.unwrap_or_default();
        for (side, _) in &SIDES[1..] {
            let Some(counted) = per_turn(case, side, batch)? else {
                continue;
            };
            let mut row = json!({ "case": case, "side": side, "batch": batch });
            for (figure, value) in counted {
                row[figure] = (value - bare.get(figure).copied().unwrap_or_default()).into();
            }
            println!("{row}");
        }
    }
    if IDLE.contains(asked) {
        // Not even bound: each takes a descriptor, and no port.
        let socket = || rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
        let sockets = (0..REGISTRATIONS).map(|_| Ok(UnixStream::from(socket()?)));
        let sockets = sockets.collect::<io::Result<Vec<_>>>()?;
        for (name, side) in [("keys", Side::Keys), ("owned", Side::Owned)] {
            let mut way = make(side, Kind::OneShot, 64)?.expect("it has this kind");
            let before = allocator::bytes();
            way.add(&sockets)?;
            let bytes = (allocator::bytes() - before) as f64 / REGISTRATIONS as f64;
            println!("{}", json!({ "case": IDLE, "side": name, "bytes": bytes }));
        }
    }
    Ok(())
}

type Figures = BTreeMap<&'static str, f64>;

/// `None` where the case is not for this side.
fn per_turn(case: &str, side: &str, batch: usize) -> io::Result<Option<Figures>> {
    // Enough for what differs from one start to another not to count. With several threads that is more.
    let notifications = if case == SATURATED { 16_384 } else { 4_096 };
    let more = (notifications / batch).next_multiple_of(FEW);
    let totals = |turns| totals(case, side, batch, turns);
    let (Some(few), Some(many)) = (totals(FEW)?, totals(FEW + more)?) else {
        return Ok(None);
    };
    let each = |(figure, total): (&'static str, f64)| {
        let notifications = if figure == "instructions" { batch } else { 1 };
        (
            figure,
            (total - few[figure]) / (more * notifications) as f64,
        )
    };
    Ok(Some(many.into_iter().map(each).collect()))
}

fn totals(case: &str, side: &str, batch: usize, turns: usize) -> io::Result<Option<Figures>> {
    let program = std::env::current_exe()?;
    let run = |tool: &[&str]| -> io::Result<(String, String)> {
        let output = Command::new(tool[0])
            .args(&tool[1..])
            .arg(&program)
            .args(["turns", case, side, &batch.to_string(), &turns.to_string()])
            .output()?;
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        match output.status.success() {
            true => Ok((stdout, stderr)),
            false => Err(io::Error::other(format!("{tool:?}: {stderr}"))),
        }
    };
    let (allocations, calls) = run(&["strace", "-f", "-c", "-U", "name,calls"])?;
    let Ok(allocations) = allocations.trim().parse::<f64>() else {
        return Ok(None);
    };
    // Its lines are a name and a number.
    let calls = |name: &str| {
        let mut lines = calls.lines().map(str::split_whitespace);
        let line = lines.find_map(|mut line| (line.next() == Some(name)).then_some(line));
        line.and_then(|mut line| line.next()?.parse().ok())
            .unwrap_or(0.0)
    };
    let (_, output) = run(&[
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
    ])?;
    // Its last lines have `Collected : 123`.
    let instructions = output.split("Collected :").nth(1);
    let instructions = instructions.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let instructions = instructions.ok_or_else(|| io::Error::other(output))?;
    Ok(Some(Figures::from([
        ("syscalls", calls("total")),
        ("futexes", calls("futex")),
        ("allocations", allocations),
        ("instructions", instructions),
    ])))
}

#[derive(clap::Args)]
pub(crate) struct Turns {
    /// Such as "one-shot, data first"
    case: String,
    /// keys, owned, drained, or bare
    side: String,
    /// Sockets that are ready at once
    batch: usize,
    turns: usize,
}

impl Turns {
    /// Does them, and prints how often something was allocated meanwhile: the process that is counted.
    pub(crate) fn run(&self) -> io::Result<()> {
        let side = SIDES.iter().find(|(name, _)| *name == self.side);
        let side = side.ok_or(io::ErrorKind::NotFound)?.1;
        if self.case == SATURATED {
            if matches!(side, Side::Keys | Side::Owned) {
                let before = allocator::times();
                saturate(side, self.batch, self.turns * self.batch)?;
                println!("{}", allocator::times() - before);
            }
            return Ok(());
        }
        let case = CASES.iter().find(|(name, ..)| *name == self.case);
        let &(_, kind, order, _) = case.ok_or(io::ErrorKind::NotFound)?;
        let sockets = Sockets::new(self.batch)?;
        let before = allocator::times();
        if let Some(mut way) = make(side, kind, self.batch)? {
            way.add(&sockets.ours)?;
            (0..self.turns).try_for_each(|_| sockets.turn(&mut *way, order))?;
            drop(way);
            println!("{}", allocator::times() - before);
        }
        Ok(())
    }
}

/// Gives and takes so many notifications.
fn saturate(side: Side, room: usize, notifications: usize) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut streams, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        peer.write_all(&[1])?;
        peers.push(peer);
        streams.push(listener.accept()?.0);
    }
    let left = Arc::new(AtomicIsize::new(notifications as isize));
    let waiting = thread::current();
    let session = Counting {
        left: Arc::clone(&left),
        waiting,
    };
    let mut until = || {
        while left.load(Ordering::Relaxed) > 0 {
            thread::park();
        }
        Ok(())
    };
    let connections = connections(streams, &session);
    match side {
        Side::Keys => serve_keys(THREADS, room, connections, &mut until),
        _ => serve_owned(THREADS, room, connections, &mut until),
    }
}

/// Counts, and leaves the connection as it is.
#[derive(Clone)]
struct Counting {
    left: Arc<AtomicIsize>,
    waiting: Thread,
}

impl Session for Counting {
    fn serve<S: Read + Write>(&mut self, _: S) -> io::Result<Outcome> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1 => {
                self.waiting.unpark();
                Ok(Outcome::Ended)
            }
            // What comes after the end does not count.
            left if left < 1 => Ok(Outcome::Ended),
            _ => Ok(Outcome::More),
        }
    }
}
