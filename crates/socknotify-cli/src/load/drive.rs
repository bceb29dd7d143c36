//! The load itself: threads that send requests and take answers, for a time.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use socknotify::owned::{Event, Held, Port, Worker};

use super::client::Client;
use super::fates::Fate;
use super::plan::Plan;
use super::score::Score;
use crate::signals::Signals;

/// How many events a thread takes at once.
const ROOM: usize = 64;

/// The most that is received at once.
const RECEIVE: usize = 64 * 1024;

/// How often to look whether there is anybody left, and whether a signal has come.
const TICK: Duration = Duration::from_millis(50);

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
    plan: &Plan,
    signals: &Signals,
) -> io::Result<(Score, Duration, End)> {
    let left = AtomicUsize::new(clients.len());
    let share = clients.len().div_ceil(plan.threads);
    let start = Instant::now();
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(plan.threads);
        for _ in 0..plan.threads {
            let share = clients.split_off(clients.len().saturating_sub(share));
            let driver = Driver {
                worker: port.worker(ROOM),
                score: Score::new(),
                plan,
                left: &left,
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
        drop(port.close());
        let mut total = Score::new();
        for thread in threads {
            let score = thread
                .join()
                .map_err(|_| io::Error::other("a thread panicked"))?;
            total.add(&score?);
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
    worker: Worker<Client>,
    score: Score,
    plan: &'a Plan,
    left: &'a AtomicUsize,
}

impl Driver<'_> {
    fn run(mut self, clients: Vec<Held<Client>>) -> io::Result<Score> {
        for mut client in clients {
            let outcome = client.send(self.plan.pipeline, self.plan);
            self.go_on(client, outcome);
        }
        let mut room = vec![0; RECEIVE];
        loop {
            match self.worker.process(None) {
                Ok(_) => {}
                // The time is over.
                Err(socknotify::Error::Closed) => return Ok(self.score),
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
                    // There are no deadlines here, and nothing else.
                    _ => {}
                }
            }
        }
    }

    fn go_on(&mut self, client: Held<Client>, outcome: Result<(), Fate>) {
        match outcome {
            Ok(()) => {
                let interest = client.interest();
                self.worker.arm(client, interest);
            }
            Err(fate) => {
                self.score.fates.count(&fate, client.is_answered());
                self.left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}
