//! A client that sends at scheduled times, whether or not earlier answers have come.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use crate::exchange::{Exchange, Found, warm_up};
use crate::figure::{Figure, Sample, quantile};
use crate::random::Random;

/// Requests that are sent, and connections that are received from, before it is the other's turn.
const AT_ONCE: usize = 64;

/// How many percent of the answers may be missing at the end of a time without the server being behind.
const TOLERATED: f64 = 2.0;

/// Send so many requests a second, to each connection in turn, for this time and for the one to warm up
/// before. `set` reports connections by their index.
pub(crate) fn run(
    set: &OwnedFd,
    connections: Vec<TcpStream>,
    exchange: Exchange,
    rate: usize,
    time: Duration,
) -> io::Result<Found> {
    // Else the system is late by up to 50 µs, to wake fewer times.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let connections = connections.into_iter().map(Connection::new);
    let mut connections = connections.collect::<io::Result<Vec<_>>>()?;
    let mut record = Record::new(time);
    let mut schedule = Schedule::new(rate);
    let mut buffer = vec![0; 1 << 16];
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
    let mut turn = 0;
    let mut under_way = 0;
    let begin = Instant::now();
    let mut next = schedule.next();
    loop {
        let now = begin.elapsed();
        for _ in 0..AT_ONCE {
            if next > now || next >= record.end {
                break;
            }
            record.send(next);
            connections[turn].send(next, exchange)?;
            under_way += 1;
            turn = (turn + 1) % connections.len();
            next = schedule.next();
        }
        let timeout = match next < record.end {
            true => Some(next.saturating_sub(begin.elapsed())),
            false if under_way == 0 => break,
            false => None,
        };
        for event in wait(set, &mut events, timeout)? {
            let connection = &mut connections[event.u64 as usize];
            let answers = connection.receive(&mut buffer, exchange)?;
            let now = begin.elapsed();
            for scheduled in connection.under_way.drain(..answers) {
                record.receive(scheduled, now);
            }
            under_way -= answers;
        }
    }
    record.found()
}

/// The times at which requests are due.
///
/// They are as far apart as those of many clients that do not know of each other: exponentially
/// distributed. They are the same each time, for every implementation.
struct Schedule {
    random: Random,
    /// Seconds between two, on average.
    gap: f64,
    /// Seconds.
    last: f64,
}

impl Schedule {
    fn new(rate: usize) -> Self {
        Schedule {
            random: Random::new(0x005e_ed0f_5ced),
            gap: 1.0 / rate.max(1) as f64,
            last: 0.0,
        }
    }

    fn next(&mut self) -> Duration {
        self.last -= self.gap * self.random.part().ln();
        Duration::from_secs_f64(self.last)
    }
}

