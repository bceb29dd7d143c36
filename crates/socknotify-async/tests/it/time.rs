//! Sleeping, timeouts and intervals.

use std::future::{pending, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use std::future::Future;

use futures_lite::future::or;
use socknotify_async::{Runtime, UdpSocket, interval, sleep, sleep_until, spawn, timeout};

use crate::{sleeps_until, until_it_has_ended};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_sleep_is_never_too_short() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let tasks: Vec<_> = [0, 1, 999, 1000, 1001, 5500, 20_000]
            .map(Duration::from_micros)
            .map(|time| {
                spawn(async move {
                    let begin = Instant::now();
                    sleep(time).await;
                    begin.elapsed() >= time
                })
            })
            .into();
        for task in tasks {
            assert!(task.await?);
        }
        Ok(())
    })
}

#[test]
fn an_earlier_timer_is_not_kept_by_a_later_one() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    runtime.block_on(async {
        let mut later = pin!(sleep(Duration::from_secs(3600)));
        poll_fn(|cx| Poll::Ready(later.as_mut().poll(cx).is_ready())).await;
        timeout(PATIENCE, sleep(Duration::from_millis(5))).await?;
        Ok(())
    })
}

#[test]
fn a_timer_that_a_task_sets_before_it_blocks_comes() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let (sender, elapsed) = std::sync::mpsc::channel();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    drop(runtime.spawn(async move {
        drop(spawn(async move {
            sleep(Duration::from_millis(5)).await;
            sender.send(())
        }));
        sleep(Duration::from_millis(1)).await;
        let _ = blocked.recv();
    }));
    assert!(elapsed.recv_timeout(PATIENCE).is_ok());
    drop(release);
    Ok(())
}

#[test]
fn dropped_timers_leave_nothing() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        for _ in 0..100 {
            let late = timeout(Duration::from_secs(3600), async { 5 });
            assert_eq!(late.await?, 5);
            let mut never = pin!(sleep(Duration::from_secs(3600)));
            let first = poll_fn(|cx| Poll::Ready(never.as_mut().poll(cx))).await;
            assert!(first.is_pending());
        }
        assert!(
            timeout(Duration::from_millis(1), pending::<()>())
                .await
                .is_err()
        );
        Ok(())
    })
}

#[test]
fn a_time_too_far_away_never_comes() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        assert_eq!(sleep(Duration::MAX).deadline(), None);
        let never = timeout(Duration::MAX, sleep(Duration::MAX));
        assert!(timeout(Duration::from_millis(2), never).await.is_err());
        // The farthest that there is.
        let mut far = Instant::now();
        for step in (0..64).rev().map(|bit| Duration::from_secs(1 << bit)) {
            far = far.checked_add(step).unwrap_or(far);
        }
        assert!(
            timeout(Duration::from_millis(2), sleep_until(far))
                .await
                .is_err()
        );
        Ok(())
    })
}

#[test]
fn a_sleep_may_be_reset_and_moved_between_tasks() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let mut sleep = sleep(Duration::from_secs(3600));
        // Another task's waker, which is forgotten.
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        sleep.reset(Instant::now() + Duration::from_millis(5));
        let slept = spawn(async move {
            (&mut sleep).await;
            sleep.reset(Instant::now() + Duration::from_millis(1));
            sleep.await;
        });
        timeout(PATIENCE, slept).await??;
        Ok(())
    })
}

/// Sends for ever, and never has to wait.
async fn sends_for_ever() -> io::Result<()> {
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    let address = receiver.get_ref().local_addr()?;
    loop {
        sender.send_to(b"ping", address).await?;
    }
}

#[test]
fn a_timeout_ends_what_never_waits() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let (sender, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let task = runtime.spawn(async {
            let sends = timeout(Duration::from_millis(20), sends_for_ever());
            sends.await.is_err()
        });
        let _ = sender.send(runtime.block_on(task).is_ok_and(|it| it));
        let sends = runtime.block_on(async {
            let sends = timeout(Duration::from_millis(20), sends_for_ever());
            sends.await.is_err()
        });
        let _ = sender.send(sends);
        for time in [Duration::from_millis(20), Duration::ZERO] {
            runtime.block_on(async {
                // It is polled second.
                let sends = async { drop(sends_for_ever().await) };
                or(sends, sleep(time)).await;
            });
            let _ = sender.send(true);
        }
    });
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "in a task");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "in block_on");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "by a sleep");
    let over = "by a sleep that is over at its first poll";
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "{over}");
    Ok(())
}

/// To enter a runtime gives no further operations.
#[test]
fn a_timeout_ends_what_never_waits_inside_of_another_runtime() -> io::Result<()> {
    let (runtime, other) = (Runtime::new()?, Runtime::new()?);
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let sends = async {
            let _entered = other.handle().enter();
            sends_for_ever().await
        };
        let outcome = runtime.block_on(async { timeout(Duration::from_millis(20), sends).await });
        let _ = sender.send(outcome.is_err());
    });
    assert_eq!(ended.recv_timeout(PATIENCE / 3), Ok(true));
    Ok(())
}

#[test]
fn an_interval_leaves_out_what_is_late() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let period = Duration::from_millis(10);
        let mut interval = interval(period);
        let first = interval.tick().await;
        thread::sleep(period * 3);
        let late = interval.tick().await;
        let next = interval.tick().await;
        let periods = [late, next].map(|tick| {
            let time = (tick - first).as_nanos();
            assert_eq!(time % period.as_nanos(), 0);
            time / period.as_nanos()
        });
        // The machine may be busy, and the first one late.
        assert!(periods[0] >= 1 && periods[1] >= 3, "{periods:?}");
        Ok(())
    })
}

