//! The other side of the servers: a process of its own, with one thread that keeps one message under
//! way on each connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

/// How long an echoed message is, in bytes.
pub(crate) const MESSAGE: usize = 64;

const REQUEST: &[u8] = b"GET /greeting HTTP/1.1\r\n\
    Host: localhost\r\n\
    User-Agent: socknotify-bench\r\n\
    Accept: text/plain\r\n\r\n";

/// What an HTTP server answers.
pub(crate) const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 14\r\n\r\n\
    Hello, world!\n";

/// What goes to and fro.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Exchange {
    Echo,
    Http,
}

impl Exchange {
    fn request(self) -> &'static [u8] {
        match self {
            Exchange::Echo => &[0x5a; MESSAGE],
            Exchange::Http => REQUEST,
        }
    }

    fn response(self) -> usize {
        match self {
            Exchange::Echo => MESSAGE,
            Exchange::Http => RESPONSE.len(),
        }
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// Messages under way on each connection.
    pub(crate) depth: usize,
    pub(crate) milliseconds: usize,
    pub(crate) exchange: Exchange,
}

#[derive(clap::Args)]
pub(crate) struct Options {
    address: SocketAddr,
    #[command(flatten)]
    load: Load,
}

/// Start a client, which connects at once.
pub(crate) fn start(address: SocketAddr, load: Load) -> io::Result<Child> {
    let exchange = match load.exchange {
        Exchange::Echo => "echo",
        Exchange::Http => "http",
    };
    let numbers = [load.connections, load.depth, load.milliseconds];
    Command::new(std::env::current_exe()?)
        .args(["client", &address.to_string()])
        .args(numbers.map(|number| number.to_string()))
        .arg(exchange)
        .stdout(Stdio::piped())
        .spawn()
}

/// The connections of a client.
pub(crate) fn accept(listener: &TcpListener, connections: usize) -> io::Result<Vec<TcpStream>> {
    (0..connections)
        .map(|_| {
            let (connection, _) = listener.accept()?;
            connection.set_nonblocking(true)?;
            connection.set_nodelay(true)?;
            Ok(connection)
        })
        .collect()
}

/// What a client has found.
pub(crate) struct Found {
    /// Answers per second.
    pub(crate) rate: f64,
    /// All answers, also those before and after that were not timed.
    pub(crate) answers: f64,
}

/// What a client has found, when it is done.
pub(crate) fn found(mut client: Child) -> io::Result<Found> {
    let mut output = String::new();
    if let Some(mut stdout) = client.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    client.wait()?;
    let mut numbers = output.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(rate)), Some(Ok(answers))) => Ok(Found { rate, answers }),
        _ => Err(io::Error::other("the client found nothing")),
    }
}

/// Keep messages under way on each connection; print how many answers came in a second, and how many
/// in all.
pub(crate) fn run(Options { address, load }: &Options) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::with_capacity(load.connections);
    for key in 0..load.connections as u64 {
        let connection = TcpStream::connect(address)?;
        connection.set_nodelay(true)?;
        let data = EventData::new_u64(key);
        epoll::add(&set, &connection, data, EventFlags::IN)?;
        connections.push(connection);
    }
    let message = load.exchange.request();
    for mut connection in &connections {
        for _ in 0..load.depth {
            connection.write_all(message)?;
        }
    }
    let time = Duration::from_millis(load.milliseconds as u64);
    let warm_up = time / 5;
    let begin = Instant::now();
    let mut counted_from = None;
    let mut answers = 0_u64;
    let mut answer = vec![0; load.exchange.response()];
    let mut events = Vec::with_capacity(64);
    let rate = loop {
        events.clear();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let data = event.data;
            let mut connection = &connections[data.u64() as usize];
            connection.read_exact(&mut answer)?;
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
    println!("{rate} {answers}");
    Ok(())
}