struct Connection {
    stream: TcpStream,
    /// When the requests were due that are not answered yet, the oldest first.
    under_way: VecDeque<Duration>,
    /// Bytes of requests that the socket has not taken.
    unsent: usize,
    /// Bytes of an answer that is not complete.
    received: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream,
            under_way: VecDeque::new(),
            unsent: 0,
            received: 0,
        })
    }

    fn send(&mut self, scheduled: Duration, exchange: Exchange) -> io::Result<()> {
        self.under_way.push_back(scheduled);
        self.unsent += exchange.request().len();
        self.flush(exchange)
    }

    /// Send what the socket takes. There is more room when the next answer comes.
    fn flush(&mut self, exchange: Exchange) -> io::Result<()> {
        let request = exchange.request();
        while self.unsent > 0 {
            let rest = match self.unsent % request.len() {
                0 => request.len(),
                rest => rest,
            };
            match self.stream.write(&request[request.len() - rest..]) {
                Ok(length) => self.unsent -= length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How many answers are complete by what is received now.
    fn receive(&mut self, buffer: &mut [u8], exchange: Exchange) -> io::Result<usize> {
        match self.stream.read(buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => self.received += length,
        }
        let answers = self.received / exchange.response();
        self.received %= exchange.response();
        self.flush(exchange)?;
        Ok(answers)
    }
}

/// What came of the requests. Times are since the begin.
struct Record {
    warm_up: Duration,
    end: Duration,
    /// Requests that were due in the time that counts.
    due: usize,
    /// Answers that came in it.
    in_time: usize,
    answers: usize,
    /// Microseconds of each request that was due in it.
    latencies: Vec<f64>,
}

impl Record {
    fn new(time: Duration) -> Self {
        Record {
            warm_up: warm_up(time),
            end: warm_up(time) + time,
            due: 0,
            in_time: 0,
            answers: 0,
            latencies: Vec::new(),
        }
    }

    fn counts(&self, time: Duration) -> bool {
        (self.warm_up..self.end).contains(&time)
    }

    fn send(&mut self, scheduled: Duration) {
        self.due += usize::from(self.counts(scheduled));
    }

    fn receive(&mut self, scheduled: Duration, now: Duration) {
        self.answers += 1;
        self.in_time += usize::from(self.counts(now));
        if self.counts(scheduled) {
            let latency = now - scheduled;
            self.latencies.push(latency.as_secs_f64() * 1e6);
        }
    }

    fn found(mut self) -> io::Result<Found> {
        if self.due == 0 {
            return Err(io::Error::other("no request was due"));
        }
        self.latencies.sort_by(f64::total_cmp);
        let latency = |part| quantile(&self.latencies, part);
        let missing = 100.0 * (1.0 - self.in_time as f64 / self.due as f64);
        let behind = if missing > TOLERATED { missing } else { 0.0 };
        let time = self.end - self.warm_up;
        Ok(Found {
            answers: self.answers as f64,
            figures: Sample::from([
                (Figure::Rate, self.in_time as f64 / time.as_secs_f64()),
                (Figure::P50, latency(0.5)),
                (Figure::P99, latency(0.99)),
                (Figure::P999, latency(0.999)),
                (Figure::Behind, behind),
            ]),
        })
    }
}

/// `epoll_pwait2`. With a timeout below some days, rustix takes whole milliseconds.
fn wait<'a>(
    set: &OwnedFd,
    events: &'a mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<&'a [libc::epoll_event]> {
    // A `__kernel_timespec`, which is the same on every architecture.
    let timeout = timeout.map(|it| [it.as_secs() as i64, it.subsec_nanos().into()]);
    // SAFETY: there is room for as many events as it says, and the timeout lives during the call.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            timeout.as_ref().map_or(ptr::null(), ptr::from_ref),
            ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    match usize::try_from(count) {
        Ok(count) => Ok(&events[..count]),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use rustix::event::epoll::{self, EventData, EventFlags};

    use super::*;

    #[test]
    fn gaps_are_exponentially_distributed_and_the_same_each_time() {
        let times = |rate| {
            let mut schedule = Schedule::new(rate);
            (0..100_000).map(|_| schedule.next()).collect::<Vec<_>>()
        };
        let times_here = times(1000);
        assert_eq!(times_here, times(1000));
        let last = times_here.last().expect("some").as_secs_f64();
        assert!((last - 100.0).abs() < 1.0, "{last}");
        let gaps = times_here.windows(2).map(|pair| pair[1] - pair[0]);
        let long = gaps.filter(|&it| it > Duration::from_millis(1)).count();
        let part = long as f64 / 100_000.0;
        assert!((part - (-1.0_f64).exp()).abs() < 0.01, "{part}");
    }

    #[test]
    fn requests_are_sent_while_answers_are_late_and_count_from_their_scheduled_times()
    -> io::Result<()> {
        const RATE: usize = 1000;
        const HELD_BACK: usize = 60;
        let exchange = Exchange::Echo;
        let time = Duration::from_millis(100);

        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        // It answers none until it has this many.
        let server = thread::spawn(move || -> io::Result<()> {
            let mut first = vec![0; HELD_BACK * exchange.request().len()];
            server.read_exact(&mut first)?;
            server.write_all(&first)?;
            io::copy(&mut server.try_clone()?, &mut server).map(drop)
        });
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&set, &stream, EventData::new_u64(0), EventFlags::IN)?;
        let found = run(&set, vec![stream], exchange, RATE, time)?;
        server.join().expect("it does not panic")?;

        let mut schedule = Schedule::new(RATE);
        let end = warm_up(time) + time;
        let due = std::iter::repeat_with(|| schedule.next()).take_while(|&it| it < end);
        let due: Vec<_> = due.collect();
        assert_eq!(found.answers, due.len() as f64);
        let counted = due.iter().position(|&it| it >= warm_up(time));
        let counted = counted.expect("some are counted");
        // The two that took longest are the two that count first, or it was worse.
        let waited = due[HELD_BACK - 1] - due[counted + 1];
        assert!(waited > Duration::ZERO);
        let longest = found.figures[&Figure::P999];
        assert!(
            longest >= waited.as_secs_f64() * 1e6,
            "{longest} µs, {waited:?}"
        );
        Ok(())
    }
}
