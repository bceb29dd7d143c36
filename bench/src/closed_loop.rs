//! Clients that wait for an answer before they send the next message.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::retry_on_intr;

use crate::exchange::{BLOCKING, Exchange, Found, QUICK, warm_up};
use crate::figure::{Figure, Sample, quantile};
use crate::random::Random;

/// Keep so many messages under way on each connection. Latencies are found where it is one.
pub(crate) fn run(
    set: &OwnedFd,
    connections: &[TcpStream],
    exchange: Exchange,
    depth: usize,
    time: Duration,
) -> io::Result<Found> {
    let message = exchange.request();
    let mut sent = vec![Instant::now(); connections.len()];
    for (mut connection, sent) in connections.iter().zip(&mut sent) {
        *sent = Instant::now();
        for _ in 0..depth {
            connection.write_all(message)?;
        }
    }
    let warm_up = warm_up(time);
    let begin = Instant::now();
    let mut counted_from = None;
    let mut answers = 0_u64;
    let mut latencies = Vec::new();
    let mut answer = vec![0; exchange.response()];
    let mut events = Vec::with_capacity(64);
    let rate = loop {
        events.clear();
        // It ends early where the process has been stopped.
        retry_on_intr(|| epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None))?;
        for event in &events {
            let data = event.data;
            let index = data.u64() as usize;
            let mut connection = &connections[index];
            connection.read_exact(&mut answer)?;
            let now = Instant::now();
            let sent = std::mem::replace(&mut sent[index], now);
            if depth == 1 && counted_from.is_some_and(|(start, _)| sent > start) {
                latencies.push((now - sent).as_secs_f64() * 1e6);
            }
            connection.write_all(message)?;
            answers += 1;
        }
        let now = Instant::now();
        match counted_from {
            None if now - begin > warm_up => counted_from = Some((now, answers)),
            Some((start, before)) if now - start > time => {
                break (answers - before) as f64 / (now - start).as_secs_f64();
            }
            _ => {}
        }
    };
    let mut figures = Sample::from([(Figure::Rate, rate)]);
    add_latencies(latencies, &mut figures);
    Ok(Found {
        answers: answers as f64,
        figures,
    })
}

fn add_latencies(mut latencies: Vec<f64>, figures: &mut Sample) {
    latencies.sort_by(f64::total_cmp);
    if !latencies.is_empty() {
        for (figure, part) in [
            (Figure::P50, 0.5),
            (Figure::P99, 0.99),
            (Figure::P999, 0.999),
        ] {
            figures.insert(figure, quantile(&latencies, part));
        }
    }
}

/// How long a client sends at the least before it counts, where handlers block.
const BEFORE_BLOCKING: Duration = Duration::from_millis(200);

/// Keep one byte under way on each connection; so many percent of them make their handlers block. Latencies are those
/// of the others, unless there are none, from the time that they were sent.
///
/// Which ones block is the same for every server, as far as it answers as many.
pub(crate) fn bytes(
    set: &OwnedFd,
    connections: &[TcpStream],
    blocking: usize,
    time: Duration,
) -> io::Result<Found> {
    struct Request {
        random: Random,
        byte: u8,
        sent: Instant,
    }
    let begin = Instant::now();
    let mut requests: Vec<_> = (0..connections.len() as u64)
        .map(|seed| Request {
            random: Random::new(seed),
            byte: QUICK,
            sent: begin,
        })
        .collect();
    let send = |request: &mut Request, mut connection: &TcpStream, now| -> io::Result<()> {
        let blocks = request.random.next() % 100 < blocking as u64;
        request.byte = if blocks { BLOCKING } else { QUICK };
        request.sent = now;
        connection.write_all(&[request.byte])
    };
    for (request, connection) in requests.iter_mut().zip(connections) {
        send(request, connection, begin)?;
    }
    // Until as many requests block as will.
    let from = warm_up(time).max(BEFORE_BLOCKING);
    let end = from + time;
    let counts = |time: Instant| (from..end).contains(&(time - begin));
    let (mut answers, mut counted) = (0_u64, 0_u64);
    let mut latencies = Vec::new();
    let mut events = Vec::with_capacity(64);
    let mut under_way = connections.len();
    // Those that were sent in time count, however late their answers are.
    while under_way > 0 {
        events.clear();
        // It ends early where the process has been stopped.
        retry_on_intr(|| epoll::wait(set, rustix::buffer::spare_capacity(&mut events), None))?;
        for event in &events {
            let data = event.data;
            let index = data.u64() as usize;
            let mut connection = &connections[index];
            connection.read_exact(&mut [0])?;
            let request = &mut requests[index];
            let now = Instant::now();
            answers += 1;
            counted += u64::from(counts(now));
            if (request.byte == QUICK || blocking >= 100) && counts(request.sent) {
                latencies.push((now - request.sent).as_secs_f64() * 1e6);
            }
            match now - begin < end {
                true => send(request, connection, now)?,
                false => under_way -= 1,
            }
        }
    }
    let mut figures = Sample::from([(Figure::Rate, counted as f64 / time.as_secs_f64())]);
    add_latencies(latencies, &mut figures);
    Ok(Found {
        answers: answers as f64,
        figures,
    })
}
