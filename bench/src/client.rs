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

#[derive(clap::Args)]
pub(crate) struct Options {
    address: SocketAddr,
    connections: usize,
    milliseconds: u64,
    exchange: Exchange,
}

/// Start a client, which connects at once.
pub(crate) fn start(
    address: SocketAddr,
    connections: usize,
    milliseconds: u64,
    exchange: Exchange,
) -> io::Result<Child> {
    let exchange = match exchange {
        Exchange::Echo => "echo",
        Exchange::Http => "http",
    };
    Command::new(std::env::current_exe()?)
        .arg("client")
        .args([address.to_string(), connections.to_string()])
        .args([&milliseconds.to_string(), exchange])
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

/// What a client has found, in exchanges per second.
pub(crate) fn rate(mut client: Child) -> io::Result<f64> {
    let mut answer = String::new();
    if let Some(mut output) = client.stdout.take() {
        output.read_to_string(&mut answer)?;
    }
    client.wait()?;
    answer.trim().parse().map_err(io::Error::other)
}

/// Keep one message under way on each connection; print how many answers came in a second.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::with_capacity(options.connections);
    for key in 0..options.connections {
        let connection = TcpStream::connect(options.address)?;
        connection.set_nodelay(true)?;
        epoll::add(
            &set,
            &connection,
            EventData::new_u64(key as u64),
            EventFlags::IN,
        )?;
        connections.push(connection);
    }
    let message = options.exchange.request();
    for mut connection in &connections {
        connection.write_all(message)?;
    }
    let time = Duration::from_millis(options.milliseconds);
    let warm_up = time / 5;
    let begin = Instant::now();
    let mut counted_from = None;
    let mut answers = 0_u64;
    let mut answer = vec![0; options.exchange.response()];
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
            None if now - begin > warm_up => {
                counted_from = Some(now);
                answers = 0;
            }
            Some(start) if now - start > time => {
                break answers as f64 / (now - start).as_secs_f64();
            }
            _ => {}
        }
    };
    println!("{rate}");
    Ok(())
}
