//! A graceful end waits for operations and work.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socknotify::owned::{Event, FileOperation};
use socknotify::{Backend, Error};

use super::support::{Gate, PATIENCE};
use super::{TestWorker, content, empty_file, every_port, message, owning_port};

/// The results that are reported until the port closes: completions and messages.
fn results(worker: &mut TestWorker) -> (usize, Vec<u64>) {
    let (mut completions, mut messages) = (0, Vec::new());
    while let Ok(count) = worker.process(Some(PATIENCE)) {
        assert_ne!(count, 0, "the port does not close");
        while let Some(event) = worker.take() {
            match event {
                Event::Completed(done) => {
                    assert_eq!(done.result.expect("it is done"), done.buffer.len());
                    completions += 1;
                }
                Event::Message(number) => messages.push(number),
                other => panic!("{other:?}"),
            }
        }
    }
    (completions, messages)
}

#[for_every_backend]
fn o9_draining_waits_for_operations_and_reports_them(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 1000;
    const LENGTH: usize = 512;
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = empty_file(&port)?;
        for number in 0..COUNT {
            let block = vec![b'x'; LENGTH];
            port.begin(FileOperation::write_at(
                &file,
                block,
                (number * LENGTH) as u64,
            ))?;
        }
        port.drain(PATIENCE);
        assert_eq!(results(&mut worker), (COUNT, vec![]));
        assert_eq!(content(&file)?, [b'x'; COUNT * LENGTH]);
        assert_eq!(worker.process(None), Err(Error::Closed));
    }
    Ok(())
}

#[for_every_backend]
fn o9_draining_waits_for_work_and_reports_its_results(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    let mut worker = port.worker(16);
    let gate = Arc::new(Gate::new());
    for number in 0..100 {
        let gate = Arc::clone(&gate);
        port.offload(move || {
            gate.pass();
            number
        })?;
    }
    port.drain(PATIENCE);
    assert_eq!(worker.process(Some(Duration::ZERO)), Ok(0));
    gate.open_for_all();
    let (_, mut messages) = results(&mut worker);
    messages.sort_unstable();
    assert_eq!(messages, (0..100).collect::<Vec<_>>());
    Ok(())
}

#[for_every_backend]
fn o9_draining_waits_for_a_panic_to_be_taken(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    let mut worker = port.worker(16);
    port.offload(|| std::panic::resume_unwind(Box::new("a fault")))?;
    port.drain(PATIENCE);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    assert!(matches!(worker.take(), Some(Event::Panicked(..))));
    assert_eq!(worker.process(None), Err(Error::Closed));
    Ok(())
}

/// Such as to write, and then to sync.
#[for_every_backend]
fn o9_what_begins_while_a_result_is_handled_is_waited_for(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let (mut worker, mut other) = (port.worker(16), port.worker(16));
        port.offload(|| 1)?;
        port.drain(PATIENCE);
        assert_eq!(message(&mut worker), 1);
        assert_eq!(other.process(Some(Duration::ZERO)), Ok(0));
        let file = empty_file(&port)?;
        worker.begin(FileOperation::write_at(&file, b"x".to_vec(), 0))?;
        assert_eq!(results(&mut worker), (1, vec![]));
        assert_eq!(other.process(None), Err(Error::Closed));
        assert_eq!(content(&file)?, b"x");
    }
    Ok(())
}

#[for_every_backend]
fn o9_a_worker_that_is_dropped_has_handled_its_results(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    let (mut worker, mut other) = (port.worker(16), port.worker(16));
    port.offload(|| 1)?;
    port.drain(PATIENCE);
    assert_eq!(message(&mut worker), 1);
    drop(worker);
    assert_eq!(other.process(None), Err(Error::Closed));
    Ok(())
}

#[for_every_backend]
fn o9_draining_waits_up_to_its_time(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    let mut worker = port.worker(16);
    let gate = Arc::new(Gate::new());
    let theirs = Arc::clone(&gate);
    port.offload(move || {
        theirs.pass();
        1
    })?;
    port.drain(Duration::from_millis(5));
    assert_eq!(worker.process(None), Err(Error::Closed));
    gate.open_for_all();
    Ok(())
}
