//! A runtime that shuts down while tasks, wakers and timers are in the middle of something.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use socknotify_async::{Async, Handle, Runtime, Sleep, sleep, spawn};

use crate::{sleeps_until, until_it_has_ended};

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `work` in a thread of its own, which may not take for ever.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    result.recv_timeout(PATIENCE).expect("it ends in time")
}

type Slot = Arc<Mutex<Option<Waker>>>;

/// Keeps its waker where others find it, and runs something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A task that waits for ever, has its waker in the slot, and runs this when it is dropped.
fn waiting(slot: Slot, on_drop: impl FnMut() + Send + 'static) -> impl Future<Output = ()> + Send {
    let on_drop = OnDrop(on_drop);
    async move {
        let _on_drop = on_drop;
        poll_fn(|cx| {
            *slot.lock().unwrap() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

fn until_it_waits(slot: &Slot) {
    while slot.lock().unwrap().is_none() {
        thread::yield_now();
    }
}

#[test]
fn tasks_that_wake_one_another_as_they_are_dropped_take_no_stack() -> io::Result<()> {
    const TASKS: usize = 100_000;
    let runtime = Runtime::builder().places(1).build()?;
    let drops = Arc::new(AtomicUsize::new(0));
    let slots: Vec<Slot> = (0..=TASKS).map(|_| Slot::default()).collect();
    for number in 0..TASKS {
        let (slot, drops) = (Arc::clone(&slots[number]), Arc::clone(&drops));
        // Each has what the next one waits for.
        let next = Arc::clone(&slots[number + 1]);
        drop(runtime.spawn(waiting(slot, move || {
            drops.fetch_add(1, Ordering::SeqCst);
            let waker = next.lock().unwrap().take();
            waker.into_iter().for_each(Waker::wake);
        })));
    }
    until_it_waits(&slots[TASKS - 1]);
    let handle = runtime.handle().clone();
    runtime.shutdown(Duration::ZERO);
    until_it_has_ended(&handle);
    assert_eq!(drops.load(Ordering::SeqCst), TASKS);
    Ok(())
}

/// A task wakes another one under a lock, while it is dropped. The other one's drop takes that lock, too: on another thread it
/// waits for it, and inside of the wake it would do so for ever.
fn a_wake_under_a_lock(from_another_thread: bool) -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let lock = Arc::new(Mutex::new(()));
    let (first, second) = (Slot::default(), Slot::default());
    let (sender, is_dropped) = mpsc::channel();
    let wakes = {
        let (lock, second) = (Arc::clone(&lock), Arc::clone(&second));
        move || {
            let _guard = lock.lock().unwrap();
            let waker = second.lock().unwrap().clone();
            waker.expect("it waits").wake();
        }
    };
    drop(runtime.spawn(waiting(Arc::clone(&first), move || {
        let wakes = wakes.clone();
        if from_another_thread {
            thread::spawn(wakes).join().expect("no panic");
        } else {
            wakes();
        }
    })));
    until_it_waits(&first);
    drop(runtime.spawn(waiting(Arc::clone(&second), move || {
        drop(lock.lock());
        let _ = sender.send(());
    })));
    until_it_waits(&second);
    runtime.shutdown(Duration::ZERO);
    assert_eq!(is_dropped.recv_timeout(PATIENCE), Ok(()));
    Ok(())
}

#[test]
fn a_wake_drops_no_task_under_the_waker_s_locks() -> io::Result<()> {
    a_wake_under_a_lock(false)?;
    a_wake_under_a_lock(true)
}

#[test]
fn who_sleeps_outside_of_a_runtime_that_shuts_down_does_not_sleep_on() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let sleeps = thread::spawn(move || {
        let sleeps = || handle.block_on(async { sleep(Duration::from_secs(3600)).await });
        catch_unwind(AssertUnwindSafe(sleeps)).is_err()
    });
    // It waits by then, most often.
    thread::sleep(Duration::from_millis(20));
    drop(runtime);
    assert!(in_time(move || sleeps.join().expect("no panic")));
    Ok(())
}

/// A task sleeps for so long in `block_on`, and does not keep its thread.
fn in_block_on_as_it_shuts_down(time: Duration) -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let (sender, begun) = mpsc::channel();
    drop(runtime.spawn(async move {
        let _ = sender.send(());
        handle.block_on(async { sleep(time).await });
    }));
    begun.recv_timeout(PATIENCE).expect("it begins");
    thread::sleep(Duration::from_millis(20));
    let handle = runtime.handle().clone();
    drop(runtime);
    in_time(move || {
        while handle.threads() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
    Ok(())
}

#[test]
fn a_task_that_sleeps_in_block_on_does_not_keep_its_thread() -> io::Result<()> {
    in_block_on_as_it_shuts_down(Duration::from_secs(3600))?;
    in_block_on_as_it_shuts_down(Duration::MAX)
}

#[test]
fn spawning_waking_and_aborting_beside_a_shutdown_leaves_no_task() -> io::Result<()> {
    for _ in 0..50 {
        let runtime = Runtime::builder().places(2).build()?;
        let handle = runtime.handle().clone();
        let drops = Arc::new(AtomicUsize::new(0));
        let others: Vec<_> = (0..3)
            .map(|_| {
                let (handle, drops) = (handle.clone(), Arc::clone(&drops));
                thread::spawn(move || {
                    let mut spawned = 0;
                    for number in 0..300 {
                        let slot = Slot::default();
                        let drops = Arc::clone(&drops);
                        let task = handle.spawn(waiting(Arc::clone(&slot), move || {
                            drops.fetch_add(1, Ordering::SeqCst);
                        }));
                        spawned += 1;
                        let waker = slot.lock().unwrap().take();
                        waker.into_iter().for_each(Waker::wake);
                        if number % 3 == 0 {
                            task.abort();
                        }
                    }
                    spawned
                })
            })
            .collect();
        thread::sleep(Duration::from_micros(300));
        runtime.shutdown(Duration::ZERO);
        let joined = others.into_iter().map(|it| it.join().expect("no panic"));
        let spawned: usize = joined.sum();
        until_it_has_ended(&handle);
        assert_eq!(drops.load(Ordering::SeqCst), spawned);
    }
    Ok(())
}

#[test]
fn a_task_may_shut_its_runtime_down() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let other = handle.spawn(pending::<()>());
    let (sender, outcome) = mpsc::channel();
    let joined = handle.block_on(async {
        let shuts_down = handle.spawn(async move {
            let _ = sender.send(runtime.shutdown(Duration::from_millis(5)));
        });
        (shuts_down.await.is_ok(), other.await.is_err())
    });
    assert_eq!(outcome.recv_timeout(PATIENCE), Ok(false));
    assert!(joined.1);
    Ok(())
}

/// Spawns a task as it is dropped.
struct Spawns(mpsc::Sender<()>);

impl Drop for Spawns {
    fn drop(&mut self) {
        drop(spawn(async {}));
        let _ = self.0.send(());
    }
}

/// If they panicked, the second one would end the process.
#[test]
fn what_is_dropped_as_a_runtime_shuts_down_is_inside_of_it() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let (sender, dropped) = mpsc::channel();
    let task = || {
        let values = [sender.clone(), sender.clone()].map(Spawns);
        async move {
            let _values = values;
            pending::<()>().await;
        }
    };
    drop(handle.spawn(task()));
    drop(runtime);
    drop(handle.spawn(task()));
    for _ in 0..4 {
        assert_eq!(dropped.recv_timeout(PATIENCE), Ok(()));
    }
    Ok(())
}

#[test]
fn a_runtime_may_be_dropped_as_its_thread_ends() {
    thread_local! {
        static RUNTIME: Runtime = Runtime::new().expect("a runtime");
    }
    let (sender, dropped) = mpsc::channel();
    let thread = thread::spawn(move || {
        RUNTIME.with(|runtime| {
            drop(runtime.spawn(waiting(Slot::default(), move || {
                let _ = sender.send(());
            })));
            runtime.block_on(async {});
        });
    });
    thread.join().expect("no panic");
    assert_eq!(dropped.recv_timeout(PATIENCE), Ok(()));
}

#[test]
fn a_task_that_shuts_its_runtime_down_waits_for_the_others_and_not_for_itself() -> io::Result<()> {
    let runtime = Runtime::builder().places(2).build()?;
    let handle = runtime.handle().clone();
    let (sender, outcome) = mpsc::channel();
    drop(handle.spawn(async { sleep(Duration::from_millis(5)).await }));
    drop(handle.spawn(async move {
        let _ = sender.send(runtime.shutdown(PATIENCE * 10));
    }));
    assert_eq!(outcome.recv_timeout(PATIENCE), Ok(true));
    until_it_has_ended(&handle);
    Ok(())
}

/// Two tasks, of which each waits for the other one as it is dropped. Runs `ends`, which is not to wait for them.
fn what_is_dropped_waits(ends: impl FnOnce(Runtime) + Send + 'static) -> io::Result<()> {
    let runtime = Runtime::builder().places(1).threads(4).build()?;
    let handle = runtime.handle().clone();
    let barrier = Arc::new(std::sync::Barrier::new(3));
    for _ in 0..2 {
        let (slot, barrier) = (Slot::default(), Arc::clone(&barrier));
        drop(runtime.spawn(waiting(Arc::clone(&slot), move || {
            barrier.wait();
        })));
        until_it_waits(&slot);
    }
    in_time(move || ends(runtime));
    // Both wait, and for this one.
    barrier.wait();
    until_it_has_ended(&handle);
    Ok(())
}

#[test]
fn shutdown_and_drop_do_not_wait_for_what_waits_as_it_is_dropped() -> io::Result<()> {
    what_is_dropped_waits(drop)?;
    what_is_dropped_waits(|runtime| assert!(!runtime.shutdown(Duration::from_millis(20))))
}

#[test]
fn threads_have_ended_with_their_thread_locals() -> io::Result<()> {
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    struct EndsLate;
    impl Drop for EndsLate {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(20));
            ENDED.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static LATE: EndsLate = const { EndsLate };
    }
    let runtime = Runtime::builder().places(2).build()?;
    let barrier = Arc::new(std::sync::Barrier::new(4));
    for _ in 0..4 {
        let barrier = Arc::clone(&barrier);
        drop(runtime.spawn(async move {
            LATE.with(|_| barrier.wait());
        }));
    }
    assert!(runtime.shutdown(PATIENCE));
    assert_eq!(ENDED.load(Ordering::SeqCst), 4);
    Ok(())
}

