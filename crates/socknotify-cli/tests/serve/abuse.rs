//! Clients that do what no client should, thousands of them, and one that wants to be served.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use crate::clients::{Answer, GET, HttpClient, connect, stats};
use crate::program::{Server, eventually};

/// How many of each kind there should be.
const CLIENTS: u64 = 600;

/// Those who never read need a thread each.
const DEAF: usize = 5;

/// How long a client may be idle.
const IDLE: Duration = Duration::from_secs(3);

/// The most memory that the server may take for all of them, in KiB.
const MEMORY: u64 = 64 * 1024;

/// As many as descriptors allow: those who send half a request all stay.
fn clients() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // What cannot be raised has to do.
    let _ = setrlimit(Resource::Nofile, raised);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Other tests of this process have descriptors, too.
    CLIENTS.min(limit.saturating_sub(300)).max(50) as usize
}

/// Breaks the connection off, in place of an orderly end.
fn reset(stream: TcpStream) -> io::Result<()> {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// Connect, perhaps say something, and break off.
fn hasty(address: SocketAddr, count: usize) -> io::Result<()> {
    for index in 0..count {
        let mut stream = connect(address)?;
        let text = [&b""[..], GET.as_bytes(), b"GET / HT", b"\0\xff\r\n\r\n"];
        stream.write_all(text[index % text.len()])?;
        reset(stream)?;
    }
    Ok(())
}

/// Half a request, and then nothing.
fn hesitant(address: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let mut stream = connect(address)?;
            stream.write_all(&GET.as_bytes()[..GET.len() / 2])?;
            Ok(stream)
        })
        .collect()
}

/// One that connects again if the server has let it go as idle. It may, once the machine has held up one of the two for so
/// long.
struct Client {
    client: HttpClient,
    address: SocketAddr,
    /// When it was last in touch.
    since: Instant,
}

impl Client {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let since = Instant::now();
        let client = HttpClient::connect(address)?;
        Ok(Client {
            client,
            address,
            since,
        })
    }

    fn request(&mut self, text: &str) -> io::Result<Answer> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};

        let mut attempts = 0;
        loop {
            match self.client.request(text) {
                Err(error)
                    if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
                        && self.since.elapsed() >= IDLE
                        && attempts < 3 =>
                {
                    attempts += 1;
                    *self = Client::connect(self.address)?;
                }
                answer => {
                    self.since = Instant::now();
                    return answer;
                }
            }
        }
    }
}

/// Nonsense. It is told so.
fn babbling(address: SocketAddr, count: usize) -> io::Result<()> {
    for _ in 0..count {
        let mut client = Client::connect(address)?;
        let answer = client.request("\x16\x03\x01\x02 \x7f\r\n\r\n")?;
        assert_eq!(answer.status, 400);
    }
    Ok(())
}

/// Requests without end, and no answer is ever read. Until the server has had enough, or takes nothing for long: now and then, where
/// a client's system has no memory for what comes, it takes no acknowledgement either, and so sends nothing more.
fn deaf(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(&address.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(2 * IDLE))?;
    let requests = GET.repeat(1000);
    while stream.write_all(requests.as_bytes()).is_ok() {}
    Ok(stream)
}

/// Tells that it is over, even if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One request after the other, on a connection that stays and on new ones, until the others are done.
fn good(address: SocketAddr, is_over: &AtomicBool) -> io::Result<u64> {
    let mut client = Client::connect(address)?;
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        for client in [&mut client, &mut Client::connect(address)?] {
            let answer = client.request(GET)?;
            assert_eq!((answer.status, &*answer.body), (200, "Hello, world!\n"));
            count += 1;
        }
        // The others are what it is about.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(count)
}

#[test]
fn a_good_client_is_served_among_thousands_of_bad_ones() -> io::Result<()> {
    let idle = IDLE.as_secs().to_string();
    let server = Server::start("http", &["--idle-timeout", &idle])?;
    let address = server.address;
    let count = clients();
    eventually("the first client is gone", || {
        Ok(stats(address)?["connections"] == 1)
    })?;
    let before = server.own_descriptors()?;
    let (memory, _) = server.memory()?;

    let is_over = AtomicBool::new(false);
    let answered = thread::scope(|scope| -> io::Result<u64> {
        let over = Over(&is_over);
        let good = scope.spawn(|| good(address, &is_over));
        let bad = [
            scope.spawn(move || hasty(address, count)),
            scope.spawn(move || babbling(address, count)),
        ];
        let deaf: Vec<_> = (0..DEAF)
            .map(|_| scope.spawn(move || deaf(address)))
            .collect();
        let hesitant = scope.spawn(move || hesitant(address, count));
        let mut outcome = Ok(());
        for thread in bad {
            outcome = outcome.and(thread.join().expect("no panic"));
        }
        let hesitant = hesitant.join().expect("no panic");
        let deaf = deaf.into_iter().map(|it| it.join().expect("no panic"));
        let deaf = deaf.collect::<io::Result<Vec<_>>>();
        // They are still there. It is the server that has to let them go: then there are the good one and this one.
        let dropped = eventually("slow clients are dropped", || {
            Ok(stats(address)?["connections"].as_u64() <= Some(4))
        });
        drop(over);
        let answered = good.join().expect("no panic");
        drop((hesitant?, deaf?));
        outcome.and(dropped).and(answered)
    })?;
    // However slow the machine is.
    assert!(answered >= 10, "{answered}");

    let stats = stats(address)?;
    assert!(
        stats["client_errors"].as_u64() >= Some(count as u64),
        "{stats}"
    );
    assert_eq!(stats["server_errors"], 0, "{stats}");
    eventually("all descriptors are closed", || {
        Ok(server.own_descriptors()? <= before)
    })?;
    let (after, most) = server.memory()?;
    assert!(
        after < memory + MEMORY && most < memory + MEMORY,
        "{memory} {after} {most}"
    );
    server.stop()?;
    Ok(())
}
