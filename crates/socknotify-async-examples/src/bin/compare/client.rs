//! The client: each connection sends the next request when it has its answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use socknotify_async::{Handle, spawn};
use socknotify_async_examples::LARGE;

use crate::server::{Protocol, Runtime};

/// A server in a process of its own.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(runtime: Runtime, protocol: Protocol, sleep: u64) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", runtime.name()])
            .arg(match protocol {
                Protocol::Http1 => "http1",
                Protocol::Http2 => "http2",
            })
            .args(["--sleep", &sleep.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse().map_err(io::Error::other)?;
        Ok(Server { child, address })
    }

    /// The processor time that it has used.
    fn processor_time(&self) -> io::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let mut ticks = fields.split_whitespace().skip(11).take(2);
        let mut next = || ticks.next().and_then(|it| it.parse::<u64>().ok());
        let (user, system) = (next().unwrap_or(0), next().unwrap_or(0));
        Ok(Duration::from_millis((user + system) * 10))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    per_second: f64,
    /// Microseconds of the server's processor time for each request.
    processor: f64,
    /// Quantiles of the time to an answer, in milliseconds, of the requests that did not sleep.
    median: f64,
    p99: f64,
}

#[derive(Default)]
struct Record {
    requests: u64,
    /// In microseconds.
    quick: Vec<u32>,
}

impl Record {
    fn add(&mut self, time: Duration, slept: bool) {
        self.requests += 1;
        if !slept {
            self.quick.push(time.as_micros() as u32);
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Small,
    /// A request of 1 MiB.
    Upload,
    /// An answer of 1 MiB, by HTTP/2.
    Download,
}

impl Kind {
    fn http1(self) -> Vec<u8> {
        match self {
            Kind::Upload => {
                let head = format!(
                    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
                    LARGE.len()
                );
                [head.as_bytes(), &LARGE].concat()
            }
            _ => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        }
    }

    fn http2(self) -> hyper::http::Result<hyper::Request<Full<Bytes>>> {
        let request = hyper::Request::builder();
        match self {
            Kind::Small => request.uri("http://localhost/").body(Full::default()),
            Kind::Download => request.uri("http://localhost/large").body(Full::default()),
            Kind::Upload => {
                let request = request.method("POST").uri("http://localhost/");
                request.body(Full::new(Bytes::from_static(&LARGE)))
            }
        }
    }
}

fn http1(
    kind: Kind,
    address: SocketAddr,
    connections: usize,
    end: Instant,
    begin: Instant,
) -> io::Result<Record> {
    let threads: Vec<_> = (0..connections.min(8))
        .map(|thread| {
            let share = connections / 8.min(connections)
                + usize::from(thread < connections % 8.min(connections));
            let request = kind.http1();
            std::thread::spawn(move || http1_thread(&request, address, share, end, begin))
        })
        .collect();
    let mut all = Record::default();
    for thread in threads {
        let record = thread.join().expect("no panic")?;
        all.requests += record.requests;
        all.quick.extend(record.quick);
    }
    Ok(all)
}

/// One thread's connections, by `epoll`.
fn http1_thread(
    request: &[u8],
    address: SocketAddr,
    count: usize,
    end: Instant,
    begin: Instant,
) -> io::Result<Record> {
    use std::os::fd::AsRawFd;
    // SAFETY: a call that makes a descriptor, which lives as long as the thread's work.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut streams = Vec::new();
    for index in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(request)?;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: index as u64,
        };
        // SAFETY: both descriptors are open.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) };
        streams.push((stream, Instant::now()));
    }
    let mut record = Record::default();
    let mut buffer = [0; 4096];
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    while Instant::now() < end {
        // SAFETY: the events are written to.
        let ready = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, 100) };
        for event in &events[..ready.max(0) as usize] {
            let (stream, sent) = &mut streams[event.u64 as usize];
            // An answer is small, and comes whole.
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            if now >= begin {
                let slept = buffer[..length].ends_with(b"slept for a while");
                record.add(now - *sent, slept);
            }
            stream.write_all(request)?;
            *sent = now;
        }
    }
    // SAFETY: it is closed once.
    unsafe { libc::close(set) };
    Ok(record)
}

