//! A forked child has no runtime of its parent's, and is told so.
#![cfg(unix)]

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socknotify_async::{File, JoinSet, Runtime, TcpListener, sleep};

/// Run this in a forked child. True if it returns true there.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the test's other threads hold no lock that the child needs: this is the only test of its program, and the
    // runtime's threads wait. The child ends without running what is the parent's.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", io::Error::last_os_error()),
        0 => {
            // SAFETY: a child that waits for ever ends by a signal.
            unsafe { libc::alarm(30) };
            let outcome = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: it ends the process.
            unsafe { libc::_exit(i32::from(!matches!(outcome, Ok(true)))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is written to.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

fn panics(work: impl FnOnce()) -> bool {
    let panic = catch_unwind(AssertUnwindSafe(work));
    let message = panic
        .err()
        .and_then(|it| it.downcast_ref::<&str>().copied());
    message.is_some_and(|message| message.contains("belongs to the parent process"))
}

#[test]
fn a_forked_child_is_refused_clearly() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let listener = {
        let _entered = runtime.handle().enter();
        TcpListener::bind("127.0.0.1:0")?
    };
    let address = listener.local_addr()?;
    runtime.block_on(async { sleep(Duration::from_millis(5)).await });
    let task = runtime.spawn(std::future::pending::<()>());
    let abort = task.abort_handle();
    let set = RefCell::new(JoinSet::new());
    runtime.block_on(async { set.borrow_mut().spawn(std::future::pending::<()>()) });
    let is_refused = in_child(|| {
        let handle = runtime.handle().clone();
        let spawns = panics(|| drop(handle.spawn(async {})));
        let blocks = panics(|| handle.block_on(async {}));
        let _entered = handle.enter();
        let sleeps = panics(|| {
            let mut sleep = std::pin::pin!(sleep(Duration::from_secs(1)));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::future::Future::poll(sleep.as_mut(), &mut cx);
        });
        let binds = TcpListener::bind("127.0.0.1:0").is_err();
        // A set whose task was refused has those that it had.
        let joins = panics(|| drop(set.borrow_mut().spawn(async {})));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let next = set.borrow_mut().poll_join_next(&mut cx);
        let still_waits = next.is_pending() && !abort.is_finished();
        // One of its own works; what is the parent's may be dropped.
        let own = Runtime::new().expect("a runtime");
        let has_run = own.block_on(own.spawn(async { 5 })).is_ok_and(|it| it == 5);
        spawns
            && blocks
            && sleeps
            && binds
            && joins
            && still_waits
            && has_run
            && !runtime.shutdown(Duration::ZERO)
    });
    assert!(is_refused);
    // The parent has its own, still.
    std::net::TcpStream::connect(address)?;
    what_is_the_parents_is_dropped_whatever_it_does()
}

/// Its threads may hold any lock of the runtime's as it forks.
fn what_is_the_parents_is_dropped_whatever_it_does() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle();
    let _entered = handle.enter();
    let mut set = JoinSet::new();
    for _ in 0..4 {
        set.spawn(pending::<()>());
    }
    let file = File::open("Cargo.toml")?;
    // One may have completed by the time that it is polled.
    let mut read = (0..1000).find_map(|_| {
        let mut read = Box::pin(file.read_at(vec![0; 10], 0));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let poll = std::future::Future::poll(read.as_mut(), &mut cx);
        poll.is_pending().then_some(read)
    });
    assert!(read.is_some());
    let mut set = Some(set);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                handle.block_on(async {
                    for task in [(); 50].map(|()| handle.spawn(async {})) {
                        let _ = task.await;
                        let _ = file.read_at(vec![0; 10], 0).await;
                    }
                });
            }
        });
        let is_dropped = (0..500).all(|_| {
            in_child(|| {
                drop((set.take(), read.take()));
                handle.tasks() == 0 && !format!("{handle:?}").is_empty()
            })
        });
        is_over.store(true, Ordering::SeqCst);
        assert!(is_dropped);
    });
    Ok(())
}
