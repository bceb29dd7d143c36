//! A server some of whose handlers block: 64 connections, a byte under way on each, in a closed loop.
//!
//! Whoever blocks is the same for all servers. What counts is how many requests are answered all in all, and how long
//! those take whose handlers do not block.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::default_concurrency;

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::lookup::Rows;
use crate::cases::{http, load};
use crate::client::{Load, Pace};
use crate::exchange::{Exchange, QUICK};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::random::Random;
use crate::servers::blocking::{self, Limits, Work};
use crate::stopwatch::Stopwatch;

pub(crate) const SLEEP: Case = Case {
    name: "blocking",
    about: "64 connections, a byte under way on each; some handlers sleep 50 ms; latencies are those of the others",
    compared_by: Figure::Rate,
    axes: &[Axis {
        parameter: Parameter::Blocking,
        values: &[0, 1, 5, 20],
        quick: &[5],
    }],
    implementations: all,
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| Blocking::prepare(Kind::Sleep, setting, effort),
};

pub(crate) const LOCK: Case = Case {
    name: "blocking-lock",
    about: "the same; some handlers take one of 16 locks, which each has for 50 ms",
    axes: SOME,
    prepare: |setting, effort| Blocking::prepare(Kind::Lock, setting, effort),
    ..SLEEP
};

pub(crate) const FILE: Case = Case {
    name: "blocking-file",
    about: "the same; some handlers read 16 blocks of 4 KiB from the disk, one after another, with O_DIRECT",
    axes: SOME,
    prepare: |setting, effort| Blocking::prepare(Kind::File, setting, effort),
    ..SLEEP
};

pub(crate) const COMPUTE: Case = Case {
    name: "blocking-compute",
    about: "the same; some handlers compute for 15 ms, or all do",
    axes: &[Axis {
        parameter: Parameter::Blocking,
        values: &[5, 100],
        quick: &[100],
    }],
    implementations: all_but_blocking,
    prepare: |setting, effort| Blocking::prepare(Kind::Compute, setting, effort),
    ..SLEEP
};

pub(crate) const BRIEF: Case = Case {
    name: "blocking-brief",
    about: "the same; some handlers sleep 0.3 ms, or all do",
    axes: &[Axis {
        parameter: Parameter::Blocking,
        values: &[30, 100],
        quick: &[100],
    }],
    prepare: |setting, effort| Blocking::prepare(Kind::Brief, setting, effort),
    ..SLEEP
};

pub(crate) const LOOKUP: Case = Case {
    name: "lookup",
    about: "the same; each handler looks a row up in SQLite, which has all in memory",
    axes: &[
        http::APART,
        Axis {
            parameter: Parameter::Blocking,
            values: &[100],
            quick: &[100],
        },
    ],
    implementations: all_but_blocking,
    prepare: |setting, effort| Blocking::prepare(Kind::Lookup, setting, effort),
    ..SLEEP
};

const SOME: &[Axis] = &[Axis {
    parameter: Parameter::Blocking,
    values: &[1, 5, 20],
    quick: &[5],
}];

const CONNECTIONS: usize = 64;
const TIME: Duration = Duration::from_millis(50);
const BRIEF_TIME: Duration = Duration::from_micros(300);
/// A round is at least this long: all connections may wait for one that blocks, and nobody is answered meanwhile.
const LEAST: usize = 200;
/// Of a processor. It is shorter, as nothing else goes on meanwhile.
const COMPUTED: Duration = Duration::from_millis(15);
const LOCKS: usize = 16;
const READS: usize = 16;
const BLOCK: usize = 4096;
/// 64 MiB.
const BLOCKS: u64 = 16 * 1024;

pub(super) fn all() -> Vec<Implementation> {
    use Implementation::*;
    let first = [TokioSpawning, Tokio, Async, Threads].into_iter();
    first.chain(Implementation::serving()).collect()
}

/// Who says that a handler blocks says nothing that helps here.
pub(super) fn all_but_blocking() -> Vec<Implementation> {
    let all = all().into_iter();
    all.filter(|it| !matches!(it, Implementation::ServeBlocking(_)))
        .collect()
}

