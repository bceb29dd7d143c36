//! The limit of memory, which is the process's, keeps it from starting threads: so this is a program of its own, and its tests run
//! one after the other.
#![cfg(target_os = "linux")]

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socknotify_async::Runtime;

const PATIENCE: Duration = Duration::from_secs(30);
/// More than a thread that has ended leaves to the next one.
const STACK: usize = 256 << 20;

/// Blocks as its thread ends.
struct EndsLate(mpsc::Receiver<()>);

impl Drop for EndsLate {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

thread_local! {
    static LATE: std::cell::RefCell<Option<EndsLate>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_runtime_ends_though_the_system_starts_no_thread() -> io::Result<()> {
    let _one_at_a_time = lock();
    let builder = Runtime::builder().places(1).threads(1).stack_size(STACK);
    let (release, released) = mpsc::channel();
    let (drops, dropped) = mpsc::channel::<()>();
    let runtime = builder.clone().on_limit(move |_| _ = &drops).build()?;
    runtime.block_on(runtime.spawn(async move {
        LATE.set(Some(EndsLate(released)));
    }))?;
    let limit = start_no_threads()?;
    assert!(builder.build().is_err());
    let (sender, outcome) = mpsc::channel();
    thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let _ = sender.send(runtime.shutdown(PATIENCE));
    })?;
    // It is not over while a thread ends.
    let before = outcome.recv_timeout(Duration::from_millis(100));
    drop(release);
    assert!(before.is_err(), "{before:?}");
    assert_eq!(outcome.recv_timeout(PATIENCE), Ok(true));
    // What the builder was given is dropped before.
    assert_eq!(dropped.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    setrlimit(Resource::As, limit)?;
    Ok(())
}

/// All threads are blocked, and none of them can start another one.
#[test]
fn a_runtime_goes_on_beside_blocked_tasks_once_threads_can_be_started_again() -> io::Result<()> {
    let _one_at_a_time = lock();
    let runtime = Runtime::builder().places(1).stack_size(STACK).build()?;
    let before = start_no_threads()?;
    let (open, gate) = mpsc::channel();
    let (begins, begun) = mpsc::channel();
    let waits = runtime.spawn(async move {
        let _ = begins.send(());
        gate.recv_timeout(PATIENCE)
    });
    begun.recv().expect("it begins");
    let opens = runtime.spawn(async move { open.send(()) });
    setrlimit(Resource::As, before)?;
    runtime.block_on(async {
        assert_eq!(waits.await?, Ok(()));
        assert_eq!(opens.await?, Ok(()));
        Ok(())
    })
}

/// One of these tests at a time. The threads of the one before have ended: where their stacks were, others could start.
fn lock() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    while has_threads() {
        assert!(begin.elapsed() < PATIENCE, "they do not end");
        thread::sleep(Duration::from_millis(1));
    }
    one
}

/// Whether there are threads of a runtime.
fn has_threads() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("it is there");
    let mut names =
        tasks.filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "socknotify")
}

/// From here on no thread with such a stack can be started. Returns the limit before.
fn start_no_threads() -> io::Result<Rlimit> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|it| it.strip_prefix("VmSize:"));
    let size = size.and_then(|it| it.trim().strip_suffix(" kB"));
    let kilobytes: u64 = size.and_then(|it| it.parse().ok()).expect("a size");
    let before = getrlimit(Resource::As);
    let current = Some(kilobytes * 1024 + STACK as u64 / 2);
    setrlimit(Resource::As, Rlimit { current, ..before })?;
    Ok(before)
}
