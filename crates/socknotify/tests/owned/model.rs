//! Random operations on an owning port, against a model of what may come out of it.
//!
//! One thread does one thing after the other. Each connection is held, armed or closed. What comes out
//! has to be armed and to have a reason; and when nothing comes, no armed connection may have one.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use socket2::Socket;
use socknotify::owned::{Event, Held, Id, Interest, TimerId};
use socknotify::{Backend, EventFilter, Events};

use crate::support::{counted, end_shows_behind_data, uninterrupted};
use crate::{Connection, TestPort, TestWorker, connect, owning_port};

const CONNECTIONS: usize = 4;

/// Messages by timers that come, and that do not.
const SOON: u64 = 8;
const LATE: u64 = 9;

#[derive(Clone, Debug)]
enum Operation {
    /// Adopt a new connection in this place; what was held there is closed.
    Adopt(usize),
    /// Adopt the reading end of a pipe, where those can be watched.
    AdoptPipe(usize),
    Arm {
        place: usize,
        filter: u16,
        /// A deadline that has passed, or none.
        late: bool,
        /// By the port at once, or by the worker with its next call.
        at_once: bool,
    },
    Cancel(usize),
    Drop(usize),
    /// Take it out by its name.
    TakeOut(usize),
    /// Take it out of the port and adopt it again.
    Readopt(usize),
    PeerSends(usize),
    PeerCloses(usize),
    Drain(usize),
    Send,
    /// A message that comes soon, or not before the case is over.
    Timer {
        soon: bool,
    },
    CancelTimer,
    Process,
    /// Take one event that the latest call has left.
    Take,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        Adopt, AdoptPipe, Arm, Cancel, Drain, Drop, PeerCloses, PeerSends, Process, Readopt,
        TakeOut,
    };
    let place = || 0..CONNECTIONS;
    prop_oneof![
        2 => place().prop_map(Adopt),
        1 => place().prop_map(AdoptPipe),
        6 => (place(), 0..8_u16, any::<[bool; 3]>()).prop_map(|(place, filter, [a, b, c])| Arm {
            place,
            filter,
            late: a && b,
            at_once: c,
        }),
        3 => place().prop_map(Cancel),
        1 => place().prop_map(Drop),
        3 => place().prop_map(TakeOut),
        1 => place().prop_map(Readopt),
        4 => place().prop_map(PeerSends),
        1 => place().prop_map(PeerCloses),
        3 => place().prop_map(Drain),
        1 => Just(Operation::Send),
        // Those that come take time.
        1 => (0..16).prop_map(|dice| Operation::Timer { soon: dice == 0 }),
        1 => Just(Operation::CancelTimer),
        4 => Just(Process),
        4 => Just(Operation::Take),
    ]
}

/// Why a connection came out.
enum Reason {
    Ready(Events),
    Cancelled,
    TimedOut,
}

/// What a connection was armed with.
#[derive(Clone, Copy, Debug)]
struct Armed {
    filter: EventFilter,
    late: bool,
    /// The system has been told, and not only the worker.
    is_submitted: bool,
}

#[derive(Default)]
struct Place {
    held: Option<Held<Connection>>,
    armed: Option<Armed>,
    /// Somebody has asked for it to come out.
    cancelled: bool,
    /// The same, perhaps after it came out, and before it was taken: then it comes again.
    cancelled_late: bool,
    id: Option<Id>,
    peer: Option<Socket>,
    unread: usize,
    ended: bool,
    is_pipe: bool,
}

impl Place {
    fn new(held: Held<Connection>, peer: Socket, is_pipe: bool) -> Self {
        Place {
            id: Some(held.id()),
            held: Some(held),
            peer: Some(peer),
            is_pipe,
            ..Place::default()
        }
    }

    /// Whether the port was asked to have it come out.
    fn is_cancelled(&self) -> bool {
        self.cancelled || self.cancelled_late
    }

    /// The conditions that hold.
    fn events(&self) -> Events {
        let mut events = match self.is_pipe {
            true => Events::empty(),
            false => Events::OUT,
        };
        events.set(Events::IN, self.unread > 0 || self.ended);
        events.set(Events::HANGUP, self.ended);
        events
    }

    fn is_ready(&self) -> bool {
        self.armed
            .is_some_and(|armed| !(self.events() & wanted(armed.filter)).is_empty())
    }
}

fn wanted(filter: EventFilter) -> Events {
    Events::from_bits_truncate(u32::from(filter.bits()))
}