/// What a handler does that blocks.
#[derive(Clone, Copy)]
enum Kind {
    Sleep,
    Brief,
    Lock,
    File,
    Compute,
    Lookup,
}

struct Blocking {
    work: Work,
    /// Nanoseconds that handlers have computed, and waited for a processor to do so.
    computed: Option<Arc<AtomicU64>>,
    load: Load,
}

impl Blocking {
    fn prepare(kind: Kind, setting: &Setting, effort: Effort) -> io::Result<Box<dyn Trial>> {
        let mut computed = None;
        let work: Work = match kind {
            Kind::Sleep => work(|| thread::sleep(TIME)),
            Kind::Brief => work(|| thread::sleep(BRIEF_TIME)),
            Kind::Lock => {
                let locks = [const { Mutex::new(()) }; LOCKS];
                let next = AtomicUsize::new(0);
                work(move || {
                    let lock = &locks[next.fetch_add(1, Ordering::Relaxed) % LOCKS];
                    let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
                    thread::sleep(TIME);
                })
            }
            Kind::File => {
                let file = uncached_file()?;
                let next = AtomicU64::new(1);
                work(move || {
                    let mut random = Random::new(next.fetch_add(1, Ordering::Relaxed));
                    let mut memory = [0; 2 * BLOCK];
                    let begin = memory.as_ptr().align_offset(BLOCK);
                    let block = &mut memory[begin..begin + BLOCK];
                    for _ in 0..READS {
                        let offset = random.next() % BLOCKS * BLOCK as u64;
                        let read = file.read_exact_at(block, offset);
                        read.expect("the file is as long as that");
                    }
                })
            }
            Kind::Lookup => {
                let rows = Rows::new()?;
                work(move || rows.look_up())
            }
            Kind::Compute => {
                let sum = Arc::new(AtomicU64::new(0));
                computed = Some(Arc::clone(&sum));
                work(move || {
                    let begin = Instant::now();
                    compute(COMPUTED);
                    let time = begin.elapsed().as_nanos() as u64;
                    sum.fetch_add(time, Ordering::Relaxed);
                })
            }
        };
        Ok(Box::new(Blocking {
            work,
            computed,
            load: Load {
                connections: CONNECTIONS,
                pace: Pace::Depth(1),
                milliseconds: effort.milliseconds.max(LEAST),
                exchange: Exchange::Byte,
                blocking: setting.get(Parameter::Blocking),
                is_apart: http::is_apart(setting),
            },
        }))
    }
}

/// For requests that are not quick.
fn work(block: impl Fn() + Send + Sync + 'static) -> Work {
    Arc::new(move |byte| {
        if byte != QUICK {
            block();
        }
    })
}

/// So much time of a processor, however long it takes to get it.
pub(super) fn compute(time: Duration) {
    let stopwatch = Stopwatch::of_thread();
    while stopwatch.cpu() < time {
        (0..1000).for_each(|_| std::hint::spin_loop());
    }
}

/// Reads of it do not go through the system's memory.
fn uncached_file() -> io::Result<File> {
    let mut file = tempfile::NamedTempFile::new()?;
    for block in 0..BLOCKS {
        file.write_all(&[block as u8; BLOCK])?;
    }
    file.as_file().sync_all()?;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_DIRECT);
    options.open(file.path())
}

impl Trial for Blocking {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        if let Some(computed) = &self.computed {
            computed.store(0, Ordering::Relaxed);
        }
        let begin = Instant::now();
        let mut sample = load::measure_server(self.load, |connections, until| {
            blocking::serve(
                implementation,
                Limits::default(),
                &self.work,
                connections,
                until,
            )
        })?;
        if let Some(computed) = &self.computed {
            let computed = Duration::from_nanos(computed.load(Ordering::Relaxed));
            let at_once = computed.as_secs_f64() / begin.elapsed().as_secs_f64();
            sample.insert(Figure::Computing, at_once / default_concurrency() as f64);
        }
        Ok(Some(sample))
    }
}
