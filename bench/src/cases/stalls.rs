//! How long others wait while handlers block: no load, but a few requests at a time.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::case::{Axis, Case, Parameter, Trial};
use crate::cases::blocking as cases;
use crate::exchange::{BLOCKING, QUICK};
use crate::figure::{Figure, Sample, quantile};
use crate::implementation::Implementation;
use crate::servers::blocking::{self, Limits, Work};

pub(crate) const WAITS_FOR_NEXT: Case = Case {
    name: "waits-for-next",
    about: "one place; a handler waits for the handler of the next request",
    compared_by: Figure::P50,
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[2],
        quick: &[2],
    }],
    implementations: || all(&[Implementation::TokioSpawning, Implementation::Threads]),
    parts: 1,
    is_counted: false,
    prepare: |_, effort| {
        Ok(Box::new(WaitsForNext {
            times: (effort.milliseconds / 4).max(1),
        }))
    },
};

pub(crate) const BYSTANDERS: Case = Case {
    name: "bystanders",
    about: "four places; one of ten requests sleeps a second; latencies are those of the nine that come with it",
    compared_by: Figure::Longest,
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[10],
        quick: &[10],
    }],
    implementations: || {
        use Implementation::*;
        all(&[Tokio, TokioSpawning, Threads])
    },
    prepare: |_, effort| {
        // A second, unless the run is to be shorter than any that is read.
        let time = Duration::from_millis(5 * effort.milliseconds as u64);
        Ok(Box::new(Bystanders {
            work: sleeping(time.min(Duration::from_secs(1))),
        }))
    },
    ..WAITS_FOR_NEXT
};

pub(crate) const TOGETHER: Case = Case {
    name: "together",
    about: "two places; 16 requests that come together sleep 100 ms each",
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[16],
        quick: &[16],
    }],
    prepare: |_, _| Ok(Box::new(Together)),
    ..BYSTANDERS
};

pub(crate) const BURST: Case = Case {
    name: "burst",
    about: "so many handlers that come at once sleep 50 ms each; latencies are those of another connection meanwhile",
    compared_by: Figure::Longest,
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[10, 30, 100],
        quick: &[10],
    }],
    implementations: cases::all,
    prepare: |setting, _| {
        Ok(Box::new(Burst {
            work: sleeping(Duration::from_millis(50)),
            handlers: setting.get(Parameter::Connections),
        }))
    },
    ..WAITS_FOR_NEXT
};

pub(crate) const COMPUTE: Case = Case {
    name: "compute",
    about: "the same; they compute for a second each",
    axes: &[Axis {
        parameter: Parameter::Connections,
        values: &[4, 8],
        quick: &[4],
    }],
    implementations: cases::all_but_blocking,
    prepare: |setting, effort| {
        // A second, unless the run is to be shorter than any that is read.
        let time = Duration::from_millis(5 * effort.milliseconds as u64);
        let time = time.min(Duration::from_secs(1));
        Ok(Box::new(Burst {
            work: doing(move || cases::compute(time)),
            handlers: setting.get(Parameter::Connections),
        }))
    },
    ..BURST
};

fn all(theirs: &[Implementation]) -> Vec<Implementation> {
    let theirs = theirs.iter().copied();
    theirs
        .chain(Implementation::with(Implementation::Socknotify))
        .chain(Implementation::serving())
        .collect()
}

/// As many threads as the documented server has.
fn with_places(places: usize) -> Limits {
    Limits {
        places,
        threads: 16,
    }
}

/// Serve connections of this process, and do something with their other ends meanwhile.
fn with_server(
    implementation: Implementation,
    limits: Limits,
    connections: usize,
    work: &Work,
    mut act: impl FnMut(&mut [TcpStream]) -> io::Result<Sample>,
) -> io::Result<Sample> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let peer = TcpStream::connect(listener.local_addr()?)?;
        peer.set_nodelay(true)?;
        theirs.push(peer);
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        ours.push(stream);
    }
    let mut found = Sample::new();
    blocking::serve(implementation, limits, work, ours, &mut || {
        // All threads that it starts with are there.
        for peer in &mut theirs {
            exchange(peer, QUICK)?;
        }
        found = act(&mut theirs)?;
        // Its threads end with them.
        theirs.clear();
        Ok(())
    })?;
    Ok(found)
}

fn exchange(peer: &mut TcpStream, byte: u8) -> io::Result<()> {
    peer.write_all(&[byte])?;
    peer.read_exact(&mut [0])
}