struct World {
    port: TestPort,
    worker: TestWorker,
    places: [Place; CONNECTIONS],
    messages: usize,
    /// Messages that come at some time.
    soon: usize,
    timers: Vec<TimerId>,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

impl World {
    fn new(backend: Backend) -> io::Result<Self> {
        let port = owning_port(backend, 2)?;
        Ok(World {
            worker: port.worker(3),
            port,
            places: Default::default(),
            messages: 0,
            soon: 0,
            timers: Vec::new(),
        })
    }

    fn apply(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Adopt(place) => {
                if self.places[place].armed.is_none() {
                    let (held, peer) = connect(&self.port)?;
                    self.places[place] = Place::new(held, peer, false);
                }
            }
            Operation::AdoptPipe(place) => {
                if self.places[place].armed.is_none() {
                    if let Some((held, peer)) = pipe(&self.port)? {
                        self.places[place] = Place::new(held, peer, true);
                    }
                }
            }
            Operation::TakeOut(place) => {
                let place = &mut self.places[place];
                let Some(id) = place.id else { return Ok(()) };
                let taken = self.port.disarm(id);
                let has_reason =
                    |armed: Armed| armed.late || place.is_cancelled() || place.is_ready();
                match (taken, place.armed) {
                    (Some(held), Some(_)) if held.id() == id => {
                        place.held = Some(held);
                        place.armed = None;
                    }
                    (Some(_), _) => return Err("it was not armed".into()),
                    (None, Some(armed)) if armed.is_submitted && !has_reason(armed) => {
                        return Err("it waits, and cannot be taken out".into());
                    }
                    (None, _) => {}
                }
            }
            Operation::Arm {
                place,
                filter,
                late,
                at_once,
            } => self.arm(place, EventFilter::from_bits_retain(filter), late, at_once)?,
            Operation::Cancel(place) => {
                let place = &mut self.places[place];
                let lives = place.held.is_some() || place.armed.is_some();
                if let Some(id) = place.id {
                    if self.port.cancel(id) != lives {
                        return Err("a living connection can be cancelled, and no other".into());
                    }
                    place.cancelled_late |= lives && place.armed.is_some();
                    place.cancelled |= lives;
                }
            }
            Operation::Drop(place) => {
                let place = &mut self.places[place];
                if place.held.take().is_some() {
                    place.cancelled = false;
                    place.cancelled_late = false;
                    let peer = place.peer.take();
                    if let Some(mut peer) = peer.filter(|_| !place.is_pipe) {
                        let told = uninterrupted(|| peer.read(&mut [0]));
                        let reset =
                            |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
                        if !matches!(&told, Ok(0)) && !told.as_ref().is_err_and(reset) {
                            return Err(format!("the peer is not told: {told:?}").into());
                        }
                    }
                }
            }
            Operation::Readopt(place) => {
                let place = &mut self.places[place];
                if let Some(held) = place.held.take() {
                    let held = match place.is_pipe {
                        true => adopt_any(&self.port, held.into_inner())?,
                        false => self.port.adopt(held.into_inner())?,
                    };
                    if place.id == Some(held.id()) {
                        return Err("an id came twice".into());
                    }
                    place.id = Some(held.id());
                    place.held = Some(held);
                    place.cancelled = false;
                    place.cancelled_late = false;
                }
            }
            Operation::PeerSends(place) => {
                let place = &mut self.places[place];
                if let (Some(peer), false) = (&place.peer, place.ended) {
                    place.unread += write(peer)?;
                }
            }
            // What is not shown until the data before it was read, the model knows nothing of.
            Operation::PeerCloses(place)
                if self.places[place].unread > 0 && !end_shows_behind_data() => {}
            Operation::PeerCloses(place) => {
                let place = &mut self.places[place];
                if let Some(peer) = &place.peer {
                    place.ended = true;
                    // One way only: what is there still has to be readable.
                    match place.is_pipe {
                        true => place.peer = None,
                        false => peer.shutdown(std::net::Shutdown::Write)?,
                    }
                }
            }
            Operation::Drain(place) => {
                let place = &mut self.places[place];
                if let Some(held) = &place.held {
                    while place.unread > 0 {
                        place.unread -= read(&held.socket)?;
                    }
                }
            }
            Operation::Send => {
                self.port.send(7)?;
                self.messages += 1;
            }
            Operation::Timer { soon: true } => {
                self.port.send_after(Duration::ZERO, SOON)?;
                self.soon += 1;
            }
            Operation::Timer { soon: false } => {
                let hour = Duration::from_secs(3600);
                self.timers.push(self.port.send_after(hour, LATE)?);
            }
            Operation::CancelTimer => {
                if let Some(timer) = self.timers.pop() {
                    let cancelled = [0; 2].map(|_| self.port.cancel_timer(timer));
                    if cancelled != [true, false] {
                        return Err("a timer is cancelled once".into());
                    }
                }
            }
            Operation::Process => return self.process(),
            Operation::Take => return self.take().map(drop),
        }
        Ok(())
    }

