//! The load itself: threads that send requests and take answers, for a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use socknotify::owned::{Event, Held, Interest, Port, Worker};

use super::client::{Client, Requests};
use super::connect::{self, Address};
use super::fates::Fate;
use super::plan::{Pace, Plan};
use super::score::Score;
use crate::signals::Signals;

/// How many events a thread takes at once.
const ROOM: usize = 64;

/// The most that is received at once.
const RECEIVE: usize = 64 * 1024;

/// How often to look whether there is anybody left, and whether a signal has come.
const TICK: Duration = Duration::from_millis(50);

/// A request that was due less than this before the end may be without an answer.
const TOO_LATE: Duration = Duration::from_millis(200);

/// Why it was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    InTime,
    NoConnectionLeft,
    Interrupted,
}

/// Drives all clients until the time is over, a signal comes, or none is left. Returns how long that was.
pub(crate) fn drive(
    port: &Port<Client>,
    mut clients: Vec<Held<Client>>,
    address: &Address,
    plan: &Plan,
    signals: &Signals,
) -> io::Result<(Score, Duration, End)> {
    let connected = clients.len();
    let left = AtomicUsize::new(connected);
    let is_over = AtomicBool::new(false);
    let share = clients.len().div_ceil(plan.threads);
    let start = Instant::now();
    let interval = match plan.pace {
        Pace::Answers => None,
        Pace::Rate(rate) => Some(Duration::from_secs_f64(clients.len() as f64 / rate)),
    };
    if let Some(interval) = interval {
        // One after the other, and not all at once.
        let count = clients.len() as f64;
        for (index, client) in clients.iter_mut().enumerate() {
            client.requests.due = Some(start + interval.mul_f64(index as f64 / count));
        }
    }
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(plan.threads);
        for _ in 0..plan.threads {
            let share = clients.split_off(clients.len().saturating_sub(share));
            let driver = Driver {
                port,
                address,
                worker: port.worker(ROOM),
                score: Score::new(),
                plan,
                interval,
                waiting: BinaryHeap::new(),
                unconnected: Vec::new(),
                left: &left,
                is_over: &is_over,
            };
            let thread = thread::Builder::new().spawn_scoped(scope, || driver.run(share));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    port.close();
                    return Err(error);
                }
            }
        }
        let end = wait(start, plan, &left, signals);
        let time = start.elapsed();
        let mut total = Score::new();
        let now = Instant::now();
        let just_now = now - TOO_LATE.min(time);
        let is_overdue = |client: &&Client| client.requests.are_overdue_since(just_now);
        is_over.store(true, Ordering::SeqCst);
        let left_over = port.close();
        let overdue = left_over.iter().filter(is_overdue).count();
        let mut unconnected = Vec::new();
        for thread in threads {
            let outcome = thread
                .join()
                .map_err(|_| io::Error::other("a thread panicked"))?;
            let (score, requests) = outcome?;
            total.add(&score);
            unconnected.extend(requests);
        }
        total.fates.parts = left_over.iter().filter(|client| client.has_part()).count() as u64;
        let patience = total.patience(TOO_LATE);
        let connected_ones = left_over.iter().map(|client| &client.requests);
        for requests in connected_ones.chain(&unconnected) {
            let waits = requests.waits(now, interval);
            let waits = waits.filter(|&wait| wait > patience);
            total.unanswered(waits, requests.are_answered());
        }
        if interval.is_some() {
            // A thread that was about to send has its connection neither in the port nor in what is waiting.
            let fates = &mut total.fates;
            let others = fates.served() + fates.errors() + overdue as u64;
            fates.unused = (connected as u64).saturating_sub(others);
        }
        Ok((total, time, end))
    })
}

