//! Work that blocks, on helper threads.

use std::collections::BTreeSet;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socknotify::owned::{Event, Port};
use socknotify::{Backend, Error};

use super::support::{Gate, PATIENCE, wait_until};
use super::{builder, message, next, nothing, owning_port};

#[for_every_backend]
fn o1_each_result_comes_once_as_a_message(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    for number in 0..1000 {
        port.offload(move || number)?;
    }
    let mut worker = port.worker(16);
    let results: BTreeSet<_> = (0..1000).map(|_| message(&mut worker)).collect();
    assert_eq!(results, (0..1000).collect());
    nothing(&mut worker);
    Ok(())
}

#[for_every_backend]
fn o1_results_go_to_threads_that_wait(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    let sum = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            let mut worker = port.worker(4);
            let sum = &sum;
            scope.spawn(move || {
                while worker.process(None).is_ok() {
                    while let Some(event) = worker.take() {
                        let Event::Message(number) = event else {
                            panic!("{event:?}");
                        };
                        sum.fetch_add(number as usize, Ordering::SeqCst);
                    }
                }
            });
        }
        for number in 1..=1000 {
            assert!(port.offload(move || number).is_ok());
        }
        wait_until("all results are taken", || {
            sum.load(Ordering::SeqCst) == 500_500
        });
        port.close();
    });
    Ok(())
}

#[for_every_backend]
fn o1_work_begins_in_the_order_in_which_it_was_given(backend: Backend) -> io::Result<()> {
    let port = builder(backend).helper_threads(1).build()?;
    for number in 0..100 {
        port.offload(move || number)?;
    }
    let mut worker = port.worker(16);
    for number in 0..100 {
        assert_eq!(message(&mut worker), number);
    }
    Ok(())
}

#[for_every_backend]
fn o1_a_panic_is_an_event(backend: Backend) -> io::Result<()> {
    let port = builder(backend).helper_threads(1).build()?;
    port.offload(|| 1)?;
    port.offload(|| std::panic::resume_unwind(Box::new("a fault")))?;
    port.offload(|| 2)?;
    let mut worker = port.worker(16);
    assert_eq!(message(&mut worker), 1);
    // No thread that serves ends for it.
    let Event::Panicked(None, panic) = next(&mut worker) else {
        panic!("it panicked")
    };
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a fault"));
    assert_eq!(message(&mut worker), 2);
    Ok(())
}

#[for_every_backend]
fn o1_a_panic_that_was_not_taken_goes_to_another_thread(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    port.offload(|| std::panic::resume_unwind(Box::new("a fault")))?;
    let mut worker = port.worker(16);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    drop(worker);
    let mut worker = port.worker(16);
    assert!(matches!(next(&mut worker), Event::Panicked(..)));
    Ok(())
}

#[for_every_backend]
fn o2_there_are_no_more_threads_than_asked_for(backend: Backend) -> io::Result<()> {
    let port = builder(backend).helper_threads(3).build()?;
    let gate = Arc::new(Gate::new());
    let running = Arc::new(AtomicUsize::new(0));
    for number in 0..20 {
        let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
        port.offload(move || {
            running.fetch_add(1, Ordering::SeqCst);
            gate.pass();
            number
        })?;
    }
    wait_until("three of them run", || running.load(Ordering::SeqCst) == 3);
    assert_eq!(port.helper_threads(), 3);
    let mut worker = port.worker(16);
    for done in 1..=17 {
        gate.open(1);
        message(&mut worker);
        wait_until("the next one runs", || {
            running.load(Ordering::SeqCst) == 3 + done
        });
    }
    assert_eq!(port.helper_threads(), 3);
    gate.open_for_all();
    Ok(())
}

#[for_every_backend]
fn o2_idle_threads_end(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    assert_eq!(port.helper_threads(), 0, "there was no work");
    for number in 0..10 {
        port.offload(move || number)?;
    }
    wait_until("no thread is left", || port.helper_threads() == 0);
    // And another one is there when it is needed.
    port.offload(|| 10)?;
    let mut worker = port.worker(16);
    for _ in 0..=10 {
        message(&mut worker);
    }
    Ok(())
}

#[for_every_backend]
fn o7_closing_drops_what_has_not_begun_and_does_not_wait_for_what_has(
    backend: Backend,
) -> io::Result<()> {
    let port = builder(backend).helper_threads(1).build()?;
    let gate = Arc::new(Gate::new());
    let witness = Arc::new(());
    let (begun, begins) = std::sync::mpsc::channel();
    let theirs = Arc::clone(&gate);
    port.offload(move || {
        begun.send(()).expect("somebody waits");
        theirs.pass();
        0
    })?;
    for _ in 0..100 {
        let witness = Arc::clone(&witness);
        port.offload(move || Arc::strong_count(&witness) as u64)?;
    }
    begins.recv_timeout(PATIENCE).expect("it begins");
    assert_eq!(Arc::strong_count(&witness), 101);
    port.close();
    assert_eq!(Arc::strong_count(&witness), 1);
    assert_eq!(port.helper_threads(), 1);
    gate.open_for_all();
    wait_until("its thread ends", || port.helper_threads() == 0);
    Ok(())
}

#[for_every_backend]
fn o7_a_closed_port_runs_nothing(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    port.close();
    let Err(refused) = port.offload(|| 5) else {
        panic!("it is closed");
    };
    assert_eq!(refused.reason(), Error::Closed);
    assert_eq!(refused.into_inner()(), 5);
    assert_eq!(port.helper_threads(), 0);
    assert_eq!(port.worker(1).process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn o7_a_result_that_comes_after_closing_is_dropped(backend: Backend) -> io::Result<()> {
    let port = Port::<TcpStream, Arc<()>>::builder()
        .backend(backend)
        .build()?;
    let result = Arc::new(());
    let begun = Arc::new(Gate::new());
    let gate = Arc::new(Gate::new());
    let (theirs, here, there) = (Arc::clone(&result), Arc::clone(&begun), Arc::clone(&gate));
    port.offload(move || {
        here.open(1);
        there.pass();
        theirs
    })?;
    begun.pass();
    port.close();
    assert_eq!(Arc::strong_count(&result), 2);
    gate.open(1);
    wait_until("the result is dropped", || Arc::strong_count(&result) == 1);
    Ok(())
}

#[for_every_backend]
fn o7_work_may_hold_the_port_itself(backend: Backend) -> io::Result<()> {
    let port = Arc::new(owning_port(backend)?);
    let gate = Arc::new(Gate::new());
    let (theirs, theirs_too) = (Arc::clone(&gate), Arc::clone(&port));
    port.offload(move || {
        theirs.pass();
        let last = theirs_too;
        Arc::strong_count(&last) as u64
    })?;
    let mut worker = port.worker(1);
    drop(port);
    assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    gate.open(1);
    // The port was closed by the helper thread, which held the last reference to it.
    while worker.process(Some(PATIENCE)).is_ok() {}
    assert_eq!(worker.process(None), Err(Error::Closed));
    Ok(())
}
