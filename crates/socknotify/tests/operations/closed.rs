//! What closing a port returns: operations and messages that no worker has taken.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use socknotify::Backend;
use socknotify::owned::{Buffer, Event, FileCompletion, FileOperation, Held};

use super::support::{Gate, PATIENCE, QUIET_PERIOD, tcp_streams, wait_until};
use super::{TestPort, builder, content, empty_file, every_port, file_of, owning_port, threads};

/// Bytes with something else.
struct With<V> {
    bytes: Vec<u8>,
    /// What happens when the bytes are needed to read into them.
    before: fn(&V),
    value: V,
}

impl<V: Send + 'static> With<V> {
    fn buffer(length: usize, value: V, before: fn(&V)) -> Buffer {
        let bytes = vec![0; length];
        Buffer::from_owner(Box::new(With {
            bytes,
            before,
            value,
        }))
    }
}

impl<V> AsRef<[u8]> for With<V> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<V> AsMut<[u8]> for With<V> {
    fn as_mut(&mut self) -> &mut [u8] {
        (self.before)(&self.value);
        &mut self.bytes
    }
}

/// It was cancelled, or has read or written all of its buffer.
#[track_caller]
fn is_whole(done: &FileCompletion) -> bool {
    match &done.result {
        Ok(count) => {
            assert_eq!((*count, done.is_cancelled), (done.buffer.len(), false));
            true
        }
        Err(error) => {
            assert!(done.is_cancelled, "{error}");
            false
        }
    }
}

/// Dequeues so many events, and gives them back to the port.
fn dequeue_and_give_back(port: &TestPort, count: usize) {
    let mut worker = port.worker(64);
    wait_until("all are dequeued", || {
        let dequeued = worker.process(Some(PATIENCE)).expect("it is open");
        worker.release();
        dequeued == count
    });
}

#[for_every_backend]
fn o7_what_is_complete_and_not_dequeued_is_returned(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = file_of(&port, b"0123456789")?;
        let buffer = vec![0; 4];
        let address = buffer.as_ptr();
        let read = port.begin(FileOperation::read_at(&file, buffer, 3))?;
        let parts = vec![vec![0; 2].into(), vec![0; 20].into()];
        let parts = port.begin(FileOperation::read_vectored_at(&file, parts, 5))?;
        let past = port.begin(FileOperation::read_at(&file, vec![0; 4], 10))?;
        dequeue_and_give_back(&port, 3);

        let mut left = port.close();
        assert!(left.is_empty(), "there was no connection");
        let mut done = left.take_operations();
        assert!(left.take_operations().is_empty());
        assert_eq!(port.operations(), 0);
        done.sort_by_key(|done| [read, parts, past].iter().position(|id| *id == done.id));
        let [read, parts, past] = &mut done[..] else {
            panic!("{done:?}")
        };
        assert_eq!(
            (read.result.as_ref().ok(), &*read.buffer),
            (Some(&4), &b"3456"[..])
        );
        assert_eq!(read.buffer.as_ptr(), address);
        assert_eq!(parts.result.as_ref().ok(), Some(&5));
        assert_eq!(
            (&*parts.buffers[0], &parts.buffers[1][..3]),
            (&b"56"[..], &b"789"[..])
        );
        assert_eq!(past.result.as_ref().ok(), Some(&0));
        assert!(done.iter().all(|done| !done.is_cancelled));
    }
    Ok(())
}

/// The system has done it, and nobody has asked.
#[for_every_backend]
fn o7_the_result_of_what_no_thread_has_waited_for_is_returned(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = empty_file(&port)?;
        let id = port.begin(FileOperation::write_at(&file, b"hello".to_vec(), 0))?;
        wait_until("it is written", || {
            content(&file).is_ok_and(|content| content == b"hello")
        });
        let done = port.close().take_operations().pop().expect("one");
        assert_eq!(
            (done.id, done.result?, &*done.buffer),
            (id, 5, &b"hello"[..])
        );
        drop(done.file);
        assert!(file.into_file().is_ok(), "no operation has it");
    }
    Ok(())
}

/// Far more than the system has at a time.
#[for_every_backend]
fn o7_each_operation_is_returned_once_whatever_its_state(backend: Backend) -> io::Result<()> {
    const COUNT: u64 = 3000;
    const LENGTH: usize = 4096;
    for port in every_port(backend)? {
        let file = file_of(&port, &[7; LENGTH])?;
        let written = empty_file(&port)?;
        let mut begun = HashMap::new();
        for number in 0..COUNT {
            let read = FileOperation::read_at(&file, vec![0; LENGTH], 0);
            begun.insert(port.begin(read)?, None);
            let write =
                FileOperation::write_at(&written, number.to_ne_bytes().to_vec(), number * 8);
            begun.insert(port.begin(write)?, Some(number));
        }
        let returned = port.close().take_operations();
        let content = content(&written)?;
        for done in &returned {
            let number = begun.remove(&done.id).expect("it is returned once");
            match number {
                _ if !is_whole(done) => {}
                None => assert!(done.buffer.iter().all(|&byte| byte == 7)),
                Some(number) => {
                    assert_eq!(*done.buffer, number.to_ne_bytes());
                    let at = number as usize * 8;
                    assert_eq!(content[at..at + 8], number.to_ne_bytes());
                }
            }
        }
        assert!(begun.is_empty(), "{} are not returned", begun.len());
        assert_eq!(port.operations(), 0);
    }
    Ok(())
}