/// Waits until the time is over, a signal comes, or no connection is left.
fn wait(start: Instant, plan: &Plan, left: &AtomicUsize, signals: &Signals) -> End {
    let bar = match plan.is_shown {
        false => ProgressBar::hidden(),
        true => ProgressBar::new(plan.time.as_millis() as u64).with_style(
            ProgressStyle::with_template("[{bar:30}] {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        ),
    };
    let end = loop {
        let time = start.elapsed();
        if time >= plan.time {
            break End::InTime;
        }
        if signals.have_come() {
            break End::Interrupted;
        }
        if left.load(Ordering::Relaxed) == 0 {
            break End::NoConnectionLeft;
        }
        bar.set_position(time.as_millis() as u64);
        bar.set_message(format!("{} s", time.as_secs()));
        thread::sleep(TICK.min(plan.time - time));
    };
    bar.finish_and_clear();
    end
}

/// A thread's part.
struct Driver<'a> {
    port: &'a Port<Client>,
    address: &'a Address,
    worker: Worker<Client>,
    score: Score,
    plan: &'a Plan,
    /// In an open loop, the time from one request of a connection to the next.
    interval: Option<Duration>,
    /// Connections whose next request is not due yet.
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// What is to be sent on connections that the listener had no room for, since when.
    unconnected: Vec<(Instant, Requests)>,
    left: &'a AtomicUsize,
    is_over: &'a AtomicBool,
}

/// A connection without a request in progress, which is the sooner the less.
struct Waiting {
    due: Instant,
    client: Held<Client>,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Waiting {}

impl Driver<'_> {
    /// Returns also the requests of those that have no connection at the end.
    fn run(mut self, clients: Vec<Held<Client>>) -> io::Result<(Score, Vec<Requests>)> {
        for client in clients {
            self.go_on(client, Ok(self.plan.pipeline));
        }
        let mut room = vec![0; RECEIVE];
        loop {
            let timeout = self.send_due();
            let timeout = match self.unconnected.is_empty() {
                true => timeout,
                false => Some(timeout.map_or(connect::TICK, |time| time.min(connect::TICK))),
            };
            match self.worker.process(timeout) {
                Ok(_) => {}
                // The time is over.
                Err(socknotify::Error::Closed) => {
                    let requests = self.unconnected.into_iter().map(|(_, requests)| requests);
                    return Ok((self.score, requests.collect()));
                }
                Err(error) => return Err(error.into()),
            }
            while let Some(event) = self.worker.take() {
                match event {
                    Event::Ready(mut client, _) => {
                        let outcome = client.turn(&mut room, &mut self.score, self.plan);
                        self.go_on(client, outcome);
                    }
                    Event::Refused(client, error) => {
                        self.go_on(client, Err(Fate::Broken(error.into())))
                    }
                    Event::Connected(client) => {
                        let interest = Interest::IN | Interest::OUT;
                        match client.is_idle() {
                            true => self.go_on(client, Ok(0)),
                            false => self.worker.arm(client, interest),
                        }
                    }
                    Event::Unconnected(client, error) => {
                        self.end(&Fate::Unconnected(error), client.requests.are_answered());
                    }
                    // There are no deadlines here, and nothing else.
                    _ => {}
                }
            }
            for (since, requests) in std::mem::take(&mut self.unconnected) {
                self.begin_again(since, requests);
            }
        }
    }

    /// Sends the requests that are due. How long it is until the next one is.
    fn send_due(&mut self) -> Option<Duration> {
        while let Some(Reverse(first)) = self.waiting.peek() {
            let left = first.due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Some(left);
            }
            if let Some(Reverse(Waiting { due, mut client })) = self.waiting.pop() {
                client.requests.due = self.interval.map(|interval| due + interval);
                let outcome = client.send(1, due, self.plan);
                self.arm(client, outcome);
            }
        }
        None
    }

    /// So many answers have come: send what is to follow them.
    fn go_on(&mut self, mut client: Held<Client>, answers: Result<usize, Fate>) {
        if let (true, Ok(answers)) = (client.is_over(), &answers) {
            let more = if client.requests.due.is_none() {
                *answers
            } else {
                0
            };
            return self.reconnect(client, more);
        }
        let outcome = match (answers, client.requests.due) {
            (Err(fate), _) => Err(fate),
            (Ok(_), Some(due)) if client.is_idle() => {
                return self.waiting.push(Reverse(Waiting { due, client }));
            }
            (Ok(0), _) | (Ok(_), Some(_)) => Ok(()),
            (Ok(answers), None) => client.send(answers, Instant::now(), self.plan),
        };
        self.arm(client, outcome);
    }

    fn arm(&mut self, client: Held<Client>, outcome: Result<(), Fate>) {
        match outcome {
            Ok(()) => {
                let interest = client.interest();
                self.worker.arm(client, interest);
            }
            Err(fate) => self.end(&fate, client.requests.are_answered()),
        }
    }

    /// The server closes the connection, as it has said: make another one.
    fn reconnect(&mut self, mut client: Held<Client>, more: usize) {
        let requests = client.begin_again(more);
        drop(client);
        self.score.reconnects += 1;
        self.begin_again(Instant::now(), requests);
    }

    fn begin_again(&mut self, since: Instant, requests: Requests) {
        match self.address.begin(self.port, requests, self.plan) {
            Ok(_) => {}
            Err((error, Some(requests)))
                if connect::is_full(&error) && since.elapsed() < connect::PATIENCE =>
            {
                self.unconnected.push((since, requests));
            }
            // When the time is over, the port is closed.
            Err(_) if self.is_over.load(Ordering::SeqCst) => {}
            // It was answered: it is made anew only then.
            Err((error, _)) => self.end(&Fate::Unconnected(error), true),
        }
    }

    fn end(&mut self, fate: &Fate, is_answered: bool) {
        self.score.fates.count(fate, is_answered);
        self.left.fetch_sub(1, Ordering::Relaxed);
    }
}
