//! Tasks: spawned, joined, aborted, and run fairly, also beside others that block.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use socknotify_async::{
    Handle, JoinHandle, JoinSet, Runtime, SlowTask, interval, sleep, spawn, timeout, unblock,
};

use crate::{sleeps_until, until_it_has_ended};

/// For what has to come. A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn with_places(places: usize) -> Runtime {
    let builder = Runtime::builder().places(places);
    builder.build().expect("a runtime")
}

/// Lets other tasks go on once.
fn yield_now() -> impl Future<Output = ()> {
    let mut is_over = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A value that counts when it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn tasks_are_joined() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let sum = runtime.block_on(async {
        let tasks: Vec<_> = (0..1000)
            .map(|number| {
                spawn(async move {
                    yield_now().await;
                    number
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await?;
        }
        io::Result::Ok(sum)
    })?;
    assert_eq!(sum, 499_500);
    assert!(runtime.shutdown(Duration::MAX));
    Ok(())
}

#[test]
fn a_task_may_be_spawned_from_any_thread_and_outlives_its_handle() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..4 {
            let (sender, handle) = (sender.clone(), runtime.handle().clone());
            scope.spawn(move || {
                drop(handle.spawn(async move {
                    yield_now().await;
                    // A task spawns another one.
                    drop(spawn(async move { sender.send(number) }));
                }));
            });
        }
    });
    drop(sender);
    let mut results: Vec<i32> = results.iter().collect();
    results.sort();
    assert_eq!(results, [0, 1, 2, 3]);
    Ok(())
}

#[test]
fn a_panic_is_an_error_of_its_task_alone() -> io::Result<()> {
    let runtime = with_places(1);
    let error = runtime.block_on(async {
        let error = spawn(async { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(spawn(async { 5 }).await?, 5);
        io::Result::Ok(error)
    })?;
    assert!(error.is_panic() && !error.is_cancelled());
    assert_eq!(error.to_string(), "the task has panicked: on purpose");
    let panic = error.into_panic().expect("a panic");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    Ok(())
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn a_panic_while_a_cancelled_task_is_dropped_goes_no_further() -> io::Result<()> {
    let runtime = with_places(1);
    let task = runtime.spawn(async {
        let _panics = PanicsWhenDropped;
        pending::<()>().await;
    });
    runtime.block_on(async {
        sleep(Duration::from_millis(2)).await;
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(spawn(async { 5 }).await?, 5);
        Ok(())
    })
}

#[test]
fn a_result_that_nobody_takes_may_panic_as_it_is_dropped() -> io::Result<()> {
    let runtime = with_places(1);
    drop(runtime.spawn(async { PanicsWhenDropped }));
    drop(runtime.spawn(async { std::panic::panic_any(PanicsWhenDropped) }));
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

#[test]
fn a_waker_that_panics_is_its_owner_s_trouble() -> io::Result<()> {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let waker = Waker::from(Arc::new(Panics));
    let runtime = with_places(1);
    let (release, blocked) = mpsc::channel::<()>();
    let mut joined = runtime.spawn(async move { blocked.recv().is_ok() });
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut joined).poll(&mut cx).is_pending());
    let _slept = {
        let _entered = runtime.handle().enter();
        sleeps_until(Instant::now() + Duration::from_millis(1), &waker)
    };
    thread::sleep(Duration::from_millis(5));
    release.send(()).expect("it waits");
    while !joined.is_finished() {
        thread::yield_now();
    }
    // The only thread goes on.
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    assert!(runtime.block_on(joined)?);
    Ok(())
}

/// A thread waits for a task with a waker that has this data, and panics.
fn a_task_ends_whose_waker_panics(runtime: &Runtime, data: usize) -> io::Result<()> {
    use std::task::{RawWaker, RawWakerVTable};
    fn clone(data: *const ()) -> RawWaker {
        RawWaker::new(data, &PANICS)
    }
    fn wake(_: *const ()) {
        panic!("on purpose");
    }
    static PANICS: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, |_| {});
    let (release, blocked) = mpsc::channel::<()>();
    let mut joined = runtime.spawn(async move { blocked.recv().is_ok() });
    // SAFETY: the functions use nothing of the data.
    let waker = unsafe { Waker::new(std::ptr::without_provenance(data), &PANICS) };
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut joined).poll(&mut cx).is_pending());
    release.send(()).expect("it waits");
    while !joined.is_finished() {
        thread::yield_now();
    }
    assert!(runtime.block_on(joined)?);
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    Ok(())
}

/// What was polled inside is gone, and its memory may be a waker's of anyone's.
#[test]
fn a_waker_that_panics_is_not_taken_for_one_that_was_polled_inside() -> io::Result<()> {
    let runtime = with_places(1);
    let inside = runtime.block_on(poll_fn(|cx| Poll::Ready(cx.waker().data().addr())));
    a_task_ends_whose_waker_panics(&runtime, inside)
}

