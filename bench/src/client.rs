//! The other side of the servers: a process of its own, with one thread. For HTTP that is wrk.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::compare::{Sample, quantile};
use crate::processors::Apart;
use crate::random::Random;
use crate::servers::Until;
use crate::stopwatch::Stopwatch;

/// What a client does: a closed loop, in which each connection sends the next request when it has an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// HTTP requests, by wrk, for whole seconds.
    Http,
    /// A byte, which says what its handler does: so many percent of them block.
    Bytes { blocking: usize },
}

/// The byte of a request whose handler answers at once.
pub(crate) const QUICK: u8 = 0;
/// The byte of a request whose handler blocks.
pub(crate) const BLOCKING: u8 = 1;

/// What wrk calls in the end. It prints what [`run`] does: answers, answers in a second, the median of the latency in
/// microseconds, and its 99th percentile.
const SCRIPT: &str = "function done(summary, latency, requests)
  local e = summary.errors
  if e.connect + e.read + e.write + e.status + e.timeout > 0 then print('errors') return end
  print(summary.requests, summary.requests / summary.duration * 1e6, latency:percentile(50), latency:percentile(99))
end
";

/// What the client finds, and the CPU time of this process for each answer.
///
/// Apart: the server has the first processor, and the client the others; else they share all.
pub(crate) fn measure(
    load: Load,
    connections: usize,
    milliseconds: usize,
    is_apart: bool,
    serve: impl FnOnce(Vec<TcpStream>, Until<'_>) -> io::Result<()>,
) -> io::Result<Sample> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // As many as may wait; who finds no room tries again a second later.
    rustix::net::listen(&listener, i32::MAX)?;
    let address = listener.local_addr()?;
    let apart = is_apart.then(Apart::new).transpose()?;
    let script = tempfile::NamedTempFile::new()?;
    let mut command;
    let mut accepted = connections;
    match load {
        Load::Http => {
            script.as_file().write_all(SCRIPT.as_bytes())?;
            // One more, by which it tries the address, and which ends at once.
            accepted += 1;
            command = Command::new("wrk");
            let seconds = milliseconds.div_ceil(1000);
            command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")]);
            command.args(["--timeout", "30s", "-s"]).arg(script.path());
            command.arg(format!("http://{address}/greeting"));
        }
        Load::Bytes { blocking } => {
            command = Command::new(std::env::current_exe()?);
            let numbers = [connections, blocking, milliseconds].map(|it| it.to_string());
            command.args(["client", &address.to_string()]).args(numbers);
        }
    }
    let client = command.stdout(Stdio::piped()).spawn();
    let mut client = client.map_err(|error| {
        let program = command.get_program();
        io::Error::new(error.kind(), format!("{program:?}: {error}"))
    })?;
    if let Some(apart) = &apart {
        apart.serve()?;
    }
    let connections = accept(&listener, accepted)?;
    let stopwatch = Stopwatch::of_process();
    serve(connections, &mut || client.wait().map(drop))?;
    let cpu = stopwatch.cpu();
    let (answers, mut sample) = found(client)?;
    sample.insert("cpu_us", cpu.as_secs_f64() * 1e6 / answers);
    Ok(sample)
}

/// The connections of a client, which come soon.
fn accept(listener: &TcpListener, connections: usize) -> io::Result<Vec<TcpStream>> {
    set_socket_timeout(listener, Timeout::Recv, Some(Duration::from_secs(30)))?;
    let accept = |_| {
        let (connection, _) = listener.accept()?;
        connection.set_nonblocking(true)?;
        connection.set_nodelay(true)?;
        Ok(connection)
    };
    (0..connections).map(accept).collect()
}

/// How many answers a client has had in all, and its figures.
fn found(mut client: Child) -> io::Result<(f64, Sample)> {
    let mut output = String::new();
    if let Some(mut stdout) = client.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    let last = output.lines().last().unwrap_or_default();
    let numbers = last.split_whitespace().map(str::parse);
    match numbers.collect::<Result<Vec<f64>, _>>().as_deref() {
        Ok(&[answers, rate, p50, p99]) => {
            let figures = [("rate_per_s", rate), ("p50_us", p50), ("p99_us", p99)];
            // Of nobody there is no latency.
            let figures = figures.into_iter().filter(|(_, value)| !value.is_nan());
            Ok((answers, figures.collect()))
        }
        _ => Err(io::Error::other(format!("the client found: {output}"))),
    }
}

#[derive(clap::Args)]
pub(crate) struct Options {
    address: SocketAddr,
    connections: usize,
    /// How many percent of the requests block.
    blocking: usize,
    milliseconds: u64,
}

/// How long a client sends at the least before it counts: until as many requests block as will.
const BEFORE: Duration = Duration::from_millis(200);

struct Request {
    random: Random,
    byte: u8,
    sent: Instant,
}

/// Connects, keeps one byte under way on each connection, and prints what it has found. Latencies are those of the requests
/// that do not block, unless there are none.
///
/// Which ones block is the same for every server, as far as it answers as many.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::new();
    for key in 0..options.connections as u64 {
        let connection = TcpStream::connect(options.address)?;
        connection.set_nodelay(true)?;
        epoll::add(&set, &connection, EventData::new_u64(key), EventFlags::IN)?;
        connections.push(connection);
    }
    let time = Duration::from_millis(options.milliseconds);
    let blocking = options.blocking as u64;
    let begin = Instant::now();
    let send = |request: &mut Request, mut connection: &TcpStream, now| {
        let blocks = request.random.next() % 100 < blocking;
        request.byte = if blocks { BLOCKING } else { QUICK };
        request.sent = now;
        connection.write_all(&[request.byte])
    };
    let mut requests = Vec::new();
    for (seed, connection) in (0..).zip(&connections) {
        let random = Random::new(seed);
        let mut request = Request {
            random,
            byte: QUICK,
            sent: begin,
        };
        send(&mut request, connection, begin)?;
        requests.push(request);
    }
    let from = (time / 5).max(BEFORE);
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
        retry_on_intr(|| epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None))?;
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
    latencies.sort_by(f64::total_cmp);
    let latency = |part| match &*latencies {
        [] => f64::NAN,
        some => quantile(some, part),
    };
    let rate = counted as f64 / time.as_secs_f64();
    println!("{answers} {rate} {} {}", latency(0.5), latency(0.99));
    Ok(())
}
