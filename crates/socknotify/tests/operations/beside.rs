//! What operations on files do to a port's sockets. The figures depend on the machine, so the limits leave room: the goal for a
//! ping is 2 ms, and for a `begin` 1 ms. To see them:
//! `cargo test --release -p socknotify --test operations beside -- --ignored --nocapture --test-threads=1`.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::Backend;
use socknotify::owned::{Buffer, Event, FileOperation, Interest, PortFile};

use super::{TestPort, every_port, file_of};
use crate::support::read_byte;

/// Durations of one kind.
struct Times(&'static str, Vec<Duration>);

impl Times {
    /// Prints them, and returns the 99th percentile.
    fn p99(mut self) -> Duration {
        self.1.sort_unstable();
        let at = |part: f64| self.1[((self.1.len() - 1) as f64 * part) as usize];
        let Times(name, all) = &self;
        let (half, most, max) = (at(0.5), at(0.99), at(1.0));
        println!(
            "  {name}: {} times, p50 {half:?}, p99 {most:?}, max {max:?}",
            all.len()
        );
        most
    }
}

fn time<R>(work: impl FnOnce() -> R) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// Pings a connection of the port, begins and posts, for this long. Returns the 99th percentiles.
fn measure(port: &TestPort, client: &mut TcpStream) -> io::Result<[Duration; 3]> {
    let small = file_of(port, b"0123456789")?;
    let mut pings = Times("ping", Vec::new());
    let mut begins = Times("begin of 10 bytes", Vec::new());
    let mut sends = Times("send", Vec::new());
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        let mut byte = [0];
        pings.1.push(time(|| {
            client.write_all(b"x").expect("it is open");
            client.read_exact(&mut byte).expect("it is open");
        }));
        begins.1.push(time(|| {
            port.begin(FileOperation::read_at(&small, vec![0; 10], 0))
                .expect("it is open")
        }));
        sends.1.push(time(|| port.send(1).expect("it is open")));
        thread::sleep(Duration::from_millis(1));
    }
    Ok([pings, begins, sends].map(Times::p99))
}

/// What is done with a file at any time, and how to begin it once more.
type Load = (&'static str, fn(&PortFile, Buffer) -> FileOperation);

const READS: Load = ("reads", |file, buffer| {
    FileOperation::read_at(file, buffer, 0)
});
const WRITES: Load = ("writes", |file, buffer| {
    FileOperation::write_at(file, buffer, 0)
});

fn beside(port: &TestPort, load: Load, length: usize, count: usize) -> io::Result<()> {
    let (name, operation) = load;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (ours, _) = listener.accept()?;
    client.set_nodelay(true)?;
    ours.set_nodelay(true)?;
    ours.set_nonblocking(true)?;
    port.arm(port.adopt(ours)?, Interest::IN);
    let file = file_of(port, &vec![7; length])?;
    let is_loaded = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            let mut worker = port.worker(64);
            let (file, is_loaded) = (&file, &is_loaded);
            scope.spawn(move || {
                while worker.process(None).is_ok() {
                    while let Some(event) = worker.take() {
                        match event {
                            Event::Ready(mut held, _) => {
                                if let Some(byte) = read_byte(&*held).expect("it is open") {
                                    held.write_all(&[byte]).expect("there is room");
                                }
                                worker.arm(held, Interest::IN);
                            }
                            Event::Completed(done)
                                if done.buffer.len() == length
                                    && is_loaded.load(Ordering::SeqCst) =>
                            {
                                let _ = worker.begin(operation(file, done.buffer));
                            }
                            _ => {}
                        }
                    }
                }
            });
        }
        println!(" idle");
        measure(port, &mut client)?;
        println!(" beside {count} cached {name} of {length} bytes at any time");
        is_loaded.store(true, Ordering::SeqCst);
        for _ in 0..count {
            port.begin(operation(&file, vec![0; length].into()))?;
        }
        let [ping, begin, send] = measure(port, &mut client)?;
        is_loaded.store(false, Ordering::SeqCst);
        port.close();
        assert!(ping <= Duration::from_millis(25), "{ping:?}");
        assert!(
            begin.max(send) <= Duration::from_millis(5),
            "{begin:?}, {send:?}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "for a machine with nothing else to do: .ci/timed"]
fn beside_many_cached_reads_or_writes() -> io::Result<()> {
    let backend = Backend::ALL[0];
    for (load, length, count) in [
        (READS, 4096, 12_000),
        (READS, 64 << 10, 2000),
        (READS, 256 << 10, 2000),
        (READS, 256 << 20, 2),
        (WRITES, 4096, 12_000),
        (WRITES, 256 << 10, 200),
    ] {
        for port in every_port(backend)? {
            println!("{}", port.file_driver());
            beside(&port, load, length, count)?;
        }
    }
    Ok(())
}