/// The only thread wakes it, and the system has to be asked for another one first.
#[test]
fn a_waker_that_waits_for_a_task_keeps_nobody_waiting() -> io::Result<()> {
    struct Waits(Handle, Mutex<mpsc::Sender<bool>>);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            let (sender, run) = mpsc::channel();
            drop(self.0.spawn(async move { sender.send(()) }));
            let has_run = run.recv_timeout(PATIENCE).is_ok();
            let told = self.1.lock().expect("no panic").send(has_run);
            told.expect("it is waited for");
        }
    }
    let runtime = with_places(1);
    let (sender, has_run) = mpsc::channel();
    let waits = Waits(runtime.handle().clone(), Mutex::new(sender));
    let waker = Waker::from(Arc::new(waits));
    let _entered = runtime.handle().enter();
    let _slept = sleeps_until(Instant::now() + Duration::from_millis(30), &waker);
    assert_eq!(has_run.recv(), Ok(true));
    Ok(())
}

/// The future of `block_on` is dropped before the memory of its waker is free.
#[test]
fn a_waker_that_is_made_as_a_future_is_dropped_is_anyone_s() -> io::Result<()> {
    /// As large as that of `block_on`.
    struct Panics([usize; 2]);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose: {:?}", self.0);
        }
    }
    /// It is ready, and waits for a task as it is dropped.
    struct Waits(Option<JoinHandle<()>>);
    impl Future for Waits {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            Poll::Ready(())
        }
    }
    impl Drop for Waits {
        fn drop(&mut self) {
            let waker = Waker::from(Arc::new(Panics([0; 2])));
            let mut task = self.0.take().expect("it is dropped once");
            let polled = Pin::new(&mut task).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            std::mem::forget(task);
        }
    }
    let runtime = with_places(1);
    let (release, blocked) = mpsc::channel::<()>();
    let task = runtime.spawn(async move { assert!(blocked.recv().is_ok()) });
    runtime.block_on(Waits(Some(task)));
    release.send(()).expect("it waits");
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    Ok(())
}

#[test]
fn a_waker_without_data_is_not_taken_for_one_that_is_polled() -> io::Result<()> {
    a_task_ends_whose_waker_panics(&with_places(1), 0)
}

#[test]
fn an_aborted_task_s_poll_goes_on_and_its_result_is_dropped() -> io::Result<()> {
    let runtime = with_places(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Counted(Arc::clone(&drops));
    let (sender, begun) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    let task = runtime.spawn(async move {
        sender.send(()).expect("it is waited for");
        let _ = blocked.recv();
        value
    });
    begun.recv_timeout(PATIENCE).expect("it begins");
    task.abort();
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    release.send(()).expect("it waits");
    assert!(runtime.block_on(task).is_err_and(|it| it.is_cancelled()));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    Ok(())
}

#[test]
fn an_aborted_task_is_dropped() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let drops = Arc::new(AtomicUsize::new(0));
    for waits in [false, true] {
        let value = Counted(Arc::clone(&drops));
        let task = runtime.spawn(async move {
            let _value = value;
            pending::<()>().await;
        });
        if waits {
            runtime.block_on(async { sleep(Duration::from_millis(2)).await });
        }
        task.abort();
        assert!(task.is_finished());
        let error = runtime.block_on(task).unwrap_err();
        assert!(error.is_cancelled());
        assert_eq!(error.to_string(), "the task was cancelled");
    }
    assert!(runtime.shutdown(PATIENCE), "no task is left");
    assert_eq!(drops.load(Ordering::SeqCst), 2);
    Ok(())
}

/// Says that it is polled, blocks until it is told to go on, and waits for ever.
fn waits_after_a_block() -> (
    mpsc::Receiver<()>,
    mpsc::Sender<()>,
    impl Future<Output = ()>,
) {
    let (sender, begun) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    let task = async move {
        sender.send(()).expect("it is waited for");
        let _ = blocked.recv();
        pending::<()>().await;
    };
    (begun, release, task)
}

#[test]
fn a_task_that_waits_for_the_first_time_after_it_was_aborted_is_dropped() -> io::Result<()> {
    let runtime = with_places(1);
    let (begun, release, task) = waits_after_a_block();
    let task = runtime.spawn(task);
    begun.recv_timeout(PATIENCE).expect("it begins");
    task.abort();
    drop(release);
    assert!(runtime.block_on(task).is_err_and(|it| it.is_cancelled()));
    Ok(())
}

