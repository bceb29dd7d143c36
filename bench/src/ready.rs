//! What one notification costs: N socket pairs on one thread.
//!
//! Each turn writes one byte to every pair, takes all notifications, reads each byte, and arms again
//! what has to be armed. `net` is the cost with the writes and reads taken off, which are measured
//! in the same round.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use socknotify::{CompletionPort, Entry, EventFilter, Registration, Trigger};

use crate::median;

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
    /// Measure this way alone, in one round; for profilers.
    #[arg(long)]
    only: Option<String>,
}

/// A way to hear of ready sockets.
trait Way {
    fn name(&self) -> &'static str;
    /// Take everything that is ready, read it, and see that the next turn is heard of too.
    fn turn(&mut self, pairs: &[(UnixStream, UnixStream)]) -> io::Result<()>;
}

fn read_byte(mut socket: &UnixStream) -> io::Result<()> {
    socket.read_exact(&mut [0])
}

/// The writes and reads alone.
struct Baseline;

impl Way for Baseline {
    fn name(&self) -> &'static str {
        "write and read"
    }

    fn turn(&mut self, pairs: &[(UnixStream, UnixStream)]) -> io::Result<()> {
        pairs.iter().try_for_each(|(socket, _)| read_byte(socket))
    }
}

struct Socknotify<'a> {
    port: CompletionPort,
    trigger: Trigger,
    entries: Vec<Entry>,
    again: Vec<Registration<'a>>,
    pairs: &'a [(UnixStream, UnixStream)],
    name: &'static str,
}

impl<'a> Socknotify<'a> {
    fn new(
        pairs: &'a [(UnixStream, UnixStream)],
        trigger: Trigger,
        name: &'static str,
    ) -> io::Result<Self> {
        let port = CompletionPort::new()?;
        for (key, (socket, _)) in pairs.iter().enumerate() {
            port.register(Registration::enable(socket, key, EventFilter::IN, trigger))??;
        }
        Ok(Socknotify {
            port,
            trigger,
            entries: vec![Entry::default(); pairs.len()],
            again: Vec::with_capacity(pairs.len()),
            pairs,
            name,
        })
    }
}

impl Way for Socknotify<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn turn(&mut self, _: &[(UnixStream, UnixStream)]) -> io::Result<()> {
        let mut left = self.pairs.len();
        while left > 0 {
            let taken = self
                .port
                .process(&mut self.again, &mut self.entries, None)?;
            self.again.clear();
            left -= taken.len();
            for entry in taken {
                let key = entry.completion_key;
                let socket = &self.pairs[key].0;
                read_byte(socket)?;
                if self.trigger.contains(Trigger::ONESHOT) {
                    self.again.push(Registration::enable(
                        socket,
                        key,
                        EventFilter::IN,
                        self.trigger,
                    ));
                }
            }
        }
        Ok(())
    }
}

struct RawEpoll {
    set: std::os::fd::OwnedFd,
    flags: EventFlags,
    events: Vec<epoll::Event>,
    name: &'static str,
}

impl RawEpoll {
    fn new(
        pairs: &[(UnixStream, UnixStream)],
        flags: EventFlags,
        name: &'static str,
    ) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = flags | EventFlags::IN;
        for (key, (socket, _)) in pairs.iter().enumerate() {
            epoll::add(&set, socket, EventData::new_u64(key as u64), flags)?;
        }
        Ok(RawEpoll {
            set,
            flags,
            events: Vec::with_capacity(pairs.len()),
            name,
        })
    }
}

impl Way for RawEpoll {
    fn name(&self) -> &'static str {
        self.name
    }

    fn turn(&mut self, pairs: &[(UnixStream, UnixStream)]) -> io::Result<()> {
        let mut left = pairs.len();
        while left > 0 {
            self.events.clear();
            left -= epoll::wait(
                &self.set,
                rustix::buffer::spare_capacity(&mut self.events),
                None,
            )?;
            for event in &self.events {
                let data = event.data;
                let socket = &pairs[data.u64() as usize].0;
                read_byte(socket)?;
                if self.flags.contains(EventFlags::ONESHOT) {
                    epoll::modify(&self.set, socket.as_fd(), data, self.flags)?;
                }
            }
        }
        Ok(())
    }
}

/// Nanoseconds per notification.
fn measure(
    way: &mut dyn Way,
    pairs: &[(UnixStream, UnixStream)],
    notifications: usize,
) -> io::Result<f64> {
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

pub(crate) fn run(options: &Options) -> io::Result<()> {
    println!(
        "ready: nanoseconds per notification, net of writes and reads; median of {} rounds",
        options.rounds
    );
    let oneshot = Trigger::ONESHOT | Trigger::LEVEL;
    for &batch in &options.batch {
        let pairs = (0..batch)
            .map(|_| UnixStream::pair())
            .collect::<io::Result<Vec<_>>>()?;
        let mut rates: Vec<(&str, Vec<f64>)> = Vec::new();
        for _ in 0..options.rounds {
            // Each way in turn, on the same sockets, and none of them left behind for the next.
            let mut record = |way: &mut dyn Way| -> io::Result<()> {
                if options.only.as_ref().is_some_and(|only| only != way.name()) {
                    return Ok(());
                }
                let rate = measure(way, &pairs, options.notifications)?;
                match rates.iter_mut().find(|(name, _)| *name == way.name()) {
                    Some((_, rates)) => rates.push(rate),
                    None => rates.push((way.name(), vec![rate])),
                }
                Ok(())
            };
            record(&mut Baseline)?;
            record(&mut RawEpoll::new(
                &pairs,
                EventFlags::ONESHOT,
                "raw epoll one-shot",
            )?)?;
            record(&mut Socknotify::new(
                &pairs,
                oneshot,
                "socknotify one-shot",
            )?)?;
            record(&mut RawEpoll::new(
                &pairs,
                EventFlags::ET,
                "raw epoll edge",
            )?)?;
            record(&mut Socknotify::new(
                &pairs,
                Trigger::EDGE,
                "socknotify edge",
            )?)?;
            record(&mut RawEpoll::new(
                &pairs,
                EventFlags::empty(),
                "raw epoll level",
            )?)?;
            record(&mut Socknotify::new(
                &pairs,
                Trigger::LEVEL,
                "socknotify level",
            )?)?;
        }
        let medians: Vec<(&str, f64)> = rates
            .into_iter()
            .map(|(name, rates)| (name, median(rates)))
            .collect();
        if options.only.is_some() {
            println!("{batch} ready: {medians:?}");
            continue;
        }
        let base = medians[0].1;
        println!("{batch} ready:");
        for pair in medians[1..].chunks(2) {
            let [(raw_name, raw), (name, ours)] = pair else {
                continue;
            };
            println!(
                "  {raw_name:<20} {:>6.0}   {name:<20} {:>6.0}   ratio {:.2}",
                raw - base,
                ours - base,
                (ours - base) / (raw - base)
            );
        }
    }
    Ok(())
}
