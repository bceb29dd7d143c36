//! Many threads serve one port: an echo server, with and without work for each request.
//!
//! The client is a process of its own, with one thread that keeps one message under way on each
//! connection. Both servers take up to 3 events at a time, as the published program does, and arm
//! each connection again after its answer.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{self, Exchange, MESSAGE};
use crate::median;
use rustix::event::epoll::{self, EventData, EventFlags};
use socknotify::{CompletionPort, Entry, Error, EventFilter, Registration, Trigger};

const AT_ONCE: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Numbers of server threads to try.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,16,64")]
    threads: Vec<usize>,
    /// Connections, each with one message under way.
    #[arg(long, default_value_t = 100)]
    connections: usize,
    /// Microseconds of computing for each request.
    #[arg(long, value_delimiter = ',', default_value = "0,20")]
    work: Vec<u64>,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each measurement.
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
}

/// One of the servers that are compared.
#[derive(Clone, Copy, Debug)]
enum Server {
    Socknotify,
    RawEpoll,
}

const SERVERS: [Server; 2] = [Server::Socknotify, Server::RawEpoll];

pub(crate) fn run(options: &Options) -> io::Result<()> {
    println!(
        "echo: requests per second, median of {} rounds",
        options.rounds
    );
    println!(
        "{:>6} {:>8} {:>12} {:>12} {:>7}",
        "work", "threads", "socknotify", "raw epoll", "ratio"
    );
    for &work in &options.work {
        for &threads in &options.threads {
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..options.rounds {
                for (server, rates) in SERVERS.into_iter().zip(&mut rates) {
                    rates.push(measure(server, threads, work, options)?);
                }
            }
            let [ours, raw] = rates.map(median);
            println!(
                "{work:>4}µs {threads:>8} {ours:>12.0} {raw:>12.0} {:>7.2}",
                ours / raw
            );
        }
    }
    Ok(())
}

/// Requests per second.
fn measure(server: Server, threads: usize, work: u64, options: &Options) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let milliseconds = options.milliseconds;
    let mut client = client::start(address, options.connections, milliseconds, Exchange::Echo)?;
    let connections = client::accept(&listener, options.connections)?;
    match server {
        Server::Socknotify => serve_socknotify(&connections, threads, work, &mut client)?,
        Server::RawEpoll => serve_raw(&connections, threads, work, &mut client)?,
    }
    client::rate(client)
}

/// Answer one request, and compute for a while. False when the client is done.
fn answer(mut connection: &TcpStream, work: u64) -> io::Result<bool> {
    let mut buffer = [0; MESSAGE];
    match connection.read(&mut buffer) {
        Ok(0) => Ok(false),
        Ok(length) => {
            if work > 0 {
                let end = Instant::now() + Duration::from_micros(work);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            }
            connection.write_all(&buffer[..length])?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error),
    }
}

fn serve_socknotify(
    connections: &[TcpStream],
    threads: usize,
    work: u64,
    client: &mut std::process::Child,
) -> io::Result<()> {
    const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    let port = CompletionPort::new()?;
    for (key, connection) in connections.iter().enumerate() {
        port.register(Registration::enable(
            connection,
            key,
            EventFilter::IN,
            ONESHOT,
        ))??;
    }
    let serve = || -> io::Result<()> {
        let mut entries = [Entry::default(); AT_ONCE];
        let mut batch = Vec::with_capacity(AT_ONCE);
        loop {
            let taken = match port.process(&mut batch, &mut entries, None) {
                Ok(taken) => taken,
                Err(Error::Closed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            batch.clear();
            for entry in taken {
                let key = entry.completion_key;
                if answer(&connections[key], work)? {
                    batch.push(Registration::enable(
                        &connections[key],
                        key,
                        EventFilter::IN,
                        ONESHOT,
                    ));
                }
            }
        }
    };
    thread::scope(|scope| {
        let servers: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        client.wait()?;
        port.close();
        for server in servers {
            server.join().expect("the server does not panic")?;
        }
        Ok(())
    })
}

fn serve_raw(
    connections: &[TcpStream],
    threads: usize,
    work: u64,
    client: &mut std::process::Child,
) -> io::Result<()> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = EventFlags::IN | EventFlags::ONESHOT;
    for (key, connection) in connections.iter().enumerate() {
        epoll::add(&set, connection, EventData::new_u64(key as u64), flags)?;
    }
    let (end_read, end_write) = std::os::unix::net::UnixStream::pair()?;
    epoll::add(
        &set,
        &end_read,
        EventData::new_u64(u64::MAX),
        EventFlags::IN,
    )?;
    let done = AtomicBool::new(false);
    let serve = || -> io::Result<()> {
        let mut events = Vec::with_capacity(AT_ONCE);
        while !done.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data;
                if data.u64() == u64::MAX {
                    continue;
                }
                let connection = &connections[data.u64() as usize];
                if answer(connection, work)? {
                    epoll::modify(&set, connection, data, flags)?;
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let servers: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        client.wait()?;
        done.store(true, Ordering::Relaxed);
        (&end_write).write_all(&[0])?;
        for server in servers {
            server.join().expect("the server does not panic")?;
        }
        Ok(())
    })
}