/// A thread that had nothing to do has ended before, and another one was started since.
///
/// Windows drops thread-locals under a lock that a thread needs to start: what blocks there keeps all others from it.
#[cfg(not(windows))]
#[test]
fn threads_that_ended_before_have_ended_with_their_thread_locals() -> io::Result<()> {
    static MAY_END: Mutex<()> = Mutex::new(());
    static HAS_ONE_ENDED: AtomicBool = AtomicBool::new(false);
    struct EndsLate;
    impl Drop for EndsLate {
        fn drop(&mut self) {
            if !HAS_ONE_ENDED.swap(true, Ordering::SeqCst) {
                drop(MAY_END.lock());
            }
        }
    }
    thread_local! {
        static LATE: EndsLate = const { EndsLate };
    }
    let builder = Runtime::builder().places(1);
    let runtime = builder.idle(Duration::from_millis(10)).build()?;
    let two_at_once = || {
        let barrier = Arc::new(std::sync::Barrier::new(2));
        let tasks = [(); 2].map(|()| {
            let barrier = Arc::clone(&barrier);
            runtime.spawn(async move {
                LATE.with(|_| barrier.wait());
            })
        });
        tasks
            .into_iter()
            .try_for_each(|task| runtime.block_on(task))
    };
    let may_end = MAY_END.lock().expect("no panic");
    two_at_once()?;
    while runtime.handle().threads() > 1 {
        thread::sleep(Duration::from_millis(1));
    }
    two_at_once()?;
    assert!(!runtime.shutdown(Duration::from_millis(100)));
    drop(may_end);
    Ok(())
}

