//! The other side of the servers: a process of its own, with one thread.

use std::fmt;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::closed_loop;
use crate::exchange::{Exchange, Found};
use crate::figure::Figure;
use crate::open_loop;
use crate::output;

/// When a client sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Closed loop: so many messages are under way on each connection, and an answer makes way for the next.
    Depth(usize),
    /// Open loop: so many messages a second on all connections together, at scheduled times.
    Rate(usize),
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pace::Depth(depth) => write!(f, "depth={depth}"),
            Pace::Rate(rate) => write!(f, "rate={rate}"),
        }
    }
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        match parts.map(|(name, number)| (name, number.parse())) {
            Some(("depth", Ok(depth))) => Ok(Pace::Depth(depth)),
            Some(("rate", Ok(rate))) => Ok(Pace::Rate(rate)),
            _ => Err(format!("not a pace: {text:?}")),
        }
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
    pub(crate) milliseconds: usize,
    pub(crate) exchange: Exchange,
    /// How many percent of the requests block, in an exchange of bytes.
    pub(crate) blocking: usize,
    /// The server has one processor, and the client the others.
    #[arg(skip)]
    pub(crate) is_apart: bool,
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
        Exchange::SmallFile => "small-file",
        Exchange::LargeFile => "large-file",
        Exchange::Byte => "byte",
    };
    Command::new(std::env::current_exe()?)
        .args(["client", &address.to_string()])
        .args([load.connections.to_string(), load.pace.to_string()])
        .args([&load.milliseconds.to_string(), exchange])
        .arg(load.blocking.to_string())
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

/// What a client prints behind the number of answers, in this order, as far as it has it.
const PRINTED: [Figure; 5] = [
    Figure::Rate,
    Figure::P50,
    Figure::P99,
    Figure::P999,
    Figure::Behind,
];

/// What a client has found, when it is done.
pub(crate) fn found(mut client: Child) -> io::Result<Found> {
    let mut output = String::new();
    if let Some(mut stdout) = client.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    client.wait()?;
    let numbers = output.split_whitespace().map(str::parse);
    match numbers.collect::<Result<Vec<f64>, _>>().as_deref() {
        Ok([answers, figures @ ..]) if !figures.is_empty() => Ok(Found {
            answers: *answers,
            figures: PRINTED.into_iter().zip(figures.iter().copied()).collect(),
        }),
        _ => Err(io::Error::other("the client found nothing")),
    }
}

/// Connect, send, and print what was found.
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
    let time = Duration::from_millis(load.milliseconds as u64);
    let Found { answers, figures } = match load.pace {
        Pace::Depth(_) if matches!(load.exchange, Exchange::Byte) => {
            closed_loop::bytes(&set, &connections, load.blocking, time)?
        }
        Pace::Depth(depth) => closed_loop::run(&set, &connections, load.exchange, depth, time)?,
        Pace::Rate(rate) => open_loop::run(&set, connections, load.exchange, rate, time)?,
    };
    output::print(format_args!("{answers}"));
    for value in PRINTED.iter().map_while(|figure| figures.get(figure)) {
        output::print(format_args!(" {value}"));
    }
    output::line(format_args!(""));
    Ok(())
}