    fn arm(&mut self, place: usize, filter: EventFilter, late: bool, at_once: bool) -> Outcome {
        let place = &mut self.places[place];
        let Some(held) = place.held.take() else {
            return Ok(());
        };
        place.armed = Some(Armed {
            filter,
            late,
            is_submitted: at_once,
        });
        let mut interest = Interest::NOTHING;
        for (condition, one) in [
            (EventFilter::IN, Interest::IN),
            (EventFilter::OUT, Interest::OUT),
            (EventFilter::HANGUP, Interest::HANGUP),
        ] {
            if filter.contains(condition) {
                interest = interest | one;
            }
        }
        if late {
            interest = interest.until(Instant::now());
        }
        match at_once {
            true => self.port.arm(held, interest),
            false => self.worker.arm(held, interest),
        }
        Ok(())
    }

    fn process(&mut self) -> Outcome {
        for armed in self.places.iter_mut().filter_map(|it| it.armed.as_mut()) {
            armed.is_submitted = true;
        }
        match self.worker.process(Some(Duration::ZERO)) {
            Ok(1..) => Ok(()),
            Ok(0) => {
                // What has passed already comes with the next tick of the timer.
                let due =
                    |place: &&Place| place.armed.is_some() && (place.is_ready() || place.cancelled);
                match self.places.iter().find(due) {
                    Some(place) => Err(format!("{:?} is due, and nothing came", place.id).into()),
                    None if self.messages > 0 => Err("a message is lost".into()),
                    None => Ok(()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// True if there was an event.
    fn take(&mut self) -> Result<bool, Box<dyn std::error::Error>> {
        let Some(event) = self.worker.take() else {
            return Ok(false);
        };
        let shown = format!("{event:?}");
        let (held, reason) = match event {
            Event::Message(7) if self.messages > 0 => {
                self.messages -= 1;
                return Ok(true);
            }
            Event::Message(SOON) if self.soon > 0 => {
                self.soon -= 1;
                return Ok(true);
            }
            Event::Ready(held, events) => (held, Reason::Ready(events)),
            Event::Cancelled(held) => (held, Reason::Cancelled),
            Event::TimedOut(held) => (held, Reason::TimedOut),
            _ => return Err(format!("{shown} cannot come").into()),
        };
        let place = self.place_of(&held)?;
        let armed = place.armed.take().ok_or("it was not armed")?;
        let is_right = match reason {
            Reason::Ready(events) => {
                let holds = place.events() & wanted(armed.filter);
                !events.is_empty() && holds.contains(events)
            }
            Reason::Cancelled => {
                let late = !place.cancelled && std::mem::take(&mut place.cancelled_late);
                std::mem::take(&mut place.cancelled) || late
            }
            Reason::TimedOut => armed.late,
        };
        place.held = Some(held);
        match is_right {
            true => Ok(true),
            false => Err(format!("{shown} has no reason").into()),
        }
    }

    fn place_of(&mut self, held: &Held<Connection>) -> Result<&mut Place, String> {
        let id = Some(held.id());
        let place = self.places.iter_mut().find(|place| place.id == id);
        place.ok_or_else(|| format!("nobody knows {held:?}"))
    }

    /// In the end the port drains: each connection comes out for that, once, and then the port closes.
    fn drain(mut self) -> Outcome {
        let living = |place: &&Place| place.held.is_some() || place.armed.is_some();
        let living = self.places.iter().filter(living);
        let mut left: Vec<_> = living.filter_map(|place| place.id).collect();
        let some = left.clone();
        self.port.drain(Duration::from_secs(3600));
        for id in some.into_iter().step_by(3) {
            self.port.cancel(id);
        }
        for place in &mut self.places {
            if let Some(held) = place.held.take() {
                self.port.arm(held, Interest::NOTHING);
            }
        }
        while self.worker.process(Some(crate::PATIENCE)).is_ok() {
            while let Some(event) = self.worker.take() {
                match event {
                    Event::Draining(held) => match left.iter().position(|&id| id == held.id()) {
                        Some(index) => drop(left.swap_remove(index)),
                        None => return Err(format!("{held:?} drains again").into()),
                    },
                    Event::Ready(held, _) | Event::Cancelled(held) | Event::TimedOut(held) => {
                        self.port.arm(held, Interest::NOTHING);
                    }
                    Event::Message(_) => {}
                    other => return Err(format!("{other:?} cannot come").into()),
                }
            }
        }
        match left.is_empty() && self.port.connections() == 0 && self.port.close().is_empty() {
            true => Ok(()),
            false => Err(format!("{left:?} did not drain").into()),
        }
    }

    /// In the end everything comes out that has a reason to.
    fn finish(mut self) -> Outcome {
        for place in &mut self.places {
            if let (Some(id), Some(_)) = (place.id, place.armed) {
                self.port.cancel(id);
                place.cancelled = true;
            }
        }
        while self.places.iter().any(|place| place.armed.is_some()) || self.messages + self.soon > 0
        {
            self.worker.process(Some(crate::PATIENCE))?;
            while self.take()? {}
        }
        for place in &mut self.places {
            place.held = None;
        }
        let registrations = counted(self.port.snapshot().registrations);
        match registrations == 0 {
            true => Ok(()),
            false => Err(format!("{registrations:?} registrations are left").into()),
        }
    }
}

/// The reading end of a pipe that the port has adopted, and the other one.
#[cfg(unix)]
fn pipe(port: &TestPort) -> io::Result<Option<(Held<Connection>, Socket)>> {
    let (reader, writer) = rustix::pipe::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    let connection = Connection {
        socket: reader.into(),
        served: 0,
    };
    Ok(Some((adopt_any(port, connection)?, writer.into())))
}

#[cfg(not(unix))]
fn pipe(_: &TestPort) -> io::Result<Option<(Held<Connection>, Socket)>> {
    Ok(None)
}

#[cfg(unix)]
fn adopt_any(port: &TestPort, connection: Connection) -> io::Result<Held<Connection>> {
    Ok(port.adopt_descriptor(connection)?)
}

#[cfg(not(unix))]
fn adopt_any(port: &TestPort, connection: Connection) -> io::Result<Held<Connection>> {
    Ok(port.adopt(connection)?)
}

/// Write a byte, be it to a socket or not.
#[cfg(unix)]
fn write(to: &Socket) -> io::Result<usize> {
    Ok(rustix::io::write(to, b"x")?)
}

#[cfg(unix)]
fn read(from: &Socket) -> io::Result<usize> {
    Ok(rustix::io::read(from, &mut [0; 64])?)
}

#[cfg(not(unix))]
fn write(mut to: &Socket) -> io::Result<usize> {
    std::io::Write::write(&mut to, b"x")
}

#[cfg(not(unix))]
fn read(mut from: &Socket) -> io::Result<usize> {
    from.read(&mut [0; 64])
}

#[for_every_backend]
fn the_owning_port_does_what_the_model_says(backend: Backend) -> io::Result<()> {
    let setting = |name: &str| -> Option<usize> { std::env::var(name).ok()?.parse().ok() };
    let config = Config {
        cases: setting("SOCKNOTIFY_MODEL_CASES").unwrap_or(2000) as u32,
        failure_persistence: None,
        ..Config::default()
    };
    let seed = setting("SOCKNOTIFY_MODEL_SEED").unwrap_or(3) as u8;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let most = setting("SOCKNOTIFY_MODEL_STEPS").unwrap_or(60);
    let steps = proptest::collection::vec(operation(), 1..=most);
    let steps = (steps, any::<bool>());
    let outcome = TestRunner::new_with_rng(config, rng).run(&steps, |(steps, drains)| {
        let run = || -> Outcome {
            let mut world = World::new(backend)?;
            for (number, step) in steps.iter().enumerate() {
                let outcome = world.apply(step);
                outcome.map_err(|error| format!("step {number}, {step:?}: {error}"))?;
            }
            match drains {
                true => world.drain(),
                false => world.finish(),
            }
        };
        run().map_err(|error| TestCaseError::fail(error.to_string()))
    });
    if let Err(failure) = outcome {
        panic!("seed {seed}: {failure}");
    }
    Ok(())
}