/// A worker's operation begins with its next `process`, or before.
#[for_every_backend]
fn o7_what_has_not_begun_is_returned_as_cancelled(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = empty_file(&port)?;
        let id = worker.begin(FileOperation::write_at(&file, b"hello".to_vec(), 0))?;
        let done = port.close().take_operations().pop().expect("one");
        assert_eq!((done.id, &*done.buffer), (id, &b"hello"[..]));
        let is_written = is_whole(&done);
        assert_eq!(content(&file)?.len(), if is_written { 5 } else { 0 });
        assert!(worker.take().is_none());
    }
    Ok(())
}

/// The only helper thread is within the first one. It may begin others until closing has reached it.
#[for_every_backend]
fn o7_what_a_thread_performs_is_returned_and_what_waits_for_it(backend: Backend) -> io::Result<()> {
    let port = threads(builder(backend)).helper_threads(1).build()?;
    let file = file_of(&port, b"0123456789")?;
    let gates = Arc::new([(); 2].map(|()| Gate::new()));
    let busy = With::buffer(4, Arc::clone(&gates), |gates| {
        gates[0].open(1);
        gates[1].pass();
    });
    let first = port.begin(FileOperation::read_at(&file, busy, 2))?;
    gates[0].pass();
    for _ in 0..100 {
        port.begin(FileOperation::write_at(&file, b"x".to_vec(), 0))?;
    }
    let returned = thread::scope(|scope| {
        let closing = scope.spawn(|| port.close().take_operations());
        wait_until("the port is closed", || port.offload(|| 0).is_err());
        thread::sleep(QUIET_PERIOD);
        assert!(!closing.is_finished(), "it waits for the operation");
        gates[1].open(1);
        closing.join().expect("no panic")
    });
    assert_eq!(returned.len(), 101);
    let (firsts, others): (Vec<_>, Vec<_>) = returned.iter().partition(|done| done.id == first);
    assert!(is_whole(firsts[0]));
    assert_eq!(&*firsts[0].buffer, b"2345");
    let is_written = others.into_iter().filter(|done| is_whole(done)).count() > 0;
    assert_eq!(content(&file)?.starts_with(b"x"), is_written);
    Ok(())
}

#[for_every_backend]
fn o7_a_connection_in_a_buffer_is_returned(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let (ours, mut theirs) = tcp_streams()?;
        let held = port.adopt(ours)?;
        let file = file_of(&port, b"0123456789")?;
        let buffer = With::buffer(10, held, |_| ());
        port.begin(FileOperation::read_at(&file, buffer, 0))?;
        let done = port.close().take_operations().pop().expect("one");
        let owner = done.buffer.into_owner::<With<Held<TcpStream>>>();
        let mut ours = owner.expect("it is as it was begun").value;
        ours.write_all(b"still open")?;
        drop(ours.into_inner());
        let mut received = String::new();
        theirs.read_to_string(&mut received)?;
        assert_eq!(received, "still open");
    }
    Ok(())
}

#[for_every_backend]
fn o7_messages_and_results_of_work_are_returned(backend: Backend) -> io::Result<()> {
    let port = owning_port(backend)?;
    for number in 1..=3 {
        port.offload(move || number)?;
    }
    port.send(4)?;
    dequeue_and_give_back(&port, 4);
    let mut worker = port.worker(1);
    assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
    let Some(Event::Message(taken)) = worker.take() else {
        panic!("it was dequeued")
    };
    let mut messages = port.close().take_messages();
    messages.push(taken);
    messages.sort_unstable();
    assert_eq!(messages, [1, 2, 3, 4]);
    Ok(())
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new(()));
    }
}

#[for_every_backend]
fn o7_what_panics_when_it_is_dropped_panics_in_its_drop_only(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = file_of(&port, b"0123456789")?;
        for _ in 0..2 {
            let buffer = With::buffer(10, PanicsWhenDropped, |_| ());
            port.begin(FileOperation::read_at(&file, buffer, 0))?;
        }
        // What it returns is dropped here.
        port.close();
        assert!(file.into_file().is_ok(), "no operation has it");
    }
    Ok(())
}