#[test]
fn a_task_that_waits_for_the_first_time_after_a_shutdown_is_dropped() -> io::Result<()> {
    let runtime = with_places(1);
    let handle = runtime.handle().clone();
    let (begun, release, task) = waits_after_a_block();
    drop(runtime.spawn(task));
    begun.recv_timeout(PATIENCE).expect("it begins");
    assert!(!runtime.shutdown(Duration::ZERO));
    // What is spawned from here on is cancelled: the tasks have been woken, or are about to be.
    while !handle.spawn(async {}).is_finished() {
        thread::yield_now();
    }
    drop(release);
    let deadline = Instant::now() + PATIENCE;
    while handle.tasks() > 0 {
        assert!(Instant::now() < deadline, "it is left");
        thread::yield_now();
    }
    Ok(())
}

#[test]
fn aborting_what_has_ended_keeps_its_result() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let task = runtime.spawn(async { 7 });
    while !task.is_finished() {
        thread::yield_now();
    }
    task.abort();
    assert_eq!(runtime.block_on(task)?, 7);
    Ok(())
}

#[test]
fn a_handle_may_be_shared_by_tasks() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let mut task = runtime.spawn(pending::<()>());
    for is_finished in [false, true] {
        let shared = Arc::new(task);
        let theirs = Arc::clone(&shared);
        let looks = runtime.spawn(async move { theirs.is_finished() });
        assert_eq!(runtime.block_on(looks)?, is_finished);
        task = Arc::into_inner(shared).expect("the other one was dropped");
        task.abort();
    }
    assert!(runtime.block_on(task).is_err_and(|it| it.is_cancelled()));
    Ok(())
}

#[test]
fn shutdown_cancels_what_does_not_end() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Counted(Arc::clone(&drops));
    let endless = runtime.spawn(async move {
        let _value = value;
        pending::<()>().await;
    });
    let busy = runtime.spawn(async {
        loop {
            yield_now().await;
        }
    });
    let handle = runtime.handle().clone();
    assert_eq!(handle.tasks(), 2);
    assert!(!runtime.shutdown(Duration::from_millis(20)));
    until_it_has_ended(&handle);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    // What is spawned from now on is cancelled at once.
    let late = handle.spawn(async { 5 });
    handle.block_on(async {
        for task in [late.await.map(drop), endless.await, busy.await] {
            assert!(task.unwrap_err().is_cancelled());
        }
    });
    Ok(())
}

#[test]
fn shutdown_waits_for_tasks_and_no_longer() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let task = runtime.spawn(sleep_in(&runtime, Duration::from_millis(20)));
    let begin = Instant::now();
    assert!(runtime.shutdown(PATIENCE));
    assert!(begin.elapsed() < PATIENCE && task.is_finished());
    Ok(())
}

fn sleep_in(runtime: &Runtime, time: Duration) -> impl Future<Output = ()> + Send + 'static {
    let _entered = runtime.handle().enter();
    sleep(time)
}

#[test]
fn a_runtime_may_be_dropped_by_its_own_task() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let (sender, ended) = mpsc::channel();
    drop(handle.spawn(async move {
        drop(runtime);
        yield_now().await;
        // Cancelled there.
        let _ = sender.send(());
    }));
    assert!(ended.recv_timeout(PATIENCE).is_err());
    Ok(())
}

#[test]
fn a_thread_outside_has_no_runtime() {
    assert!(Handle::try_current().is_none());
    assert!(catch_unwind(|| spawn(async {})).is_err());
    let runtime = Runtime::new().expect("a runtime");
    let entered = runtime.handle().enter();
    assert!(Handle::try_current().is_some());
    drop(entered);
    assert!(Handle::try_current().is_none());
}

#[test]
fn block_on_resumes_a_panic_and_may_be_nested() -> io::Result<()> {
    let runtime = with_places(1);
    let blocking = || runtime.block_on(async { panic!("on purpose") });
    assert!(catch_unwind(AssertUnwindSafe(blocking)).is_err());
    let handle = runtime.handle().clone();
    // The only place is lent to the other task meanwhile.
    let outer = runtime.spawn(async move {
        let other = spawn(async { 5 });
        handle.block_on(other)
    });
    assert_eq!(runtime.block_on(outer)??, 5);
    Ok(())
}

