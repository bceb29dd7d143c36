//! Microsoft's third program: a server with many threads on one port.
//!
//! Registrations are one-shot and level-triggered, so the thread that dequeues a notification has the
//! socket to itself until it enables it again. A thread's loop is a single call: it applies what the
//! thread decided in the previous turn and dequeues what is next.
//!
//! What a completion key refers to is freed when the REMOVE notification of its registration has
//! come, and not before. At the end one packet is posted, which each thread passes on to the next.

use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use socknotify::{Entry, Error, EventFilter, Events, Registration, Trigger};

use super::clients;
use super::connections::{Connection, Connections};
use super::problem::{Context, Problem};
use super::run::{Run, outcome_of};
use super::tcp::{self, Received};

/// The completion key of the listener. Those of the connections count from 0.
const LISTENER: usize = usize::MAX - 1;

/// The completion key of the packet that tells a thread to end.
const EXIT: usize = usize::MAX;

const TRIGGER: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);

/// How many packets a thread takes at once, as in Microsoft's program.
const DEQUEUE_COUNT: usize = 3;

/// How many connections one notification of the listener accepts at most, so that they are spread
/// over the threads.
const ACCEPT_COUNT: usize = 64;

/// How long a thread waits before it looks again. That nothing came in the meantime is no failure.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(run: &Run) -> Result<(), Problem> {
    let listener = tcp::listen().context("listen")?;
    let address = listener.local_addr().context("listen")?;
    thread::scope(|scope| {
        let clients = scope.spawn(|| clients::run_tcp(run, address));
        // The server goes when it is done, with every socket that it may still have: clients that
        // wait for it must not wait for ever.
        let served = Server::new(run, listener).serve();
        outcome_of(clients.join()).and(served)
    })
}

/// What the server's threads share.
struct Server<'run> {
    run: &'run Run,
    listener: TcpListener,
    connections: Connections,
    /// Registrations whose REMOVE notification is still to come.
    registrations_left: AtomicU64,
    /// Threads that were not told to end yet.
    threads_left: AtomicU32,
}

/// What a thread registers with its next call.
enum Step {
    ArmListener,
    RemoveListener,
    Arm(Arc<Connection>),
    Remove(Arc<Connection>),
}

impl<'run> Server<'run> {
    fn new(run: &'run Run, listener: TcpListener) -> Self {
        Server {
            run,
            listener,
            connections: Connections::default(),
            registrations_left: AtomicU64::new(run.plan.removals()),
            threads_left: AtomicU32::new(run.plan.threads),
        }
    }

