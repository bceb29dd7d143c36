//! Runtimes for tests, which end in any case.

use std::future::Future;
use std::io;
use std::time::Duration;

use socknotify_async::{Runtime, timeout};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn run<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    Runtime::new()?.block_on(async { timeout(PATIENCE, future).await? })
}

/// Runs in tokio's context.
pub fn run_with_tokio<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let context = tokio.handle().clone();
    let runtime = Runtime::builder().inside(move |run| {
        let _entered = context.enter();
        run();
    });
    runtime
        .build()?
        .block_on(async { timeout(PATIENCE, future).await? })
}