#[test]
fn a_wake_before_while_and_after_a_poll_is_not_lost() -> io::Result<()> {
    const ROUNDS: usize = 2000;
    let runtime = Runtime::new()?;
    let slot = Arc::new((Mutex::new(None::<Waker>), AtomicUsize::new(0)));
    let waiting = Arc::clone(&slot);
    // It waits for each of the numbers.
    let task = runtime.spawn(async move {
        for round in 1..=ROUNDS {
            poll_fn(|cx| {
                if waiting.1.load(Ordering::SeqCst) >= round {
                    return Poll::Ready(());
                }
                *waiting.0.lock().unwrap() = Some(cx.waker().clone());
                match waiting.1.load(Ordering::SeqCst) >= round {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
    });
    for round in 1..=ROUNDS {
        slot.1.store(round, Ordering::SeqCst);
        if let Some(waker) = slot.0.lock().unwrap().take() {
            waker.wake();
        }
        if round % 7 == 0 {
            thread::yield_now();
        }
    }
    runtime.block_on(async { timeout(PATIENCE, task).await })??;
    Ok(())
}

#[test]
fn tasks_that_block_keep_nobody_waiting() -> io::Result<()> {
    const BLOCKED: usize = 16;
    let runtime = Runtime::builder().places(2).threads(64).build()?;
    let barrier = Arc::new(Barrier::new(BLOCKED + 1));
    let tasks: Vec<_> = (0..BLOCKED)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            runtime.spawn(async move { barrier.wait().is_leader() })
        })
        .collect();
    // These are behind them in the queue.
    runtime.block_on(async {
        for number in 0..100 {
            let task = timeout(PATIENCE, spawn(async move { number })).await?;
            assert_eq!(task?, number);
        }
        io::Result::Ok(())
    })?;
    // Only if all of them run at once does this return.
    barrier.wait();
    runtime.block_on(async {
        for task in tasks {
            task.await?;
        }
        Ok(())
    })
}

/// A task wakes ten others, blocks for so long before each, and then until all have run.
fn what_a_blocking_task_wakes_goes_on(pause: Duration) -> io::Result<()> {
    let runtime = with_places(1);
    let (release, blocked) = mpsc::channel::<()>();
    let (sender, others) = mpsc::channel();
    let task = runtime.spawn(async move {
        for number in 0..10 {
            if !pause.is_zero() {
                thread::sleep(pause);
            }
            let sender = sender.clone();
            drop(spawn(async move { sender.send(number) }));
        }
        // Nothing but this thread knows of those.
        blocked.recv().is_ok()
    });
    // Two threads may take one each, and the second one may be the first to send.
    let mut others = [(); 10].map(|()| others.recv_timeout(PATIENCE).expect("it runs"));
    others.sort_unstable();
    assert_eq!(others, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    release.send(()).expect("it waits");
    assert!(runtime.block_on(task)?);
    Ok(())
}

#[test]
fn what_a_task_has_woken_before_it_blocks_goes_on() -> io::Result<()> {
    what_a_blocking_task_wakes_goes_on(Duration::ZERO)
}

#[test]
fn what_a_task_wakes_between_two_blocks_goes_on() -> io::Result<()> {
    what_a_blocking_task_wakes_goes_on(Duration::from_millis(3))
}

#[test]
fn unblock_lends_its_place_at_once() -> io::Result<()> {
    let runtime = with_places(1);
    let (release, blocked) = mpsc::channel::<()>();
    let task = {
        let _entered = runtime.handle().enter();
        unblock(move || blocked.recv().is_ok())
    };
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    release.send(()).expect("it waits");
    assert!(runtime.block_on(task)?);
    let panicked = runtime.spawn(async { unblock(|| panic!("on purpose")).await });
    assert!(runtime.block_on(panicked)?.unwrap_err().is_panic());
    Ok(())
}

#[test]
fn no_more_tasks_block_than_there_are_threads() -> io::Result<()> {
    let runtime = Runtime::builder().places(2).threads(2).build()?;
    let (sender, begun) = mpsc::channel();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (sender, blocked) = (sender.clone(), Arc::clone(&blocked));
            runtime.spawn(async move {
                let _ = sender.send(());
                blocked.lock().unwrap().recv().is_ok()
            })
        })
        .collect();
    for _ in 0..2 {
        begun.recv_timeout(PATIENCE).expect("it begins");
    }
    assert!(begun.recv_timeout(Duration::from_millis(20)).is_err());
    assert_eq!(runtime.handle().threads(), 2);
    // Then they come, one after the other.
    for _ in 0..6 {
        release.send(()).expect("it waits");
    }
    for task in tasks {
        assert!(runtime.block_on(async { timeout(PATIENCE, task).await })??);
    }
    Ok(())
}

#[test]
fn threads_end_that_have_nothing_to_do() -> io::Result<()> {
    let builder = Runtime::builder().places(1).idle(Duration::from_millis(5));
    let runtime = builder.build()?;
    runtime.block_on(async {
        // Longer than others wait meanwhile, in vain.
        let blocked = [(); 8].map(|()| unblock(|| thread::sleep(Duration::from_millis(30))));
        for task in blocked {
            task.await?;
        }
        io::Result::Ok(())
    })?;
    let begin = Instant::now();
    while runtime.handle().threads() > 1 {
        assert!(begin.elapsed() < PATIENCE, "they do not end");
        thread::sleep(Duration::from_millis(1));
    }
    // And begin again.
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    Ok(())
}

#[test]
fn tasks_that_are_always_ready_keep_no_other_and_no_timer_waiting() -> io::Result<()> {
    let runtime = with_places(1);
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let is_over = Arc::clone(&is_over);
        drop(runtime.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                yield_now().await;
            }
        }));
    }
    let task = runtime.spawn(async {
        let mut interval = interval(Duration::from_millis(2));
        for _ in 0..5 {
            interval.tick().await;
            spawn(async {}).await?;
        }
        io::Result::Ok(())
    });
    runtime.block_on(async { timeout(PATIENCE, task).await })???;
    is_over.store(true, Ordering::Relaxed);
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