#[test]
fn threads_are_inside_of_what_the_builder_was_told() -> io::Result<()> {
    use std::cell::Cell;
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    /// Ready before it is dropped. Returns whether it was dropped inside.
    struct Dropped(Arc<AtomicBool>);
    impl Future for Dropped {
        type Output = Arc<AtomicBool>;
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Arc<AtomicBool>> {
            Poll::Ready(Arc::clone(&self.0))
        }
    }
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(INSIDE.get(), Ordering::SeqCst);
        }
    }
    let left = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&left);
    let builder = Runtime::builder().places(1).stack_size(256 * 1024);
    let builder = builder.inside(move |run| {
        INSIDE.set(true);
        run();
        INSIDE.set(false);
        count.fetch_add(1, Ordering::SeqCst);
    });
    let runtime = builder.build()?;
    assert!(runtime.block_on(runtime.spawn(async { INSIDE.get() }))?);
    assert!(runtime.block_on(async { INSIDE.get() }));
    let was_inside = runtime.block_on(Dropped(Arc::default()));
    assert!(was_inside.load(Ordering::SeqCst));
    assert!(!INSIDE.get());
    assert!(runtime.shutdown(PATIENCE));
    // A thread at least, and this one.
    assert!(left.load(Ordering::SeqCst) >= 2);
    Ok(())
}