/// The median and the longest, in microseconds.
fn latencies(times: impl Iterator<Item = Duration>) -> Sample {
    let mut times: Vec<_> = times.map(|it| it.as_secs_f64() * 1e6).collect();
    times.sort_by(f64::total_cmp);
    Sample::from([
        (Figure::P50, quantile(&times, 0.5)),
        (Figure::Longest, quantile(&times, 1.0)),
    ])
}

struct WaitsForNext {
    times: usize,
}

/// The byte of the request that lets the other one go on.
const NEXT: u8 = 2;

impl WaitsForNext {
    fn work(began: Sender<()>) -> Work {
        let (next, waiting): (Sender<()>, Receiver<()>) = mpsc::channel();
        let waiting = Mutex::new(waiting);
        Arc::new(move |byte| match byte {
            BLOCKING => {
                began.send(()).expect("the client waits");
                let waiting = waiting.lock().expect("no handler panics");
                waiting.recv().expect("the sender is here");
            }
            NEXT => next.send(()).expect("the receiver is here"),
            _ => {}
        })
    }
}

impl Trial for WaitsForNext {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let (began, has_begun) = mpsc::channel();
        let work = Self::work(began);
        let found = with_server(implementation, with_places(1), 2, &work, |peers| {
            let [first, second] = peers else {
                return Err(io::Error::other("there are two"));
            };
            let times = (0..self.times).map(|_| -> io::Result<Duration> {
                first.write_all(&[BLOCKING])?;
                has_begun.recv().map_err(io::Error::other)?;
                let begin = Instant::now();
                second.write_all(&[NEXT])?;
                first.read_exact(&mut [0])?;
                let time = begin.elapsed();
                second.read_exact(&mut [0])?;
                Ok(time)
            });
            let times: Vec<_> = times.collect::<io::Result<_>>()?;
            Ok(latencies(times.into_iter()))
        });
        found.map(Some)
    }
}

/// When each of these connections is answered, from now on.
fn answers(peers: &mut [TcpStream]) -> io::Result<Vec<Duration>> {
    let begin = Instant::now();
    let read = |peer: &mut TcpStream| -> io::Result<Duration> {
        peer.read_exact(&mut [0])?;
        Ok(begin.elapsed())
    };
    let times = thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter_mut()
            .map(|peer| scope.spawn(move || read(peer)))
            .collect();
        let times = threads.into_iter().map(|thread| thread.join());
        times.collect::<Vec<_>>()
    });
    let times = times.into_iter().map(|it| it.expect("no panic"));
    times.collect()
}

struct Bystanders {
    work: Work,
}

impl Trial for Bystanders {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let found = with_server(implementation, with_places(4), 10, &self.work, |peers| {
            for (index, peer) in peers.iter_mut().enumerate() {
                peer.write_all(&[if index == 0 { BLOCKING } else { QUICK }])?;
            }
            let (sleeper, others) = peers.split_at_mut(1);
            let times = answers(others)?;
            sleeper[0].read_exact(&mut [0])?;
            Ok(latencies(times.into_iter()))
        });
        found.map(Some)
    }
}

struct Together;

impl Trial for Together {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let work = sleeping(Duration::from_millis(100));
        let found = with_server(implementation, with_places(2), 16, &work, |peers| {
            for peer in &mut *peers {
                peer.write_all(&[BLOCKING])?;
            }
            Ok(latencies(answers(peers)?.into_iter()))
        });
        found.map(Some)
    }
}

struct Burst {
    work: Work,
    handlers: usize,
}

impl Trial for Burst {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let connections = self.handlers + 1;
        let limits = Limits::default();
        let found = with_server(implementation, limits, connections, &self.work, |peers| {
            let (other, handlers) = peers.split_last_mut().expect("there are some");
            for peer in &mut *handlers {
                peer.write_all(&[BLOCKING])?;
            }
            let are_answered = AtomicBool::new(false);
            thread::scope(|scope| {
                let answers = scope.spawn(|| {
                    let outcome = handlers
                        .iter_mut()
                        .try_for_each(|it| it.read_exact(&mut [0]));
                    are_answered.store(true, Ordering::Relaxed);
                    outcome
                });
                let mut times = Vec::new();
                loop {
                    let begin = Instant::now();
                    exchange(other, QUICK)?;
                    times.push(begin.elapsed());
                    if are_answered.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                answers.join().expect("no panic")?;
                Ok(latencies(times.into_iter()))
            })
        });
        found.map(Some)
    }
}

fn sleeping(time: Duration) -> Work {
    doing(move || thread::sleep(time))
}

fn doing(block: impl Fn() + Send + Sync + 'static) -> Work {
    Arc::new(move |byte| {
        if byte == BLOCKING {
            block();
        }
    })
}