#[test]
fn a_hundred_thousand_tasks() -> io::Result<()> {
    const TASKS: usize = 100_000;
    let runtime = Runtime::new()?;
    let drops = Arc::new(AtomicUsize::new(0));
    for number in 0..TASKS {
        let value = Counted(Arc::clone(&drops));
        drop(runtime.spawn(async move {
            let _value = value;
            if number % 2 == 0 {
                pending::<()>().await;
            }
        }));
    }
    let handle = runtime.handle().clone();
    let begin = Instant::now();
    while handle.tasks() > TASKS / 2 {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!runtime.shutdown(Duration::from_millis(1)));
    until_it_has_ended(&handle);
    assert_eq!(drops.load(Ordering::SeqCst), TASKS);
    Ok(())
}

#[test]
fn a_thread_s_name_has_no_zero_byte() {
    let named = Runtime::builder().name("zero\0").build();
    assert_eq!(named.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let runtime = Runtime::builder().name("named").build().expect("one");
    let name = runtime.spawn(async { thread::current().name().map(String::from) });
    let name = runtime.block_on(name).expect("no panic");
    assert_eq!(name.as_deref(), Some("named"));
}

/// What panics when it is dropped, so many times one in the other.
struct Nested(u32);

impl Drop for Nested {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Nested(self.0 - 1));
        }
    }
}

#[test]
fn what_a_panic_carries_may_panic_as_it_is_dropped() -> io::Result<()> {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(Nested(2));
        }
    }
    struct PanicsLate;
    impl Drop for PanicsLate {
        fn drop(&mut self) {
            std::panic::panic_any(Nested(2));
        }
    }
    let runtime = with_places(1);
    // A result that nobody takes, a future that is dropped, and a waker.
    drop(runtime.spawn(async { std::panic::panic_any(Nested(2)) }));
    drop(runtime.spawn(async { PanicsLate }));
    let task = runtime.spawn(async {
        let _late = PanicsLate;
        pending::<()>().await;
    });
    runtime.block_on(async { sleep(Duration::from_millis(2)).await });
    task.abort();
    assert!(runtime.block_on(task).is_err());
    let mut cx = Context::from_waker(Waker::noop());
    let waker = Waker::from(Arc::new(Panics));
    let (release, blocked) = mpsc::channel::<()>();
    let mut joined = runtime.spawn(async move { blocked.recv().is_ok() });
    assert!(
        Pin::new(&mut joined)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    release.send(()).expect("it waits");
    while !joined.is_finished() {
        thread::yield_now();
    }
    assert!(Pin::new(&mut joined).poll(&mut cx).is_ready());
    assert_eq!(runtime.block_on(runtime.spawn(async { 5 }))?, 5);
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

#[test]
fn an_abort_handle_aborts_its_task_and_no_other() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..100 {
        let value = Counted(Arc::clone(&drops));
        let task = runtime.spawn(async move {
            let _value = value;
            pending::<()>().await;
        });
        let abort = task.abort_handle();
        assert!(!abort.is_finished() && !task.is_finished());
        let waits = runtime.spawn(task);
        abort.abort();
        abort.abort();
        assert!(abort.is_finished());
        assert!(runtime.block_on(waits)?.unwrap_err().is_cancelled());
        // Its place in the list is another one's by now.
        let other = runtime.spawn(sleep_in(&runtime, Duration::from_micros(100)));
        abort.abort();
        runtime.block_on(other)?;
    }
    assert_eq!(drops.load(Ordering::SeqCst), 100);
    assert!(runtime.shutdown(PATIENCE), "no task is left");
    Ok(())
}

#[test]
fn results_of_a_set_are_taken_as_tasks_end() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let mut set = JoinSet::new();
        assert!(set.join_next().await.is_none());
        let (release, released) = mpsc::channel();
        set.spawn(async move { released.recv().unwrap_or(0) });
        for number in 1..=100 {
            set.spawn(async move { number });
        }
        let mut sum = 0;
        for _ in 0..100 {
            let next = timeout(PATIENCE, set.join_next()).await?;
            sum += next.expect("some are left")?;
        }
        assert_eq!((sum, set.len()), (5050, 1));
        let early = timeout(Duration::from_millis(5), set.join_next()).await;
        assert!(early.is_err());
        release.send(7).expect("it waits");
        let last = timeout(PATIENCE, set.join_next()).await?;
        assert_eq!(last.expect("one is left")?, 7);
        assert!(set.join_next().await.is_none() && set.is_empty());
        Ok(())
    })
}

