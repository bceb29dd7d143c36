//! F4. Which threads block or compute for long.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use socknotify::{Backend, Entry, SlowThread};

use crate::support::{CloseAtEnd, PATIENCE, Pair, SHORT, port_with, wait_until};

const PACKET: Entry = Entry::new(51, 0, 0);

/// A thread that reads from a socket shows in [`CompletionPort::slow`] until it dequeues again.
#[for_every_backend(with_permits)]
fn f4_the_port_reports_which_threads_block_and_in_what(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    assert_eq!(port.slow(Duration::ZERO), []);
    let pair = Pair::unix()?;
    pair.ours.set_nonblocking(false)?;
    pair.ours.set_read_timeout(Some(PATIENCE))?;
    thread::scope(|scope| -> io::Result<()> {
        let _close = CloseAtEnd(&port, &[]);
        let name = "reads for long";
        let reads = thread::Builder::new().name(name.into());
        let reads = reads.spawn_scoped(scope, || {
            port.dequeue_one(None).expect("a packet");
            (&pair.ours).read(&mut [0])
        })?;
        port.post(PACKET)?;
        wait_until("it runs", || port.snapshot().running == Some(1));
        let is_seen = |it: &SlowThread| {
            assert_eq!(it.thread, reads.thread().id());
            let is_known = it.name.as_deref() == Some(name) && it.id.is_some();
            // A read from a socket is a receive. An emulated processor's numbers are not those of the kernel.
            let shows = cfg!(all(
                target_os = "linux",
                target_pointer_width = "64",
                not(emulated)
            ));
            it.time >= SHORT && (!shows || is_known && it.system_call == Some("recvfrom"))
        };
        wait_until(
            "it is seen",
            || matches!(&port.slow(SHORT)[..], [it] if is_seen(it)),
        );
        (&pair.theirs).write_all(b"x")?;
        assert_eq!(reads.join().expect("no panic")?, 1);
        assert_eq!(port.slow(Duration::ZERO), []);
        Ok(())
    })
}

#[for_every_backend(with_permits)]
fn f4_the_port_reports_which_threads_compute(backend: Backend) -> io::Result<()> {
    let port = port_with(backend, 1)?;
    port.post(PACKET)?;
    port.dequeue_one(Some(PATIENCE))?;
    thread::scope(|scope| {
        let asks = scope.spawn(|| {
            wait_until("it is slow", || !port.slow(SHORT).is_empty());
            port.slow(SHORT)
        });
        while !asks.is_finished() {
            std::hint::spin_loop();
        }
        let slow = asks.join().expect("no panic");
        assert!(matches!(&slow[..], [it] if it.thread == thread::current().id()));
    });
    // One that says that it blocks is no news.
    port.blocking(|| assert_eq!(port.slow(Duration::ZERO), []));
    port.release();
    assert_eq!(port.slow(Duration::ZERO), []);
    Ok(())
}
