//! Threads at full load: every connection is ready all the time, and nobody reads. A turn is a call that
//! hands back what the thread had, and takes the next. The order is always "written, then armed".

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread::{self, Thread};

use crate::case::{Axis, Case, Effort, Parameter, Setting, Trial};
use crate::cases::load::waits;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::servers::{self, Outcome, Session, Shape};
use crate::stopwatch::Stopwatch;

pub(crate) const CASE: Case = Case {
    name: "saturated",
    about: "threads that share connections which are always ready: a notification, and its socket armed again",
    compared_by: Figure::Gross,
    axes: &[
        Axis {
            parameter: Parameter::Batch,
            values: &[16],
            quick: &[16],
        },
        Axis {
            parameter: Parameter::Threads,
            values: &[1, 2, 16],
            quick: &[1, 16],
        },
    ],
    implementations: || {
        use Implementation::*;
        Implementation::around(&[RawEpoll], &[Polling])
    },
    parts: 1,
    is_counted: true,
    prepare: |setting, effort| Ok(Box::new(Saturated::new(setting, effort))),
};

/// Enough for several threads to have their hands full.
const CONNECTIONS: usize = 128;

struct Saturated {
    shape: Shape,
    effort: Effort,
}

impl Saturated {
    fn new(setting: &Setting, effort: Effort) -> Self {
        Saturated {
            shape: Shape {
                threads: setting.get(Parameter::Threads),
                room: setting.get(Parameter::Batch),
            },
            effort,
        }
    }

    /// Give and take so many notifications.
    fn run(&self, implementation: Implementation, notifications: usize) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut connections = Vec::new();
        let mut peers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut peer = TcpStream::connect(listener.local_addr()?)?;
            peer.write_all(&[1])?;
            peers.push(peer);
            connections.push(listener.accept()?.0);
        }
        let session = Counting {
            left: Arc::new(AtomicIsize::new(notifications as isize)),
            waiting: thread::current(),
        };
        let left = Arc::clone(&session.left);
        let mut until = || {
            while left.load(Ordering::Relaxed) > 0 {
                thread::park();
            }
            Ok(())
        };
        servers::serve_ready(
            implementation,
            self.shape,
            &session,
            connections,
            &mut until,
        )
    }
}

impl Trial for Saturated {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let notifications = self.effort.notifications;
        let (stopwatch, before) = (Stopwatch::of_process(), waits()?);
        self.run(implementation, notifications)?;
        let mut sample = stopwatch.per(notifications);
        let waits = (waits()? - before) / notifications as f64;
        sample.insert(Figure::Switches, waits);
        Ok(Some(sample))
    }

    fn turns(&mut self, implementation: Implementation, turns: usize) -> io::Result<bool> {
        if implementation == Implementation::Bare {
            return Ok(false);
        }
        self.run(implementation, turns * self.shape.room)?;
        Ok(true)
    }
}

/// Counts, and leaves the connection as it is.
#[derive(Clone)]
struct Counting {
    left: Arc<AtomicIsize>,
    waiting: Thread,
}

impl Session for Counting {
    fn serve<S: Read + Write>(&mut self, _: S) -> io::Result<Outcome> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1 => {
                self.waiting.unpark();
                Ok(Outcome::Ended)
            }
            // What comes after the end does not count.
            left if left < 1 => Ok(Outcome::Ended),
            _ => Ok(Outcome::More),
        }
    }
}