#[test]
fn a_set_s_tasks_are_aborted_together_and_when_it_is_dropped() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let endless = || {
        let value = Counted(Arc::clone(&drops));
        async move {
            let _value = value;
            pending::<()>().await;
        }
    };
    runtime.block_on(async {
        let mut set = JoinSet::new();
        set.spawn(async { panic!("on purpose") });
        let error = set.join_next().await.expect("one").unwrap_err();
        assert!(error.is_panic());
        (0..10).for_each(|_| drop(set.spawn(endless())));
        set.abort_all();
        while let Some(ended) = set.join_next().await {
            assert!(ended.unwrap_err().is_cancelled());
        }
        (0..10).for_each(|_| drop(set.spawn(endless())));
    });
    assert!(runtime.shutdown(PATIENCE), "no task is left");
    assert_eq!(drops.load(Ordering::SeqCst), 20);
    Ok(())
}

/// How often a task that computes for so long and lets others go on is polled after the time of a timer, before that goes
/// off.
fn polls_before_a_timer(compute: Duration) -> io::Result<usize> {
    let runtime = with_places(1);
    let begin = Instant::now();
    let due = begin + Duration::from_millis(100);
    let polls = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let computes = {
        let (polls, is_over) = (Arc::clone(&polls), Arc::clone(&is_over));
        async move {
            while !is_over.load(Ordering::SeqCst) {
                let begin = Instant::now();
                // A timer's tick is a millisecond.
                if begin > due + Duration::from_millis(1) {
                    polls.fetch_add(1, Ordering::SeqCst);
                }
                while begin.elapsed() < compute {
                    std::hint::spin_loop();
                }
                yield_now().await;
            }
        }
    };
    let computes = runtime.spawn(computes);
    let timer = runtime.spawn({
        let _entered = runtime.handle().enter();
        let sleep = socknotify_async::sleep_until(due);
        async move {
            sleep.await;
            is_over.store(true, Ordering::SeqCst);
            polls.load(Ordering::SeqCst)
        }
    });
    let polls = runtime.block_on(timer)?;
    runtime.block_on(computes)?;
    Ok(polls)
}

#[test]
fn a_timer_comes_between_tasks_that_compute() -> io::Result<()> {
    for compute in [1, 5].map(Duration::from_millis) {
        // Two, unless the system is late.
        let polls = (0..5).map(|_| polls_before_a_timer(compute));
        let least = polls.collect::<io::Result<Vec<_>>>()?.into_iter().min();
        assert!(least <= Some(3), "{least:?}");
    }
    Ok(())
}

#[test]
fn places_count_whenever_they_are_said() -> io::Result<()> {
    let port = socknotify::CompletionPort::builder;
    let builder = Runtime::builder().places(3).port(port());
    let other = Runtime::builder().port(port()).places(3);
    for runtime in [builder.build()?, other.build()?] {
        assert!(format!("{runtime:?}").contains("concurrency: 3"));
    }
    Ok(())
}

