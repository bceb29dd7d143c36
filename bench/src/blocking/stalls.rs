//! How long another connection waits while handlers that come at once block: no load, but a few requests.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::servers::{SIDES, Serve, Work};
use super::{TIME, compute, work};
use crate::client::{BLOCKING, QUICK};
use crate::compare::{Options, Sample};

/// What so many handlers do at once.
const CASES: [(&str, usize, usize); 3] = [
    ("10 sleep 50 ms at once", 10, 15),
    ("30 sleep 50 ms at once", 30, 15),
    ("100 sleep 50 ms at once", 100, 15),
];

pub(super) fn run(options: &Options) -> io::Result<()> {
    for (case, handlers, rounds) in CASES {
        if options.wants(case) {
            let work = work(|| thread::sleep(TIME));
            options.compare(case, rounds, &SIDES, |&serve| {
                longest(serve, &work, handlers).map(Some)
            })?;
        }
    }
    let case = "4 compute 1 s at once";
    if options.wants(case) {
        // A second, unless the run is to be shorter than any that is read.
        let time = Duration::from_millis(5 * options.milliseconds as u64);
        let work = work(move || compute(time.min(Duration::from_secs(1))));
        options.compare(case, 3, &SIDES, |&serve| longest(serve, &work, 4).map(Some))?;
    }
    Ok(())
}

fn exchange(peer: &mut TcpStream, byte: u8) -> io::Result<()> {
    peer.write_all(&[byte])?;
    peer.read_exact(&mut [0])
}

/// The longest that another connection waits, which asks once in a millisecond, until so many handlers are done.
fn longest(serve: Serve, work: &Work, handlers: usize) -> io::Result<Sample> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..=handlers {
        let peer = TcpStream::connect(listener.local_addr()?)?;
        peer.set_nodelay(true)?;
        theirs.push(peer);
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        ours.push(stream);
    }
    let mut longest = Duration::ZERO;
    serve(work, ours, &mut || {
        // All threads that it starts with are there.
        for peer in &mut theirs {
            exchange(peer, QUICK)?;
        }
        let (other, handlers) = theirs.split_last_mut().expect("there are some");
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
            loop {
                let begin = Instant::now();
                exchange(other, QUICK)?;
                longest = longest.max(begin.elapsed());
                if are_answered.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            answers.join().expect("no panic")
        })?;
        // Its threads end with them.
        theirs.clear();
        Ok(())
    })?;
    Ok(Sample::from([("longest_us", longest.as_secs_f64() * 1e6)]))
}