/// As often as threads are started, it panics, or does not call what it is given.
#[test]
fn threads_whose_inside_fails_run_all_the_same() -> io::Result<()> {
    let calls = AtomicUsize::new(0);
    let builder = Runtime::builder().places(1).threads(4);
    let builder = builder.inside(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) % 2 == 0 {
            panic!("on purpose");
        }
    });
    let runtime = builder.build()?;
    let (release, blocked) = mpsc::channel::<()>();
    let (sender, others) = mpsc::channel();
    drop(runtime.spawn(async move { blocked.recv() }));
    // A thread that was lost would be counted as one that waits.
    for number in 0..10 {
        let sender = sender.clone();
        drop(runtime.spawn(async move { sender.send(number) }));
        assert_eq!(others.recv_timeout(PATIENCE), Ok(number));
    }
    let outside = catch_unwind(AssertUnwindSafe(|| runtime.block_on(async {})));
    assert!(outside.is_err());
    release.send(()).expect("it waits");
    assert!(runtime.shutdown(PATIENCE));
    Ok(())
}

/// A task of the runtime has begun, and blocks its thread until this is dropped.
fn blocked(runtime: &Runtime) -> mpsc::Sender<()> {
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    drop(runtime.spawn(async move {
        begin.send(()).expect("it is awaited");
        let _ = ended.recv();
    }));
    begun.recv().expect("it begins");
    end
}

/// One of its tasks takes its time to end, and as long there is a port.
#[test]
fn a_socket_that_is_made_as_a_runtime_shuts_down_keeps_nobody_waiting() {
    let outcome = in_time(|| -> io::Result<()> {
        let runtime = Runtime::new()?;
        let handle = runtime.handle().clone();
        let end = blocked(&runtime);
        handle.block_on(async {
            let socket = || Async::new(UdpSocket::bind("127.0.0.1:0")?);
            let receive = |socket: &UdpSocket| socket.recv(&mut [0]).map(drop);
            let before = socket()?;
            drop(runtime);
            let outcome = before.read_with(receive).await;
            outcome.expect_err("it shuts down");
            let after = socket();
            drop(end);
            after?.read_with(receive).await
        })
    });
    outcome.expect_err("it has shut down");
}

/// Says on which thread it is dropped.
struct TellsThread(mpsc::Sender<thread::ThreadId>);