/// HTTP/2 with ten streams for each connection, by hyper's client.
fn http2(
    kind: Kind,
    address: SocketAddr,
    connections: usize,
    end: Instant,
    begin: Instant,
) -> io::Result<Record> {
    let runtime = socknotify_async::Runtime::new()?;
    let handle: &Handle = runtime.handle();
    let mut tasks = Vec::new();
    for _ in 0..connections {
        tasks.push(handle.spawn(async move {
            let stream = socknotify_async::TcpStream::connect(address).await?;
            stream.get_ref().set_nodelay(true)?;
            let executor = socknotify_async::hyper_rt::Executor;
            let connected = hyper::client::conn::http2::handshake(executor, stream).await;
            let (sender, connection) = connected.map_err(io::Error::other)?;
            drop(spawn(connection));
            let streams: Vec<_> = (0..10)
                .map(|_| {
                    let mut sender = sender.clone();
                    spawn(async move {
                        let mut record = Record::default();
                        while Instant::now() < end {
                            let sent = Instant::now();
                            let request = kind.http2().map_err(io::Error::other)?;
                            let answer = sender.send_request(request).await;
                            let mut body = answer.map_err(io::Error::other)?.into_body();
                            let mut slept = false;
                            while let Some(frame) = body.frame().await {
                                let frame = frame.map_err(io::Error::other)?;
                                let data = frame.data_ref().map(|data| &**data);
                                slept = data == Some(b"slept for a while");
                            }
                            if sent >= begin {
                                record.add(sent.elapsed(), slept);
                            }
                        }
                        io::Result::Ok(record)
                    })
                })
                .collect();
            let mut all = Record::default();
            for stream in streams {
                let record = stream.await??;
                all.requests += record.requests;
                all.quick.extend(record.quick);
            }
            io::Result::Ok(all)
        }));
    }
    let mut all = Record::default();
    for task in tasks {
        let record = runtime.block_on(task)??;
        all.requests += record.requests;
        all.quick.extend(record.quick);
    }
    Ok(all)
}

fn measure(
    kind: Kind,
    runtime: Runtime,
    protocol: Protocol,
    connections: usize,
    sleep: u64,
    time: Duration,
) -> io::Result<Figures> {
    let server = Server::start(runtime, protocol, sleep)?;
    let address = server.address;
    let warm = Duration::from_millis(300);
    let begin = Instant::now() + warm;
    let end = begin + time;
    let load = std::thread::spawn(move || match protocol {
        Protocol::Http1 => http1(kind, address, connections, end, begin),
        Protocol::Http2 => http2(kind, address, connections, end, begin),
    });
    std::thread::sleep(warm);
    let before = server.processor_time()?;
    std::thread::sleep(time);
    let used = server.processor_time()?.saturating_sub(before);
    let mut record = load.join().expect("no panic")?;
    record.quick.sort_unstable();
    let quantile = |part: f64| {
        let index = (record.quick.len() as f64 * part) as usize;
        record
            .quick
            .get(index)
            .map_or(0.0, |&it| f64::from(it) / 1e3)
    };
    Ok(Figures {
        per_second: record.requests as f64 / time.as_secs_f64(),
        processor: used.as_secs_f64() * 1e6 / record.requests as f64,
        median: quantile(0.5),
        p99: quantile(0.99),
    })
}

/// The median of several rounds, in which the runtimes take turns.
fn rounds(
    runtimes: &[Runtime],
    rounds: usize,
    measure: impl Fn(Runtime) -> io::Result<Figures>,
) -> io::Result<Vec<(Runtime, Figures)>> {
    let mut all = vec![Vec::new(); runtimes.len()];
    for _ in 0..rounds {
        for (index, &runtime) in runtimes.iter().enumerate() {
            all[index].push(measure(runtime)?);
        }
    }
    let median = |figures: &[Figures], of: fn(&Figures) -> f64| {
        let mut values: Vec<_> = figures.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let medians = runtimes.iter().zip(&all).map(|(&runtime, figures)| {
        let figures = Figures {
            per_second: median(figures, |it| it.per_second),
            processor: median(figures, |it| it.processor),
            median: median(figures, |it| it.median),
            p99: median(figures, |it| it.p99),
        };
        (runtime, figures)
    });
    Ok(medians.collect())
}

fn report(results: &[(Runtime, Figures)]) {
    let tokio = results
        .iter()
        .find(|(runtime, _)| *runtime != Runtime::Socknotify);
    for (runtime, figures) in results {
        let ratio = tokio.map_or(1.0, |(_, it)| figures.per_second / it.per_second);
        let processor = tokio.map_or(1.0, |(_, it)| figures.processor / it.processor);
        println!(
            "  {:<11} {:>9.0}/s ({ratio:.2})  {:>7.2} µs of processor ({processor:.2})  median {:>6.2} ms  p99 {:>6.2} ms",
            runtime.name(),
            figures.per_second,
            figures.processor,
            figures.median,
            figures.p99,
        );
    }
}

pub(crate) fn http(
    kind: Kind,
    protocol: Protocol,
    counts: &[usize],
    time: u64,
    count: usize,
) -> io::Result<()> {
    let time = Duration::from_millis(time);
    for &connections in counts {
        println!("{kind:?}, {protocol:?}, {connections} connections");
        let runtimes = [Runtime::Tokio, Runtime::Socknotify];
        report(&rounds(&runtimes, count, |runtime| {
            measure(kind, runtime, protocol, connections, 0, time)
        })?);
    }
    Ok(())
}

pub(crate) fn blocking(connections: usize, time: u64, count: usize) -> io::Result<()> {
    let time = Duration::from_millis(time);
    for per_mille in [10, 50, 200] {
        println!(
            "{} % sleep 50 ms, {connections} connections",
            per_mille / 10
        );
        let runtimes = [
            Runtime::TokioTold,
            Runtime::TokioAll,
            Runtime::Tokio,
            Runtime::Socknotify,
        ];
        report(&rounds(&runtimes, count, |runtime| {
            measure(
                Kind::Small,
                runtime,
                Protocol::Http1,
                connections,
                per_mille,
                time,
            )
        })?);
    }
    Ok(())
}
