//! How long it takes to wake a waiting thread without a socket, and to be woken in return.
//!
//! A thread wakes one of those that wait, and that one wakes it in return, by the same means. Where the
//! threads run makes more of a difference than how they wake each other; so that is laid down.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use socknotify::owned::Port;
use socknotify::{Backend, CompletionPort, Entry};

use crate::case::{Axis, Case, Effort, Parameter, Trial};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::processors::{self, stay_on};

pub(crate) const CASE: Case = Case {
    name: "post",
    about: "a thread that waits is woken; threads: how many wait (mio and polling: a loop for each)",
    compared_by: Figure::Gross,
    axes: &[
        Axis {
            parameter: Parameter::Processors,
            values: &[1, 2],
            quick: &[1, 2],
        },
        Axis {
            parameter: Parameter::Threads,
            values: &[1, 4, 16],
            quick: &[1, 4],
        },
    ],
    implementations: || {
        use Implementation::*;
        Implementation::around(&[Mio, Eventfd], &[Polling])
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| {
        let processors = two(setting.get(Parameter::Processors))?;
        let threads = setting.get(Parameter::Threads);
        Ok(Box::new(Post {
            processors,
            threads,
            effort,
        }))
    },
};

struct Post {
    /// Of the thread that wakes, and of those that wait for it.
    processors: [usize; 2],
    threads: usize,
    effort: Effort,
}

/// Something that wakes one of the threads that wait.
trait Waker: Sync {
    /// Wake one: the next in turn, where each waits for itself.
    fn wake(&self, turn: usize) -> io::Result<()>;

    /// Wait as this thread, again and again, until it was enough.
    fn wait(&self, thread: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()>;
}

enum Enough {
    Yes,
    No,
}

/// A waker for as many threads.
fn make(implementation: Implementation, threads: usize) -> io::Result<Option<Box<dyn Waker>>> {
    Ok(Some(match implementation {
        Implementation::Eventfd => Box::new(eventfd(0, EventfdFlags::SEMAPHORE)?),
        Implementation::Mio => Box::new(repeat(threads, MioLoop::new)?),
        Implementation::Polling => Box::new(repeat(threads, polling::Poller::new)?),
        Implementation::Socknotify(backend) => Box::new(port(backend)?),
        Implementation::Owned(backend) => Box::new(Port::<OwnedFd>::from(port(backend)?)),
        _ => return Ok(None),
    }))
}

fn repeat<T>(count: usize, make: impl Fn() -> io::Result<T>) -> io::Result<Vec<T>> {
    (0..count).map(|_| make()).collect()
}

fn port(backend: Backend) -> io::Result<CompletionPort> {
    Ok(CompletionPort::builder().backend(backend).build()?)
}

impl Waker for OwnedFd {
    fn wake(&self, _: usize) -> io::Result<()> {
        rustix::io::write(self, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    fn wait(&self, _: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()> {
        loop {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(self, &mut [0; 8]));
            read?;
            if let Enough::Yes = woken()? {
                return Ok(());
            }
        }
    }
}

struct MioLoop {
    poll: Mutex<mio::Poll>,
    waker: mio::Waker,
}

impl MioLoop {
    fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), mio::Token(0))?;
        Ok(MioLoop {
            poll: Mutex::new(poll),
            waker,
        })
    }
}

impl Waker for Vec<MioLoop> {
    fn wake(&self, turn: usize) -> io::Result<()> {
        self[turn % self.len()].waker.wake()
    }

    fn wait(&self, thread: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()> {
        let mut poll = self[thread]
            .poll
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut events = mio::Events::with_capacity(8);
        loop {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            if events.iter().next().is_some() {
                if let Enough::Yes = woken()? {
                    return Ok(());
                }
            }
        }
    }
}

impl Waker for Vec<polling::Poller> {
    fn wake(&self, turn: usize) -> io::Result<()> {
        self[turn % self.len()].notify()
    }

    fn wait(&self, thread: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()> {
        let mut events = polling::Events::new();
        loop {
            events.clear();
            self[thread].wait(&mut events, None)?;
            if let Enough::Yes = woken()? {
                return Ok(());
            }
        }
    }
}

impl Waker for CompletionPort {
    fn wake(&self, _: usize) -> io::Result<()> {
        Ok(self.post(Entry::new(1, 0, 0))?)
    }

    fn wait(&self, _: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()> {
        loop {
            self.dequeue_one(None)?;
            if let Enough::Yes = woken()? {
                return Ok(());
            }
        }
    }
}

impl Waker for Port<OwnedFd> {
    fn wake(&self, _: usize) -> io::Result<()> {
        Ok(self.send(())?)
    }

    fn wait(&self, _: usize, woken: &mut dyn FnMut() -> io::Result<Enough>) -> io::Result<()> {
        let mut worker = self.worker(1);
        loop {
            worker.process(None)?;
            while worker.take().is_some() {
                if let Enough::Yes = woken()? {
                    return Ok(());
                }
            }
        }
    }
}

/// Two processors, or twice the same.
fn two(count: usize) -> io::Result<[usize; 2]> {
    match (count, &*processors::allowed()?) {
        (1, &[one, ..]) => Ok([one, one]),
        (2, &[one, two, ..]) => Ok([one, two]),
        _ => Err(io::Error::other(format!(
            "there are not {count} processors"
        ))),
    }
}

impl Post {
    /// Nanoseconds for each wake-up.
    fn time(&self, there: &dyn Waker, back: &dyn Waker) -> io::Result<f64> {
        let wakes = self.effort.notifications / 10;
        let done = AtomicBool::new(false);
        let serve = &|thread| {
            stay_on(self.processors[1])?;
            there.wait(thread, &mut || match done.load(Ordering::Relaxed) {
                true => Ok(Enough::Yes),
                false => back.wake(0).map(|()| Enough::No),
            })
        };
        let wake = &|| {
            stay_on(self.processors[0])?;
            let warm_up = wakes / 10;
            let mut count = 0;
            let mut begin = Instant::now();
            there.wake(count)?;
            back.wait(0, &mut || {
                count += 1;
                if count == warm_up {
                    begin = Instant::now();
                }
                match count == warm_up + wakes {
                    true => Ok(Enough::Yes),
                    false => there.wake(count).map(|()| Enough::No),
                }
            })?;
            Ok(begin.elapsed().as_nanos() as f64 / (2 * wakes) as f64)
        };
        thread::scope(|scope| {
            let servers: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || serve(thread)))
                .collect();
            let time = scope.spawn(wake).join().expect("no panic");
            done.store(true, Ordering::Relaxed);
            (0..self.threads).try_for_each(|thread| there.wake(thread))?;
            for server in servers {
                server.join().expect("no panic")?;
            }
            time
        })
    }
}

impl Trial for Post {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        let wakers = (
            make(implementation, self.threads)?,
            make(implementation, 1)?,
        );
        let (Some(there), Some(back)) = wakers else {
            return Ok(None);
        };
        let time = self.time(&*there, &*back)?;
        Ok(Some(Sample::from([(Figure::Gross, time)])))
    }
}