impl Drop for TellsThread {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

/// A runtime whose closures own what tells where it is dropped, three in all.
fn whose_closures_tell() -> io::Result<(Runtime, mpsc::Receiver<thread::ThreadId>)> {
    let (sender, dropped) = mpsc::channel();
    let [inside, on_limit, on_slow] = [(); 3].map(|()| TellsThread(sender.clone()));
    let builder = Runtime::builder()
        .places(1)
        .inside(move |run| {
            let _owned = &inside;
            run();
        })
        .on_limit(move |_| {
            let _owned = &on_limit;
        })
        .on_slow(PATIENCE, move |_| {
            let _owned = &on_slow;
        });
    Ok((builder.build()?, dropped))
}

/// Waits for the drops of all three.
fn until_dropped(dropped: &mpsc::Receiver<thread::ThreadId>) -> Vec<thread::ThreadId> {
    let threads = [(); 3].map(|()| dropped.recv_timeout(PATIENCE).expect("it is dropped"));
    threads.into()
}

#[test]
fn what_the_builder_was_given_is_dropped_before_shutdown_returns() -> io::Result<()> {
    let (runtime, dropped) = whose_closures_tell()?;
    let handle = runtime.handle().clone();
    let kept = handle.block_on(async { (sleep(PATIENCE), spawn(async {})) });
    assert!(runtime.shutdown(PATIENCE));
    assert_eq!(dropped.try_iter().count(), 3);
    drop((handle, kept));
    Ok(())
}

/// What is dropped may block: so no thread of anyone else's does it.
#[test]
fn what_the_builder_was_given_is_dropped_on_a_thread_of_the_runtime_s() -> io::Result<()> {
    for _ in 0..20 {
        let (runtime, dropped) = whose_closures_tell()?;
        let (slot, handle) = (Slot::default(), runtime.handle().clone());
        drop(runtime.spawn(waiting(Arc::clone(&slot), || {})));
        until_it_waits(&slot);
        drop(runtime);
        until_it_has_ended(&handle);
        // The last that there is of the runtime's, most often.
        drop((handle, slot));
        assert!(!until_dropped(&dropped).contains(&thread::current().id()));
    }
    Ok(())
}

#[test]
fn what_threads_are_inside_of_lives_until_the_last_one_has_left_it() -> io::Result<()> {
    let (runtime, dropped) = whose_closures_tell()?;
    let handle = runtime.handle().clone();
    let end = blocked(&runtime);
    assert!(!runtime.shutdown(Duration::from_millis(20)));
    // That of `on_slow` has no thread by then.
    let before = dropped.try_iter().count();
    assert!(before <= 1, "{before}");
    drop(end);
    for _ in before..3 {
        dropped.recv_timeout(PATIENCE).expect("it is dropped");
    }
    drop(handle);
    Ok(())
}

#[test]
fn who_is_in_block_on_keeps_what_it_is_inside_of_and_no_shutdown() -> io::Result<()> {
    let (runtime, dropped) = whose_closures_tell()?;
    let handle = runtime.handle().clone();
    handle.block_on(async {
        assert!(runtime.shutdown(PATIENCE));
        assert_eq!(dropped.try_iter().count(), 2);
    });
    let last = dropped.recv_timeout(PATIENCE).expect("it is dropped");
    assert_ne!(last, thread::current().id());
    // There is nothing to be inside of any more.
    handle.block_on(async {});
    Ok(())
}

/// Calls this when it is woken, and never again.
struct Calls<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> Calls<F> {
    fn waker(call: F) -> Waker {
        Waker::from(Arc::new(Calls(Mutex::new(Some(call)))))
    }
}

impl<F: FnOnce() + Send> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        let call = self.0.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
    }
}

/// A task ends by itself while `ends` has one of the runtime's threads shut it down, which is to wait for that.
fn shut_down_by(ends: impl FnOnce(&Handle, Box<dyn FnOnce() + Send>)) -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let task = runtime.spawn(async { sleep(Duration::from_millis(100)).await });
    let (sender, outcome) = mpsc::channel();
    let shut_down = move || {
        let _ = sender.send(runtime.shutdown(PATIENCE * 10));
    };
    ends(&handle, Box::new(shut_down));
    assert_eq!(outcome.recv_timeout(PATIENCE), Ok(true));
    handle.block_on(task)?;
    Ok(())
}