/// All threads are at work: so none waits that would look.
#[test]
fn a_slow_task_is_told_of_with_the_place_where_it_was_spawned() -> io::Result<()> {
    const AFTER: Duration = Duration::from_millis(20);
    let (tell, told) = mpsc::channel();
    let on_slow = move |task: &SlowTask| {
        // After the test nobody listens.
        let _ = tell.send(task.clone());
        panic!("this ends nothing");
    };
    let builder = Runtime::builder().places(1).threads(1);
    let runtime = builder.on_slow(AFTER, on_slow).build()?;
    let (end, ended) = mpsc::channel::<()>();
    let (line, task) = (
        line!() + 1,
        runtime.spawn(async move { ended.recv_timeout(PATIENCE).is_err() }),
    );
    let mut least = AFTER;
    for _ in 0..3 {
        // The thread itself may be late, between its packet and its first task.
        let (slow, at) = loop {
            let slow = told.recv_timeout(PATIENCE).expect("it is told of");
            if let Some(at) = slow.spawned_at {
                break (slow, at);
            }
        };
        assert_eq!((at.file(), at.line()), (file!(), line));
        assert!(slow.thread.time >= least, "{slow:?}");
        least = slow.thread.time * 2;
    }
    drop(end);
    assert!(runtime.block_on(task)?);
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

/// Spawns a task that blocks until `ended` ends, and says when it has begun. Returns the caller's line.
#[track_caller]
fn spawn_blocked(runtime: &Runtime, ended: &Arc<Mutex<mpsc::Receiver<()>>>) -> u32 {
    let (begin, begun) = mpsc::channel();
    let ended = Arc::clone(ended);
    drop(runtime.spawn(async move {
        let _ = begin.send(());
        let _ = ended.lock().expect("no panic").recv();
    }));
    begun.recv_timeout(PATIENCE).expect("it begins");
    std::panic::Location::caller().line()
}

/// Two threads are due at one look, and the closure takes so long at the first one that the second one has another task.
#[test]
fn the_right_task_is_named_however_long_the_closure_takes() -> io::Result<()> {
    const AFTER: Duration = Duration::from_millis(20);
    let (tell, told) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let on_slow = move |task: &SlowTask| {
        let _ = tell.send(task.clone());
        // In the end nobody sends any more.
        let _ = may_go_on.lock().expect("no panic").recv();
    };
    let builder = Runtime::builder().places(2).threads(2);
    let runtime = builder.on_slow(AFTER, on_slow).build()?;
    // Whoever waits has the lock, and the others wait for that.
    let blocked = || {
        let (end, ended) = mpsc::channel();
        (end, Arc::new(Mutex::new(ended)))
    };
    let begin = Instant::now();
    let (end, ended) = blocked();
    let lines = [
        spawn_blocked(&runtime, &ended),
        spawn_blocked(&runtime, &ended),
    ];
    let told = || told.recv_timeout(PATIENCE).expect("it is told of");
    let go = || go_on.send(()).expect("the closure waits");
    let one = told().thread.thread;
    go();
    while told().thread.thread == one {
        go();
    }
    // Longer than twice what was told of either: both are due at the next look.
    let time = begin.elapsed() * 2 + AFTER;
    thread::sleep(time);
    go();
    let mut first = told();
    while first.thread.time < time {
        // It was due at the look before.
        go();
        first = told();
    }
    // Each thread gets another task meanwhile.
    drop(end);
    let (end, ended) = blocked();
    spawn_blocked(&runtime, &ended);
    spawn_blocked(&runtime, &ended);
    go();
    let second = told();
    assert_ne!(first.thread.thread, second.thread.thread);
    let mut named = [first, second].map(|it| it.spawned_at.expect("a task").line());
    named.sort_unstable();
    assert_eq!(named, lines);
    drop((end, go_on));
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

/// The thread that tells it has looked for tasks before.
#[test]
fn a_task_that_is_spawned_where_the_limit_is_told_runs() -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let handle = Arc::new(OnceLock::<Handle>::new());
    let on_limit = {
        let (handle, is_first) = (Arc::clone(&handle), AtomicBool::new(true));
        move |is_at_limit: bool| {
            if !is_at_limit && is_first.swap(false, Ordering::SeqCst) {
                let tell = tell.clone();
                let handle = handle.get().expect("it is set");
                drop(handle.spawn(async move { tell.send(()) }));
            }
        }
    };
    let builder = Runtime::builder().places(1).threads(1);
    let runtime = builder.on_limit(on_limit).build()?;
    assert!(handle.set(runtime.handle().clone()).is_ok());
    runtime.block_on(runtime.spawn(async {}))?;
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()));
    Ok(())
}

#[test]
fn the_limit_of_threads_is_told_and_when_it_is_over() -> io::Result<()> {
    let (tell, told) = mpsc::channel();
    let builder = Runtime::builder().places(1).threads(1);
    let on_limit = move |is_at_limit| tell.send(is_at_limit).expect("the test listens");
    let runtime = builder.on_limit(on_limit).build()?;
    assert_eq!(runtime.block_on(runtime.spawn(async { 7 }))?, 7);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(false));
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

/// Work that blocks until it may end, and says when it begins.
struct Gate {
    begin: mpsc::Sender<()>,
    begun: mpsc::Receiver<()>,
    /// Dropped, it ends all.
    end: Option<mpsc::Sender<()>>,
    ended: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Gate {
    fn new() -> Self {
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        Gate {
            begin,
            begun,
            end: Some(end),
            ended: Arc::new(Mutex::new(ended)),
        }
    }

    fn work(&self) -> impl FnOnce() + Send + 'static {
        let (begin, ended) = (self.begin.clone(), Arc::clone(&self.ended));
        move || {
            let _ = begin.send(());
            let _ = ended.lock().unwrap().recv();
        }
    }

    fn has_begun(&self) {
        self.begun.recv_timeout(PATIENCE).expect("it begins");
    }
}

/// A timer comes, another task runs, and a socket is served.
fn serves(runtime: &Runtime) -> io::Result<()> {
    let (sender, served) = mpsc::channel();
    drop(runtime.spawn(async move {
        sleep(Duration::from_millis(5)).await;
        let sockets = [(); 2].map(|()| socknotify_async::UdpSocket::bind("127.0.0.1:0"));
        let [reads, writes] = sockets;
        let (reads, writes) = (reads?, writes?);
        let address = reads.get_ref().local_addr()?;
        spawn(async move { writes.send_to(b"x", address).await.map(drop) }).await??;
        let _ = sender.send(reads.recv_from(&mut [0]).await?.0);
        io::Result::Ok(())
    }));
    let outcome = served.recv_timeout(PATIENCE);
    assert_eq!(outcome, Ok(1), "others wait for what blocks");
    Ok(())
}