#[test]
fn a_runtime_that_has_shut_down_has_no_time() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    drop(runtime);
    let slept = catch_unwind(AssertUnwindSafe(|| {
        handle.block_on(async { sleep(Duration::from_secs(3600)).await })
    }));
    assert!(slept.is_err());
    Ok(())
}

#[test]
fn a_sleep_without_an_end_may_be_reset() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let (sender, ended) = std::sync::mpsc::channel();
    drop(runtime.spawn(async move {
        let mut sleep = sleep(Duration::MAX);
        let mut is_reset = false;
        poll_fn(|cx| {
            let poll = Pin::new(&mut sleep).poll(cx);
            if !std::mem::replace(&mut is_reset, true) {
                sleep.reset(Instant::now() + Duration::from_millis(5));
            }
            poll
        })
        .await;
        let _ = sender.send(());
    }));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(()));
    Ok(())
}

/// Whether this panics in time, which another executor polls in a task of one runtime while that ends, or another one.
fn panics_as_it_ends<F: Future>(
    sleeps: impl FnOnce() -> F + Send + 'static,
    block_on: impl FnOnce(F) + Send + 'static,
    ends: impl FnOnce(Runtime),
) -> io::Result<bool> {
    let runtime = Runtime::builder().places(1).build()?;
    let (begin, begun) = std::sync::mpsc::channel();
    let (sender, outcome) = std::sync::mpsc::channel();
    drop(runtime.spawn(async move {
        let future = sleeps();
        let _ = begin.send(());
        let slept = catch_unwind(AssertUnwindSafe(|| block_on(future)));
        let _ = sender.send(slept.is_err());
    }));
    begun.recv_timeout(PATIENCE).expect("it begins");
    // It waits by then, most often.
    thread::sleep(Duration::from_millis(20));
    let handle = runtime.handle().clone();
    ends(runtime);
    let panics = outcome.recv_timeout(PATIENCE).expect("it does not hang");
    until_it_has_ended(&handle);
    Ok(panics)
}

const HOUR: Duration = Duration::from_secs(3600);

fn in_another_executor<F: Future>(future: F) {
    futures_lite::future::block_on(future);
}

fn in_another_runtime<F: Future>(future: F) {
    Runtime::new().expect("a runtime").block_on(future);
}

#[test]
fn timers_that_another_executor_polls_end_with_their_runtime() -> io::Result<()> {
    for is_dropped in [true, false] {
        let ends = |runtime: Runtime| match is_dropped {
            true => drop(runtime),
            false => drop(runtime.shutdown(Duration::from_millis(1))),
        };
        assert!(panics_as_it_ends(
            || sleep(HOUR),
            in_another_executor,
            ends
        )?);
        assert!(panics_as_it_ends(|| sleep(HOUR), in_another_runtime, ends)?);
        let timeouts = || timeout(HOUR, pending::<()>());
        assert!(panics_as_it_ends(timeouts, in_another_executor, ends)?);
        assert!(panics_as_it_ends(timeouts, in_another_runtime, ends)?);
        let ticks = || {
            let mut interval = interval(HOUR);
            async move { interval.tick().await }
        };
        assert!(panics_as_it_ends(ticks, in_another_executor, ends)?);
        assert!(panics_as_it_ends(ticks, in_another_runtime, ends)?);
    }
    Ok(())
}

/// A task of another runtime waits for it, and so is not cancelled with it.
#[test]
fn a_task_of_another_runtime_s_that_sleeps_panics_as_the_sleep_s_runtime_ends() -> io::Result<()> {
    let (runtime, other) = (Runtime::new()?, Runtime::new()?);
    let sleeps = {
        let _entered = runtime.handle().enter();
        sleep(HOUR)
    };
    let task = other.spawn(sleeps);
    thread::sleep(Duration::from_millis(20));
    drop(runtime);
    let outcome = other.block_on(async { timeout(PATIENCE, task).await })?;
    assert!(outcome.unwrap_err().is_panic());
    Ok(())
}

/// It is polled by the task's own waker, and by those of what it combines.
#[test]
fn a_task_that_sleeps_as_its_runtime_ends_is_cancelled() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let (begin, begun) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let task = runtime.spawn(async move {
        let mut sleeps = [sleep(HOUR), sleep(HOUR)];
        let _ = begin.send(());
        let _ = ended.recv();
        // The runtime ends while this is polled.
        poll_fn(|cx| {
            let own = (0..3).any(|_| Pin::new(&mut sleeps[0]).poll(cx).is_ready());
            let mut combined = Context::from_waker(Waker::noop());
            let combined = Pin::new(&mut sleeps[1]).poll(&mut combined).is_ready();
            assert!(!own && !combined);
            Poll::<()>::Pending
        })
        .await;
    });
    begun.recv_timeout(PATIENCE).expect("it begins");
    let handle = runtime.handle().clone();
    drop(runtime);
    drop(end);
    assert!(handle.block_on(task).unwrap_err().is_cancelled());
    Ok(())
}

#[test]
fn wakers_of_others_that_block_keep_none_that_are_due_with_them() -> io::Result<()> {
    /// Waits for the two others.
    struct Waits(Barrier, mpsc::Sender<()>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            self.0.wait();
            let _ = self.1.send(());
        }
    }
    let runtime = Runtime::builder().places(1).build()?;
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Waits(Barrier::new(3), sender)));
    let _entered = runtime.handle().enter();
    let due = Instant::now() + Duration::from_millis(20);
    let _sleeps = [(); 3].map(|()| sleeps_until(due, &waker));
    for _ in 0..3 {
        assert_eq!(woken.recv_timeout(PATIENCE), Ok(()));
    }
    Ok(())
}