/// Calls this once, when it is dropped.
fn on_drop(call: impl FnOnce() + Send) -> OnDrop<impl FnMut() + Send> {
    let mut call = Some(call);
    OnDrop(move || call.take().into_iter().for_each(|call| call()))
}

#[test]
fn a_foreign_waker_that_shuts_a_runtime_down_waits_for_all_others() -> io::Result<()> {
    let mut kept = Vec::new();
    shut_down_by(|handle, shut_down| {
        let waker = Calls::waker(shut_down);
        let _entered = handle.enter();
        let due = Instant::now() + Duration::from_millis(5);
        kept.push(sleeps_until(due, &waker));
    })
}

#[test]
fn what_runs_after_a_task_has_ended_waits_for_all_others() -> io::Result<()> {
    // The waker of who waits for it.
    shut_down_by(|handle, shut_down| {
        let (end, ended) = mpsc::channel::<()>();
        let mut task = handle.spawn(async move { ended.recv() });
        let waker = Calls::waker(shut_down);
        let poll = Pin::new(&mut task).poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        drop(end);
    })?;
    // Its result, which nobody takes.
    shut_down_by(|handle, shut_down| {
        let result = on_drop(shut_down);
        drop(handle.spawn(async move { result }));
    })
}

#[test]
fn a_task_that_is_dropped_shuts_its_runtime_down_and_waits_for_all_others() -> io::Result<()> {
    // Aborted.
    shut_down_by(|handle, shut_down| {
        let (slot, mut on_drop) = (Slot::default(), Some(on_drop(shut_down)));
        let task = handle.spawn(waiting(Arc::clone(&slot), move || drop(on_drop.take())));
        until_it_waits(&slot);
        task.abort();
    })?;
    // Ready.
    shut_down_by(|handle, shut_down| {
        let on_drop = on_drop(shut_down);
        drop(handle.spawn(poll_fn(move |_| {
            let _owned = &on_drop;
            Poll::Ready(())
        })));
    })
}

/// A timer of this runtime in a future of anyone else's, with this waker.
fn sleeps_elsewhere(handle: &Handle, waker: &Waker) -> Sleep {
    let _entered = handle.enter();
    sleeps_until(Instant::now() + PATIENCE * 10, waker)
}