    /// Serves until all threads have been told to end.
    fn serve(self) -> Result<(), Problem> {
        let armed = self.run.register(
            "register the listener",
            Step::ArmListener.registration(&self.listener),
        );
        thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut outcome = armed;
            for _ in 0..self.run.plan.threads {
                match thread::Builder::new().spawn_scoped(scope, || self.run_thread()) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        outcome = outcome.and(Err(error).context("start a server thread"));
                        break;
                    }
                }
            }
            if let Err(problem) = &outcome {
                self.run.give_up(problem);
            }
            for thread in threads {
                outcome = outcome.and(outcome_of(thread.join()));
            }
            outcome
        })
    }

    /// Any thread's failure ends the scenario, as its sockets would not be served any more.
    fn run_thread(&self) -> Result<(), Problem> {
        self.process_until_exit()
            .inspect_err(|problem| self.run.give_up(problem))
    }

    fn process_until_exit(&self) -> Result<(), Problem> {
        let mut steps: Vec<Step> = Vec::new();
        let mut entries = [Entry::default(); DEQUEUE_COUNT];
        loop {
            let mut batch: Vec<_> = steps
                .iter()
                .map(|step| step.registration(&self.listener))
                .collect();
            let dequeued = match self
                .run
                .port
                .process(&mut batch, &mut entries, Some(TIMEOUT))
            {
                // The batch has been applied all the same.
                Err(Error::TimedOut) => &mut [],
                Err(Error::Closed) if self.run.has_given_up() => return Ok(()),
                dequeued => dequeued.context("process")?,
            };
            let _running = (!dequeued.is_empty()).then(|| self.run.tally.running.enter());
            for registration in &batch {
                registration.result().context("register")?;
            }
            steps.clear();

            let mut told_to_end = false;
            for entry in dequeued {
                match entry.completion_key {
                    EXIT => told_to_end = true,
                    key => self.notified(key, entry.events(), &mut steps)?,
                }
            }
            if told_to_end {
                return self.tell_next_thread();
            }
        }
    }

    /// Passes the exit packet on, unless there is nobody left to take it.
    fn tell_next_thread(&self) -> Result<(), Problem> {
        if self.threads_left.fetch_sub(1, Ordering::Relaxed) > 1 {
            self.run.post(Entry::new(EXIT, 0, 0))?;
        }
        Ok(())
    }

    fn notified(&self, key: usize, events: Events, steps: &mut Vec<Step>) -> Result<(), Problem> {
        self.run.tally.notifications.add(1);
        match key {
            _ if events.contains(Events::REMOVE) => self.removed(key),
            LISTENER => self.accept(steps),
            _ => {
                steps.push(self.receive(key, events)?);
                Ok(())
            }
        }
    }

    /// The registration is over: what its key refers to goes. The last one ends the server.
    fn removed(&self, key: usize) -> Result<(), Problem> {
        self.run.tally.removals.add(1);
        if key != LISTENER {
            let connection = self.connections.take(key)?;
            // A thread that named the socket in a call may still wait in that call, and so keep the
            // descriptor open for a while. The client should not have to wait for that.
            connection.stream.shutdown(Shutdown::Both).ok();
        }
        if self.registrations_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.run.post(Entry::new(EXIT, 0, 0))?;
        }
        Ok(())
    }

    /// Accepts what waits, and arms the listener again until all clients are here.
    fn accept(&self, steps: &mut Vec<Step>) -> Result<(), Problem> {
        let Run { plan, tally, .. } = self.run;
        for _ in 0..ACCEPT_COUNT {
            let accepted = tcp::accept(&self.listener)
                .map_err(|error| Problem::no_socket("accept", &error, plan))?;
            let Some(stream) = accepted else { break };
            steps.push(Step::Arm(self.connections.add(stream)));
            tally.connections.add(1);
        }
        // Nobody else counts connections: until it is armed again the listener is this thread's.
        steps.push(if tally.connections.get() < plan.clients.into() {
            Step::ArmListener
        } else {
            Step::RemoveListener
        });
        Ok(())
    }

    /// Receives one chunk, or all that there still is when the client has hung up.
    fn receive(&self, key: usize, events: Events) -> Result<Step, Problem> {
        let connection = self.connections.get(key)?;
        let held = connection.hold(key)?;
        let over = loop {
            match tcp::receive(&connection.stream) {
                Ok(Received::Bytes(length)) => {
                    self.run.tally.bytes.add(length);
                    connection.received.fetch_add(length, Ordering::Relaxed);
                    if !events.contains(Events::HANGUP) {
                        break false;
                    }
                }
                Ok(Received::Nothing) => break false,
                Ok(Received::End) => {
                    connection.check_length(self.run, key);
                    break true;
                }
                Err(error) => {
                    self.run
                        .note(&Problem::new(format_args!("connection {key}: {error}")));
                    break true;
                }
            }
        };
        drop(held);
        Ok(match over {
            true => Step::Remove(connection),
            false => Step::Arm(connection),
        })
    }
}

impl Step {
    fn registration<'step>(&'step self, listener: &'step TcpListener) -> Registration<'step> {
        match self {
            Step::ArmListener => Registration::enable(listener, LISTENER, EventFilter::IN, TRIGGER),
            Step::RemoveListener => Registration::remove(listener),
            Step::Arm(connection) => {
                let filter = EventFilter::IN | EventFilter::HANGUP;
                Registration::enable(&connection.stream, connection.key, filter, TRIGGER)
            }
            Step::Remove(connection) => Registration::remove(&connection.stream),
        }
    }
}
