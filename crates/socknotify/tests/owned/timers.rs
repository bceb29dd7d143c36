//! Timers that belong to no connection.

use std::io;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{Event, Interest, Port, Serving, TimerId};
use socknotify::{Backend, Error};

use crate::support::{PATIENCE, SHORT, port_with, rounds, wait_until};
use crate::{TestWorker, connect, next, nothing, owning_port};

const LONG: Duration = Duration::from_secs(3600);

#[track_caller]
fn message(worker: &mut TestWorker) -> u64 {
    let count = worker.process(Some(PATIENCE)).expect("the port is open");
    assert!(count > 0, "something comes");
    match worker.take() {
        Some(Event::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[for_every_backend]
fn a_message_comes_after_its_time_and_never_early(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    for time in [0, 1, 2, 5, 17, 63, 64, 65, 130] {
        let begin = Instant::now();
        port.send_after(Duration::from_millis(time), time)?;
        assert_eq!(message(&mut worker), time);
        let passed = begin.elapsed();
        assert!(passed >= Duration::from_millis(time), "{passed:?}");
    }
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn messages_come_in_the_order_of_their_times(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    // Each time counts from its own call: on a busy machine the calls can be as far apart.
    let step = Duration::from_millis(10);
    let mut tries = 0..20;
    let is_in_order = tries.any(|_| {
        let begin = Instant::now();
        for number in [4, 1, 3, 2] {
            port.send_after(step * number, u64::from(number))
                .expect("an open port");
        }
        let are_together = begin.elapsed() < step;
        let found = [(); 4].map(|()| message(&mut worker));
        assert!(!are_together || found == [1, 2, 3, 4], "{found:?}");
        are_together
    });
    assert!(is_in_order, "this machine is too slow to tell");
    Ok(())
}

#[for_every_backend]
fn a_cancelled_timer_sends_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let timer = port.send_after(SHORT, 1)?;
    port.send_after(2 * SHORT, 2)?;
    assert!(port.cancel_timer(timer));
    assert_eq!(message(&mut worker), 2);
    nothing(&mut worker);
    Ok(())
}

/// Two are due at once, and whichever is called first cancels the other one.
#[for_every_backend]
fn a_cancelled_timer_that_is_due_sends_nothing(backend: Backend) -> io::Result<()> {
    let port = Arc::new(owning_port(backend, 2)?);
    let timers = Arc::new(OnceLock::<[TimerId; 2]>::new());
    let make = |number: usize| {
        let (port, timers) = (Arc::downgrade(&port), Arc::clone(&timers));
        move || {
            if let (Some(port), Some(timers)) = (port.upgrade(), timers.get()) {
                // In later periods it is gone.
                let _ = port.cancel_timer(timers[1 - number]);
            }
            number as u64
        }
    };
    let set = |number| port.send_every_with(SHORT, make(number));
    let both = [set(0)?, set(1)?];
    timers.set(both).expect("it is set once");
    thread::sleep(2 * SHORT);
    let mut worker = port.worker(4);
    let mut messages = Vec::new();
    while messages.len() < 4 {
        assert!(worker.process(Some(PATIENCE))? > 0);
        // That which was cancelled is not there any more.
        while let Some(event) = worker.take() {
            match event {
                Event::Message(message) => messages.push(message),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(messages.iter().all(|it| *it == messages[0]), "{messages:?}");
    Ok(())
}

#[for_every_backend]
fn a_timer_is_cancelled_once(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let timer = port.send_after(LONG, 1)?;
    assert!(port.cancel_timer(timer));
    assert!(!port.cancel_timer(timer));
    let timer = port.send_after(Duration::ZERO, 2)?;
    assert_eq!(message(&mut worker), 2);
    assert!(!port.cancel_timer(timer), "it is over");
    Ok(())
}

#[for_every_backend]
fn an_old_name_does_not_cancel_a_later_timer(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let old = port.send_after(LONG, 1)?;
    assert!(port.cancel_timer(old));
    let new = port.send_after(SHORT, 2)?;
    assert_ne!(old, new);
    assert!(!port.cancel_timer(old));
    assert_eq!(message(&mut worker), 2);
    Ok(())
}

#[for_every_backend]
fn a_timer_repeats_until_it_is_cancelled(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let begin = Instant::now();
    let period = Duration::from_millis(5);
    let timer = port.send_every(period, 7)?;
    for number in 1..=5 {
        assert_eq!(message(&mut worker), 7);
        assert!(begin.elapsed() >= period * number);
    }
    assert!(port.cancel_timer(timer));
    // One may be on its way.
    let left = worker.process(Some(Duration::ZERO))?;
    assert!(left <= 1);
    let _ = worker.take();
    assert_eq!(worker.process(Some(4 * period)), Ok(0));
    Ok(())
}

/// A message that cannot be cloned at times.
#[derive(Debug)]
struct Fragile(u64, Arc<AtomicBool>);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        assert!(!self.1.load(Ordering::Relaxed), "on purpose");
        Fragile(self.0, Arc::clone(&self.1))
    }
}

/// It need not be cloned, nor shared between threads.
#[for_every_backend]
fn messages_are_made_for_each_period(backend: Backend) -> io::Result<()> {
    #[derive(Debug)]
    struct Single(std::cell::Cell<u32>);

    let port = socknotify::owned::Port::<std::net::TcpStream, Single>::builder()
        .backend(backend)
        .build()?;
    let mut made = 0;
    let timer = port.send_every_with(Duration::from_millis(1), move || {
        made += 1;
        assert_ne!(made, 2, "this panics once");
        Single(made.into())
    })?;
    let mut worker = port.worker(1);
    let mut numbers = Vec::new();
    let mut panics = 0;
    while numbers.len() < 3 {
        worker.process(Some(PATIENCE))?;
        match worker.take() {
            Some(Event::Message(Single(number))) => numbers.push(number.get()),
            Some(Event::Panicked(..)) => panics += 1,
            other => assert!(other.is_none(), "{other:?}"),
        }
    }
    assert_eq!((numbers, panics), (vec![1, 3, 4], 1));
    assert!(port.cancel_timer(timer));
    port.close();
    let refused = port.send_every_with(Duration::from_millis(1), || Single(7.into()));
    let mut make = refused.expect_err("it is closed").0;
    assert_eq!(make().0.get(), 7);
    Ok(())
}

#[for_every_backend]
fn a_panic_in_cloning_a_message_loses_no_other(backend: Backend) -> io::Result<()> {
    let port = Port::<std::net::TcpStream, Fragile>::from(port_with(backend, 2)?);
    let mut worker = port.worker(4);
    let panics = Arc::new(AtomicBool::new(false));
    let message = |number| Fragile(number, Arc::clone(&panics));
    let closed = |_| io::Error::from(socknotify::Error::Closed);
    port.send_every(SHORT, message(7)).map_err(closed)?;
    port.send_after(2 * SHORT, message(1)).map_err(closed)?;
    let begin = Instant::now();
    panics.store(true, Ordering::Relaxed);
    // Both are due when somebody asks, and come in the order of their times.
    wait_until("the time has come", || begin.elapsed() > 3 * SHORT);
    let mut take = || {
        worker.process(Some(PATIENCE)).expect("something comes");
        worker.take()
    };
    assert!(matches!(take(), Some(Event::Panicked(..))));
    assert!(matches!(take(), Some(Event::Message(Fragile(1, _)))));
    panics.store(false, Ordering::Relaxed);
    wait_until("it is sent again", || {
        matches!(take(), Some(Event::Message(Fragile(7, _))))
    });
    Ok(())
}

/// A message whose copy cancels the timer that makes it, so that the original is dropped meanwhile; which panics.
struct Rash(Arc<OnceLock<(Port<std::net::TcpStream, Rash>, TimerId)>>);

impl Clone for Rash {
    fn clone(&self) -> Self {
        if let Some((port, timer)) = self.0.get() {
            port.cancel_timer(*timer);
        }
        Rash(Arc::clone(&self.0))
    }
}

impl Drop for Rash {
    fn drop(&mut self) {
        let is_over = thread::panicking() || self.0.get().is_none();
        assert!(is_over, "on purpose");
    }
}

#[for_every_backend]
fn a_panic_in_dropping_a_message_does_not_stop_the_drain(backend: Backend) -> io::Result<()> {
    let port = Port::<std::net::TcpStream, Rash>::from(port_with(backend, 2)?);
    let mut worker = port.worker(4);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let _open = port.adopt(std::net::TcpStream::connect(listener.local_addr()?)?)?;
    let shared = Arc::default();
    let begin = Instant::now();
    let timer = port.send_every(SHORT, Rash(Arc::clone(&shared)));
    let timer = timer.unwrap_or_else(|_| panic!("it is open"));
    port.drain(SHORT);
    assert!(shared.set((port, timer)).is_ok());
    // Both are due when somebody asks.
    wait_until("the time has come", || begin.elapsed() > 2 * SHORT);
    let process = || worker.process(Some(PATIENCE));
    let _ = catch_unwind(AssertUnwindSafe(process));
    assert_eq!(worker.process(Some(PATIENCE)), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn what_a_slow_thread_misses_is_left_out(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(64);
    let period = Duration::from_millis(10);
    let begin = Instant::now();
    port.send_every(period, 7)?;
    // Nobody asks for messages until ten of them are due.
    while begin.elapsed() < 10 * period {
        thread::yield_now();
    }
    let mut count = 0;
    let mut last = begin;
    while count < 3 {
        assert_eq!(message(&mut worker), 7);
        count += 1;
        last = Instant::now();
    }
    // The first one was late; two more take more than one period.
    assert!(last - begin >= 11 * period, "{:?}", last - begin);
    Ok(())
}

/// The thread handles what was sent before, and learns of each period meanwhile: what is due waits in the queue.
#[for_every_backend]
fn what_waits_behind_other_messages_for_periods_is_left_out(backend: Backend) -> io::Result<()> {
    const PERIOD: Duration = Duration::from_millis(10);
    let port = owning_port(backend, 1)?;
    let mut worker = port.worker(1);
    (0..20).try_for_each(|_| port.send(1))?;
    port.send_every(PERIOD, 7)?;
    for _ in 0..20 {
        assert_eq!(message(&mut worker), 1);
        thread::sleep(PERIOD);
    }
    let (begin, mut late) = (Instant::now(), 0);
    while worker.process(Some(Duration::ZERO))? > 0 {
        late += std::iter::from_fn(|| worker.take()).count();
    }
    // The one that waits, and the next one; more if this thread is held up.
    let most = 2 + begin.elapsed().as_nanos() / PERIOD.as_nanos();
    assert!((1..=most).contains(&(late as u128)), "{late} at once");
    // It goes on.
    (0..3).for_each(|_| assert_eq!(message(&mut worker), 7));
    Ok(())
}

#[for_every_backend]
fn a_thread_that_waits_already_hears_of_a_timer(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    port.send_after(LONG, 1)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| message(&mut worker));
        wait_until("it waits", || port.snapshot().waiting == 1);
        port.send_after(Duration::from_millis(1), 2).map(drop)?;
        assert_eq!(waiting.join().expect("no panic"), 2);
        Ok(())
    })
}

#[for_every_backend]
fn timers_and_deadlines_share_the_clock(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let (connection, _peer) = connect(&port)?;
    let begin = Instant::now();
    worker.arm(connection, Interest::IN.until(begin + 2 * SHORT));
    port.send_after(SHORT, 1)?;
    port.send_after(3 * SHORT, 3)?;
    // On a busy machine some may be over before the next is set, and then they have no order.
    let mut came = Vec::new();
    while came.len() < 3 {
        let number = match next(&mut worker) {
            Event::Message(number) => number,
            Event::TimedOut(_) => 2,
            other => panic!("{other:?}"),
        };
        assert!(begin.elapsed() >= number as u32 * SHORT, "{number}");
        came.push(number);
    }
    came.sort_unstable();
    assert_eq!(came, [1, 2, 3]);
    Ok(())
}

#[for_every_backend]
fn a_time_too_long_is_never(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let timer = port.send_after(Duration::MAX, 1)?;
    let other = port.send_every(Duration::MAX, 2)?;
    assert_eq!(worker.process(Some(SHORT)), Ok(0));
    assert!(port.cancel_timer(timer));
    assert!(port.cancel_timer(other));
    Ok(())
}

#[for_every_backend]
fn many_timers_are_set_and_cancelled(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend, 2)?;
    let mut worker = port.worker(4);
    let count = rounds(200_000) as u64;
    let timers: Vec<TimerId> = (0..count)
        .map(|number| port.send_after(LONG + Duration::from_millis(number), number))
        .collect::<Result<_, _>>()?;
    port.send_after(Duration::from_millis(1), u64::MAX)?;
    assert_eq!(message(&mut worker), u64::MAX);
    assert!(timers.into_iter().all(|timer| port.cancel_timer(timer)));
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn timers_go_with_the_port(backend: Backend) -> io::Result<()> {
    let message = Arc::new(());
    let port = Port::<std::net::TcpStream, Arc<()>>::from(port_with(backend, 2)?);
    port.send_after(LONG, Arc::clone(&message))?;
    port.send_every(LONG, Arc::clone(&message))?;
    port.close();
    assert_eq!(Arc::strong_count(&message), 1);
    assert!(port.send_after(SHORT, Arc::clone(&message)).is_err());
    assert!(port.send_every(SHORT, Arc::clone(&message)).is_err());
    assert_eq!(Arc::strong_count(&message), 1);
    Ok(())
}

/// Each function waits for the other one.
#[for_every_backend]
fn f4_a_timer_whose_function_blocks_keeps_no_other_waiting(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream, ()>::from(port_with(backend, 2)?);
    let meet = Arc::new(Barrier::new(2));
    for _ in 0..2 {
        let (meet, mut is_first) = (Arc::clone(&meet), true);
        port.send_every_with(Duration::from_millis(1), move || {
            if std::mem::take(&mut is_first) {
                meet.wait();
            }
        })?;
    }
    Ok(port.serve(Serving::default(), |_, _| drop(port.close()))?)
}
