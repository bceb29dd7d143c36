//! The limit of memory, which is the process's, keeps it from starting threads: so this is a program of its own.
#![cfg(target_os = "linux")]

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

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
    let builder = Runtime::builder().places(1).threads(1).stack_size(STACK);
    let (release, released) = mpsc::channel();
    let (drops, dropped) = mpsc::channel::<()>();
    let runtime = builder.clone().on_limit(move |_| _ = &drops).build()?;
    runtime.block_on(runtime.spawn(async move {
        LATE.set(Some(EndsLate(released)));
    }))?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|it| it.strip_prefix("VmSize:"));
    let size = size.and_then(|it| it.trim().strip_suffix(" kB"));
    let kilobytes: u64 = size.and_then(|it| it.parse().ok()).expect("a size");
    let limit = Rlimit {
        current: Some(kilobytes * 1024 + STACK as u64 / 2),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit)?;
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
    Ok(())
}
