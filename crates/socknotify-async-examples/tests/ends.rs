//! A closure that owns tokio's runtime, in which our tasks wait: it is dropped where tokio lets it be.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socknotify_async::{Runtime, UdpSocket, sleep, spawn};

const PATIENCE: Duration = Duration::from_secs(60);

fn tokio() -> io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build()
}

/// A runtime whose closure owns a runtime of tokio's.
fn that_owns_tokio() -> io::Result<Runtime> {
    let tokio = tokio()?;
    let builder = Runtime::builder().places(2).inside(move |run| {
        let _entered = tokio.enter();
        run();
    });
    builder.build()
}

/// tokio's thread drops the waker of a task that has ended by then, where a panic would end the process.
#[test]
fn tokio_s_timers_may_drop_the_last_waker() -> io::Result<()> {
    let make_runtimes = || -> io::Result<()> {
        for _ in 0..600 {
            let runtime = that_owns_tokio()?;
            let sleeps = || async { tokio::time::sleep(Duration::from_millis(1)).await };
            let tasks = [(); 4].map(|()| runtime.spawn(sleeps()));
            for task in tasks {
                runtime.block_on(task)?;
            }
        }
        Ok(())
    };
    // Beside one another: so a thread of tokio's is often held up with a waker in hand.
    thread::scope(|scope| {
        let others = [(); 8].map(|()| scope.spawn(make_runtimes));
        let mut ended = others.into_iter().map(|it| it.join().expect("no panic"));
        ended.try_for_each(|it| it)
    })
}

/// Each of them keeps the runtime's memory, and is dropped by a task of tokio's, which may not wait for anything.
#[test]
fn a_task_of_tokio_s_may_drop_the_last_handle_sleep_or_socket() -> io::Result<()> {
    let other = tokio()?;
    for _ in 0..20 {
        let runtime = that_owns_tokio()?;
        let handle = runtime.handle().clone();
        let kept = runtime.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            let task = spawn(async {});
            io::Result::Ok((sleep(PATIENCE), socket, task, handle))
        })?;
        let (end, ended) = mpsc::channel::<()>();
        let dropped = other.spawn(async move {
            let _ = ended.recv();
            drop(kept);
        });
        assert!(runtime.shutdown(PATIENCE));
        drop(end);
        other.block_on(dropped)?;
    }
    Ok(())
}