#[test]
fn unblock_leaves_a_thread_for_timers_and_sockets() -> io::Result<()> {
    for threads in [2, 4] {
        let runtime = Runtime::builder().places(2).threads(threads).build()?;
        let _entered = runtime.handle().enter();
        let mut gate = Gate::new();
        let jobs: Vec<_> = (0..10).map(|_| unblock(gate.work())).collect();
        (1..threads).for_each(|_| gate.has_begun());
        serves(&runtime)?;
        assert!(gate.begun.try_recv().is_err());
        drop(gate.end.take());
        for job in jobs {
            runtime.block_on(job)?;
        }
    }
    Ok(())
}

#[test]
fn unblock_takes_no_last_thread_beside_tasks_that_block() -> io::Result<()> {
    let runtime = Runtime::builder().places(2).threads(4).build()?;
    let _entered = runtime.handle().enter();
    let (mut blocks, mut gate) = (Gate::new(), Gate::new());
    let work = blocks.work();
    let blocked = runtime.spawn(async move { work() });
    blocks.has_begun();
    let jobs: Vec<_> = (0..5).map(|_| unblock(gate.work())).collect();
    (0..2).for_each(|_| gate.has_begun());
    serves(&runtime)?;
    assert!(gate.begun.try_recv().is_err());
    // Another thread waits for events then.
    drop(blocks.end.take());
    runtime.block_on(blocked)?;
    gate.has_begun();
    serves(&runtime)?;
    assert!(gate.begun.try_recv().is_err());
    drop(gate.end.take());
    for job in jobs {
        runtime.block_on(job)?;
    }
    Ok(())
}

/// Those that block wait for it: so one runs in any case.
#[test]
fn unblock_runs_beside_tasks_that_block_until_it_has() -> io::Result<()> {
    for threads in [1, 2, 4] {
        let runtime = Runtime::builder().places(1).threads(threads).build()?;
        let handle = runtime.handle().clone();
        let (sender, ended) = mpsc::channel();
        for _ in 1..threads {
            let (handle, sender) = (handle.clone(), sender.clone());
            drop(runtime.spawn(async move {
                for _ in 0..20 {
                    let waits = handle.block_on(async { unblock(|| ()).await });
                    let _ = sender.send(waits.is_ok());
                }
            }));
        }
        let _entered = runtime.handle().enter();
        drop(unblock(move || sender.send(true)));
        for _ in 0..=20 * (threads - 1) {
            assert_eq!(ended.recv_timeout(PATIENCE), Ok(true), "{threads} threads");
        }
    }
    Ok(())
}

#[test]
fn unblock_runs_beside_tasks_that_are_always_ready() -> io::Result<()> {
    let runtime = Runtime::builder().places(2).threads(2).build()?;
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let is_over = Arc::clone(&is_over);
        drop(runtime.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                yield_now().await;
            }
        }));
    }
    let _entered = runtime.handle().enter();
    let (sender, ended) = mpsc::channel();
    for number in 0..20 {
        let sender = sender.clone();
        drop(unblock(move || sender.send(number)));
    }
    for _ in 0..20 {
        ended.recv_timeout(PATIENCE).expect("it runs");
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

#[test]
fn unblock_s_work_that_waits_for_a_thread_is_aborted_at_once_and_leaves_its_turn() -> io::Result<()>
{
    let runtime = Runtime::builder().places(1).threads(2).build()?;
    let _entered = runtime.handle().enter();
    let mut gate = Gate::new();
    let first = unblock(gate.work());
    gate.has_begun();
    let others = [(); 3].map(|()| unblock(gate.work()));
    serves(&runtime)?;
    let [second, third, fourth] = others;
    for job in [second, fourth] {
        job.abort();
        let outcome = runtime.block_on(async { timeout(PATIENCE, job).await })?;
        assert!(outcome.unwrap_err().is_cancelled());
    }
    drop(gate.end.take());
    runtime.block_on(async {
        timeout(PATIENCE, first).await??;
        timeout(PATIENCE, third).await??;
        io::Result::Ok(())
    })?;
    gate.has_begun();
    assert!(gate.begun.try_recv().is_err());
    Ok(())
}

#[test]
fn unblock_s_work_that_waits_for_a_thread_is_dropped_as_the_runtime_ends() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).threads(2).build()?;
    let handle = runtime.handle().clone();
    let mut gate = Gate::new();
    let owned = Arc::new(());
    let entered = handle.enter();
    for _ in 0..4 {
        let (work, owned) = (gate.work(), Arc::clone(&owned));
        drop(unblock(move || {
            work();
            drop(owned);
        }));
    }
    drop(entered);
    gate.has_begun();
    serves(&runtime)?;
    assert!(!runtime.shutdown(Duration::from_millis(1)));
    drop(gate.end.take());
    until_it_has_ended(&handle);
    assert_eq!(Arc::strong_count(&owned), 1);
    assert!(gate.begun.try_recv().is_err());
    Ok(())
}
