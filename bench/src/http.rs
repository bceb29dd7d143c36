//! An HTTP responder: connections owned by a port, against the same on tokio.
//!
//! Both parse each request with `httparse`, keep the connection alive, and answer with the same bytes.
//! The client is a process of its own, with one request under way on each connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::thread;

use socknotify::EventFilter;
use socknotify::owned::{Event, Port, Worker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{self, Exchange, RESPONSE};
use crate::median;

/// The longest request that is taken, in bytes.
const LONGEST: usize = 4096;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Numbers of connections to try.
    #[arg(long, value_delimiter = ',', default_value = "100,1000")]
    connections: Vec<usize>,
    /// Server threads of the port. Tokio has one for each processor, as it does by default.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    println!(
        "http: requests per second, median of {} rounds",
        options.rounds
    );
    println!(
        "{:>12} {:>12} {:>12} {:>7}",
        "connections", "socknotify", "tokio", "ratio"
    );
    for &connections in &options.connections {
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        for _ in 0..options.rounds {
            ours.push(measure(connections, options, |accepted, client| {
                serve_owned(accepted, options.threads, client)
            })?);
            theirs.push(measure(connections, options, serve_tokio)?);
        }
        let [ours, theirs] = [ours, theirs].map(median);
        println!(
            "{connections:>12} {ours:>12.0} {theirs:>12.0} {:>7.2}",
            ours / theirs
        );
    }
    Ok(())
}

/// Requests per second.
fn measure(
    connections: usize,
    options: &Options,
    serve: impl FnOnce(Vec<TcpStream>, &mut Child) -> io::Result<()>,
) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut client = client::start(address, connections, options.milliseconds, Exchange::Http)?;
    let accepted = client::accept(&listener, connections)?;
    serve(accepted, &mut client)?;
    client::rate(client)
}

/// What has been read of a connection and not been answered.
#[derive(Debug)]
struct Requests {
    buffer: Vec<u8>,
    answers: Vec<u8>,
}

impl Requests {
    fn new() -> Self {
        Requests {
            buffer: Vec::with_capacity(LONGEST),
            answers: Vec::with_capacity(4 * RESPONSE.len()),
        }
    }

    /// Take every complete request, and put its answer down.
    fn answer(&mut self) -> io::Result<()> {
        let mut taken = 0;
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            let outcome = request.parse(&self.buffer[taken..]);
            match outcome.map_err(io::Error::other)? {
                httparse::Status::Complete(length) => {
                    taken += length;
                    self.answers.extend_from_slice(RESPONSE);
                }
                httparse::Status::Partial => break,
            }
        }
        self.buffer.drain(..taken);
        Ok(())
    }
}

/// A connection that the port owns.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    requests: Requests,
}

impl std::os::fd::AsFd for Connection {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Connection {
    /// Answer what is there. False at the end.
    fn serve(&mut self) -> io::Result<bool> {
        let mut part = [0; LONGEST];
        match self.stream.read(&mut part) {
            Ok(0) => return Ok(false),
            Ok(length) => self.requests.buffer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
        self.requests.answer()?;
        // The client waits for each answer, so that there is always room.
        self.stream.write_all(&self.requests.answers)?;
        self.requests.answers.clear();
        Ok(true)
    }
}

fn serve_owned(accepted: Vec<TcpStream>, threads: usize, client: &mut Child) -> io::Result<()> {
    let port = Port::<Connection>::new()?;
    for stream in accepted {
        stream.set_nonblocking(true)?;
        let requests = Requests::new();
        let connection = port.adopt(Connection { stream, requests })?;
        port.arm(connection, EventFilter::IN)?;
    }
    let serve = |mut worker: Worker<Connection>| -> io::Result<()> {
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                if let Event::Ready(mut connection, _) = event {
                    if connection.serve()? {
                        worker.arm(connection, EventFilter::IN);
                    }
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let servers: Vec<_> = (0..threads)
            .map(|_| port.worker(64))
            .map(|worker| scope.spawn(move || serve(worker)))
            .collect();
        client.wait()?;
        port.close();
        for server in servers {
            server.join().expect("the server does not panic")?;
        }
        Ok(())
    })
}

fn serve_tokio(accepted: Vec<TcpStream>, client: &mut Child) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .build()?;
    for stream in accepted {
        stream.set_nonblocking(true)?;
        runtime.spawn(async move {
            let mut stream = {
                // Within the runtime, as tokio asks for.
                tokio::net::TcpStream::from_std(stream)?
            };
            let mut requests = Requests::new();
            loop {
                let mut part = [0; LONGEST];
                match stream.read(&mut part).await {
                    Ok(0) => return Ok(()),
                    Ok(length) => requests.buffer.extend_from_slice(&part[..length]),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                    Err(error) => return Err(error),
                }
                requests.answer()?;
                stream.write_all(&requests.answers).await?;
                requests.answers.clear();
            }
        });
    }
    client.wait()?;
    runtime.shutdown_background();
    Ok(())
}