#[test]
fn what_is_spawned_or_woken_elsewhere_as_the_last_task_ends_is_dropped() -> io::Result<()> {
    for _ in 0..if cfg!(emulated) { 50 } else { 150 } {
        let runtime = Runtime::builder().places(1).build()?;
        let handle = runtime.handle().clone();
        let (slot, spawns) = (Slot::default(), Arc::new(AtomicUsize::new(0)));
        let begins = Arc::new(std::sync::Barrier::new(5));
        drop(runtime.spawn(waiting(Arc::clone(&slot), || {})));
        until_it_waits(&slot);
        let waker = slot.lock().unwrap().clone().expect("it waits");
        // More than there are processors, most often: so some are stopped in the middle.
        let others = [(); 4].map(|()| {
            let (handle, waker) = (handle.clone(), waker.clone());
            let (begins, spawns) = (Arc::clone(&begins), Arc::clone(&spawns));
            thread::spawn(move || {
                begins.wait();
                while !handle.spawn(pending::<()>()).is_finished() {
                    waker.wake_by_ref();
                    spawns.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        drop(handle.spawn(async move {
            begins.wait();
            while spawns.load(Ordering::SeqCst) < 100 {
                thread::yield_now();
            }
            drop(runtime);
        }));
        others
            .into_iter()
            .for_each(|it| it.join().expect("no panic"));
        until_it_has_ended(&handle);
    }
    Ok(())
}

#[test]
fn shutdown_in_a_task_waits_for_the_wakers_of_others() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let spawns = handle.clone();
    let waker = Calls::waker(move || {
        // It ends at once.
        drop(spawns.spawn(async {}));
        let _ = begin.send(());
        let _ = ended.recv();
    });
    let _sleep = sleeps_elsewhere(&handle, &waker);
    let (sender, outcome) = mpsc::channel();
    drop(handle.spawn(async move {
        let _ = sender.send(runtime.shutdown(PATIENCE * 10));
    }));
    begun.recv_timeout(PATIENCE).expect("it is woken");
    let before = outcome.recv_timeout(Duration::from_millis(100));
    drop(end);
    assert!(before.is_err(), "{before:?}, while the waker runs");
    assert_eq!(outcome.recv_timeout(PATIENCE), Ok(true));
    Ok(())
}

#[test]
fn wakers_of_others_that_block_as_a_runtime_ends_keep_nobody_from_hearing_of_it() -> io::Result<()>
{
    let runtime = Runtime::builder().places(1).threads(4).build()?;
    let handle = runtime.handle().clone();
    // Each waits for all others.
    let barrier = Arc::new(std::sync::Barrier::new(5));
    let waits = || {
        let barrier = Arc::clone(&barrier);
        move || _ = barrier.wait()
    };
    let wakers = [(); 2].map(|()| Calls::waker(waits()));
    let _sleeps = wakers.each_ref().map(|it| sleeps_elsewhere(&handle, it));
    let socket = handle.block_on(async { Async::new(UdpSocket::bind("127.0.0.1:0")?) })?;
    let mut receives = Box::pin(socket.read_with(|socket| socket.recv(&mut [0])));
    let waker = Calls::waker(waits());
    let poll = receives.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(poll.is_pending());
    let (slot, dropped) = (Slot::default(), waits());
    drop(runtime.spawn(waiting(Arc::clone(&slot), dropped)));
    until_it_waits(&slot);
    drop(runtime);
    in_time(move || barrier.wait());
    until_it_has_ended(&handle);
    Ok(())
}

/// Spawns another one as it is dropped, so many times.
struct Respawns(usize, Handle, mpsc::Sender<()>);

impl Drop for Respawns {
    fn drop(&mut self) {
        match self.0 {
            0 => drop(self.2.send(())),
            left => drop(Respawns(left - 1, self.1.clone(), self.2.clone()).spawn()),
        }
    }
}

impl Respawns {
    fn spawn(self) -> socknotify_async::JoinHandle<()> {
        let handle = self.1.clone();
        handle.spawn(async move {
            let _respawns = self;
            pending::<()>().await;
        })
    }
}

#[test]
fn what_spawns_as_it_is_dropped_takes_no_stack() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    let (sender, is_last) = mpsc::channel();
    let respawns = || Respawns(100_000, handle.clone(), sender.clone());
    drop(respawns().spawn());
    drop(runtime);
    is_last.recv_timeout(PATIENCE).expect("it ends");
    until_it_has_ended(&handle);
    // The last one is dropped before this returns.
    let mut late = respawns().spawn();
    assert!(is_last.try_recv().is_ok());
    assert!(late.is_finished());
    let poll = Pin::new(&mut late).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Err(error)) if error.is_cancelled()));
    Ok(())
}

#[test]
fn a_drop_may_wait_for_what_it_spawns_on_a_runtime_that_has_ended() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let handle = runtime.handle().clone();
    assert!(runtime.shutdown(PATIENCE));
    in_time(move || {
        let mut waits = Some(|| {
            let mut set = socknotify_async::JoinSet::new();
            set.spawn(pending::<()>());
            // It has ended when its future is dropped.
            futures_lite::future::block_on(set.join_next())
        });
        let (sender, outcome) = mpsc::channel();
        drop(handle.spawn(waiting(Slot::default(), move || {
            let outcome = waits.take().and_then(|waits| waits());
            let _ = sender.send(outcome.is_some_and(|it| it.is_err()));
        })));
        assert_eq!(outcome.recv(), Ok(true));
    });
    Ok(())
}
