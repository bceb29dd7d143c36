//! Operations on files.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socknotify::owned::{Buffer, Event, FileDriver, FileOperation, PortFile};
use socknotify::{Backend, Error};

use super::support::{Gate, PATIENCE, QUIET_PERIOD, wait_until};
use super::{
    TestPort, builder, completed, content, empty_file, every_port, file_of, next, nothing, perform,
};

#[for_every_backend]
fn o3_an_operation_completes_once_with_its_file_and_buffer(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        let mut buffer = vec![b'.'; 4];
        buffer.reserve_exact(100);
        let address = buffer.as_ptr();
        let id = port.begin(FileOperation::read_at(&file, buffer, 3))?;
        assert_eq!(port.operations(), 1);
        let done = completed(&mut worker);
        assert_eq!((done.id, done.result?, done.is_cancelled), (id, 4, false));
        let buffer = done.buffer.into_vec();
        assert_eq!(
            (buffer.as_slice(), buffer.as_ptr()),
            (&b"3456"[..], address)
        );
        assert_eq!(done.file.metadata()?.len(), 10);
        nothing(&mut worker);
        assert_eq!(port.operations(), 0);
        // Where the system does it, no thread was needed. Elsewhere it may have ended by now: it had nothing to do.
        let needs_threads = port.file_driver() == FileDriver::Threads;
        assert!(needs_threads || port.helper_threads() == 0);
    }
    Ok(())
}

#[for_every_backend]
fn o3_what_was_written_is_read(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = empty_file(&port)?;
        let write = FileOperation::write_at(&file, b"hello".to_vec(), 3);
        assert_eq!(perform(&port, &mut worker, write)?.result?, 5);
        for sync in [
            FileOperation::sync_all(&file),
            FileOperation::sync_data(&file),
        ] {
            let done = perform(&port, &mut worker, sync)?;
            assert_eq!((done.result?, done.buffer.len()), (0, 0));
        }
        let read = FileOperation::read_at(&file, vec![b'.'; 8], 0);
        let done = perform(&port, &mut worker, read)?;
        assert_eq!((done.result?, &*done.buffer), (8, &b"\0\0\0hello"[..]));
        assert_eq!(content(&file)?, b"\0\0\0hello");
    }
    Ok(())
}

/// What is at an offset of a file made by `numbered`.
fn number_at(offset: u64) -> [u8; 8] {
    (offset / 8).to_le_bytes()
}

fn numbered(port: &TestPort, numbers: u64) -> io::Result<PortFile> {
    let content: Vec<u8> = (0..numbers).flat_map(u64::to_le_bytes).collect();
    file_of(port, &content)
}

#[for_every_backend]
fn o3_any_number_is_under_way(backend: Backend) -> io::Result<()> {
    const COUNT: u64 = 10_000;
    for port in every_port(backend)? {
        let mut worker = port.worker(64);
        let file = numbered(&port, COUNT)?;
        let mut expected = BTreeMap::new();
        for offset in (0..COUNT).map(|number| number * 8) {
            let read = FileOperation::read_at(&file, vec![0; 8], offset);
            assert!(
                expected
                    .insert(port.begin(read)?, number_at(offset))
                    .is_none()
            );
        }
        while !expected.is_empty() {
            let done = completed(&mut worker);
            assert_eq!(done.result?, 8);
            assert_eq!(
                expected.remove(&done.id).as_ref().map(|it| &it[..]),
                Some(&*done.buffer)
            );
        }
        nothing(&mut worker);
    }
    Ok(())
}

#[for_every_backend]
fn o3_a_worker_begins_operations_with_its_next_call(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(64);
        let file = numbered(&port, 1000)?;
        for offset in (0..1000).map(|number| number * 8) {
            worker.begin(FileOperation::read_at(&file, vec![0; 8], offset))?;
        }
        for _ in 0..1000 {
            assert_eq!(completed(&mut worker).result?, 8);
        }
        nothing(&mut worker);
    }
    Ok(())
}

#[for_every_backend]
fn o3_a_worker_that_goes_begins_what_it_was_given(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = file_of(&port, b"0123456789")?;
        let mut worker = port.worker(1);
        worker.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        drop(worker);
        assert_eq!(completed(&mut port.worker(1)).result?, 4);
    }
    Ok(())
}

#[for_every_backend]
fn o3_a_completion_that_was_not_taken_goes_to_another_thread(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = file_of(&port, b"0123456789")?;
        let mut worker = port.worker(1);
        let id = worker.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        assert_eq!(worker.process(Some(PATIENCE)), Ok(1));
        drop(worker);
        let mut worker = port.worker(1);
        let done = completed(&mut worker);
        assert_eq!((done.id, &*done.buffer), (id, &b"0123"[..]));
        nothing(&mut worker);
    }
    Ok(())
}

/// An owner of bytes that says when it is gone.
struct Witness {
    bytes: [u8; 64],
    alive: Arc<AtomicUsize>,
}

impl Witness {
    fn new(alive: &Arc<AtomicUsize>) -> Box<Self> {
        alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Witness {
            bytes: [b'w'; 64],
            alive: Arc::clone(alive),
        })
    }
}

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Witness {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

fn buffer(alive: &Arc<AtomicUsize>) -> socknotify::owned::Buffer {
    socknotify::owned::Buffer::from_owner(Witness::new(alive))
}

#[for_every_backend]
fn o3_a_buffer_of_another_owner_comes_back(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let alive = Arc::default();
        let file = file_of(&port, b"0123456789")?;
        let read = FileOperation::read_at(&file, buffer(&alive), 0);
        let done = perform(&port, &mut worker, read)?;
        assert_eq!(done.result?, 10);
        let done = done
            .buffer
            .into_owner::<[u8; 4]>()
            .expect_err("it is another type");
        let witness = done.into_owner::<Witness>().expect("this is its type");
        assert_eq!(&witness.bytes[..12], b"0123456789ww");
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        drop(witness);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
    Ok(())
}

/// Whatever the system does with operations of a thread that is gone.
#[for_every_backend]
fn o3_a_thread_that_ends_leaves_its_operations_under_way(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let file = empty_file(&port)?;
        thread::scope(|scope| {
            let begin = scope.spawn(|| -> io::Result<()> {
                for number in 0..200 {
                    let block = vec![b'x'; 4096];
                    port.begin(FileOperation::write_at(&file, block, number * 4096))?;
                    port.begin(FileOperation::sync_data(&file))?;
                }
                Ok(())
            });
            begin.join().expect("no panic")
        })?;
        let mut worker = port.worker(16);
        for _ in 0..400 {
            let done = completed(&mut worker);
            assert_eq!(done.result?, done.buffer.len());
        }
        assert_eq!(content(&file)?, vec![b'x'; 200 * 4096]);
    }
    Ok(())
}

#[for_every_backend]
fn o3_files_and_messages_come_out_of_the_same_calls(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        port.send(1).expect("the port is open");
        port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        port.offload(|| 2)?;
        let (mut messages, mut reads) = (0, 0);
        for _ in 0..3 {
            match next(&mut worker) {
                Event::Message(number) => messages += number,
                Event::Completed(done) => reads += done.result?,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((messages, reads), (3, 4));
    }
    Ok(())
}

/// A thread that sends itself a message each time never finds the queue empty.
#[for_every_backend]
fn o3_completions_are_not_kept_back_by_messages(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(1);
        let file = file_of(&port, b"0123456789")?;
        port.send(0).expect("the port is open");
        port.send(0).expect("the port is open");
        port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            match next(&mut worker) {
                Event::Message(number) => port.send(number + 1).expect("the port is open"),
                Event::Completed(done) => break assert_eq!(done.result?, 4),
                other => panic!("{other:?}"),
            }
            assert!(std::time::Instant::now() < end, "it is kept back");
        }
    }
    Ok(())
}

/// Another thread may take the completion before `begin` has returned the id.
#[for_every_backend]
fn o3_a_completion_has_the_tag_of_its_operation(backend: Backend) -> io::Result<()> {
    const COUNT: u64 = 2000;
    for port in every_port(backend)? {
        let file = file_of(&port, b"0123456789")?;
        let jobs = std::sync::Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            let mut worker = port.worker(16);
            let jobs = &jobs;
            let takes = scope.spawn(move || {
                for _ in 0..COUNT {
                    let done = completed(&mut worker);
                    let job = jobs.lock().expect("no panic").remove(&done.tag);
                    let offset = job.expect("it is entered before it begins");
                    assert_eq!(done.buffer[0], b"0123456789"[offset as usize]);
                }
            });
            for number in 1..=COUNT {
                let offset = number % 10;
                jobs.lock().expect("no panic").insert(number, offset);
                port.begin(FileOperation::read_at(&file, vec![0], offset).tag(number))?;
            }
            takes.join().expect("no panic");
            io::Result::Ok(())
        })?;
        let read = FileOperation::read_at(&file, vec![0], 0);
        assert_eq!(perform(&port, &mut port.worker(1), read)?.tag, 0);
    }
    Ok(())
}

/// For what has packets of its own among those of operations.
#[for_every_backend]
fn o3_a_plain_port_has_operations_with_owned_buffers(backend: Backend) -> io::Result<()> {
    const KEY: usize = 7;
    let port = socknotify::CompletionPort::builder()
        .backend(backend)
        .build()?;
    let mut file = tempfile::tempfile()?;
    io::Write::write_all(&mut file, b"0123456789")?;
    let file = port.adopt_file(file, KEY).map_err(|it| it.1)?;
    let read = FileOperation::read_at(&file, vec![0; 4], 3).tag(5);
    let Ok(id) = port.begin_operation(read, KEY) else {
        panic!("it is open")
    };
    let packet = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!(packet.completion_key, KEY);
    let done = port.take_completion(&packet).expect("it is complete");
    assert_eq!((done.id, done.tag, done.result?), (id, 5, 4));
    assert_eq!(Vec::from(done.buffer), b"3456");
    assert!(port.take_completion(&packet).is_none(), "it was taken");
    assert!(!port.cancel_begun(id));
    Ok(())
}

#[for_every_backend]
fn o4_a_read_at_the_end_is_short_and_then_empty(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        for (offset, expected) in [(0, "01234567"), (7, "789"), (10, ""), (1 << 40, "")] {
            let read = FileOperation::read_at(&file, vec![b'.'; 8], offset);
            let done = perform(&port, &mut worker, read)?;
            let count = done.result?;
            assert_eq!(&done.buffer[..count], expected.as_bytes());
            assert!(done.buffer[count..].iter().all(|&byte| byte == b'.'));
        }
        let read = FileOperation::read_at(&file, Vec::new(), 0);
        assert_eq!(perform(&port, &mut worker, read)?.result?, 0);
    }
    Ok(())
}

#[for_every_backend]
fn o4_a_part_of_the_buffer_is_used(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        let read = FileOperation::read_at(&file, vec![b'.'; 8], 4).range(2..5);
        let done = perform(&port, &mut worker, read)?;
        assert_eq!((done.result?, &*done.buffer), (3, &b"..456..."[..]));
        let write = FileOperation::write_at(&file, done.buffer, 0).range(1..4);
        assert_eq!(perform(&port, &mut worker, write)?.result?, 3);
        assert_eq!(content(&file)?, b".453456789");
        #[allow(clippy::reversed_empty_ranges, reason = "that is the question")]
        for range in [5..9, 9..9, 3..2] {
            let write = FileOperation::write_at(&file, vec![0; 8], 0).range(range);
            let done = perform(&port, &mut worker, write)?;
            let error = done.result.expect_err("there is no such part");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(done.buffer.len(), 8);
        }
        assert_eq!(content(&file)?, b".453456789");
    }
    Ok(())
}

#[for_every_backend]
fn o4_what_the_system_refuses_is_the_result(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let path = tempfile::NamedTempFile::new()?;
        let read_only = port.adopt_file(File::open(&path)?)?;
        let write = FileOperation::write_at(&read_only, b"x".to_vec(), 0);
        let done = perform(&port, &mut worker, write)?;
        assert!(done.result.is_err() && !done.is_cancelled);
        assert_eq!(&*done.buffer, b"x");
        let write_only = port.adopt_file(OpenOptions::new().write(true).open(&path)?)?;
        let read = FileOperation::read_at(&write_only, vec![0; 4], 0);
        assert!(perform(&port, &mut worker, read)?.result.is_err());
        // No file is so long, and this is not the position of the file either.
        let file = file_of(&port, b"0123456789")?;
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63] {
            let read = FileOperation::read_at(&file, vec![0; 4], offset);
            let done = perform(&port, &mut worker, read)?;
            assert!(done.result.is_err(), "{offset}: {:?}", done.result);
        }
    }
    Ok(())
}

/// A buffer that can be used when its gate is open.
struct Gated {
    bytes: [u8; 8],
    is_entered: Arc<Gate>,
    gate: Arc<Gate>,
}

impl AsRef<[u8]> for Gated {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Gated {
    fn as_mut(&mut self) -> &mut [u8] {
        self.is_entered.open(1);
        self.gate.pass();
        &mut self.bytes
    }
}

/// A port whose only helper thread for files is busy with a read until the gate opens.
fn busy(backend: Backend) -> io::Result<(TestPort, Arc<Gate>)> {
    let port = super::threads(builder(backend)).helper_threads(1).build()?;
    let [is_entered, gate] = [(); 2].map(|()| Arc::new(Gate::new()));
    let gated = Gated {
        bytes: [0; 8],
        is_entered: Arc::clone(&is_entered),
        gate: Arc::clone(&gate),
    };
    let file = file_of(&port, b"01234567")?;
    let buffer = Buffer::from_owner(Box::new(gated));
    port.begin(FileOperation::read_at(&file, buffer, 0))?;
    is_entered.pass();
    Ok((port, gate))
}

#[for_every_backend]
fn o5_what_is_cancelled_before_it_begins_is_not_done(backend: Backend) -> io::Result<()> {
    let (port, gate) = busy(backend)?;
    let mut worker = port.worker(16);
    let file = empty_file(&port)?;
    let ids: Vec<_> = (0..100)
        .map(|offset| port.begin(FileOperation::write_at(&file, b"x".to_vec(), offset)))
        .collect::<Result<_, _>>()?;
    nothing(&mut worker);
    for &id in &ids {
        assert!(port.cancel_operation(id));
        assert!(!port.cancel_operation(id), "it is done");
        let done = completed(&mut worker);
        assert!(done.result.is_err() && done.is_cancelled);
        assert_eq!((done.id, &*done.buffer), (id, &b"x"[..]));
    }
    gate.open_for_all();
    assert_eq!(completed(&mut worker).result?, 8);
    nothing(&mut worker);
    assert_eq!(content(&file)?, b"");
    Ok(())
}

#[for_every_backend]
fn o5_a_deadline_cancels(backend: Backend) -> io::Result<()> {
    let (port, gate) = busy(backend)?;
    let mut worker = port.worker(16);
    let file = empty_file(&port)?;
    let write = FileOperation::write_at(&file, b"x".to_vec(), 0).within(Duration::from_millis(5));
    let begin = std::time::Instant::now();
    let done = perform(&port, &mut worker, write)?;
    assert!(begin.elapsed() >= Duration::from_millis(5));
    let error = done.result.expect_err("nobody did it");
    assert_eq!(
        (error.kind(), done.is_cancelled),
        (io::ErrorKind::TimedOut, true)
    );
    gate.open_for_all();
    assert_eq!(completed(&mut worker).result?, 8);
    nothing(&mut worker);
    assert_eq!(content(&file)?, b"");
    Ok(())
}

#[for_every_backend]
fn o5_a_deadline_that_is_met_changes_nothing(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        for _ in 0..1000 {
            let read = FileOperation::read_at(&file, vec![0; 4], 0);
            let done = perform(&port, &mut worker, read.within(PATIENCE))?;
            assert_eq!((done.result?, done.is_cancelled), (4, false));
        }
        nothing(&mut worker);
    }
    Ok(())
}

#[for_every_backend]
fn o5_whether_cancelled_in_time_or_not_it_completes_once(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 3000;
    for port in every_port(backend)? {
        let file = numbered(&port, 1000)?;
        let (ids, cancelled) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let port = &port;
            scope.spawn(move || {
                for id in cancelled {
                    port.cancel_operation(id);
                }
            });
            let mut worker = port.worker(16);
            let mut open = BTreeMap::new();
            for number in 0..COUNT {
                let offset = number as u64 % 1000 * 8;
                let read = FileOperation::read_at(&file, vec![0; 8], offset);
                let read = match number % 3 {
                    0 => read.within(Duration::ZERO),
                    _ => read,
                };
                let id = port.begin(read)?;
                open.insert(id, offset);
                if number % 3 > 0 {
                    ids.send(id).expect("it waits for more");
                }
                while open.len() >= 32 || (number == COUNT - 1 && !open.is_empty()) {
                    let done = completed(&mut worker);
                    let offset = open.remove(&done.id).expect("it completes once");
                    match done.result {
                        Ok(count) => {
                            assert_eq!((count, &*done.buffer), (8, &number_at(offset)[..]));
                            assert!(!done.is_cancelled);
                        }
                        Err(error) => assert!(done.is_cancelled, "{error}"),
                    }
                }
            }
            drop(ids);
            nothing(&mut worker);
            assert_eq!(port.operations(), 0);
            io::Result::Ok(())
        })?;
    }
    Ok(())
}

#[for_every_backend]
fn o5_what_is_done_cannot_be_cancelled(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        let read = FileOperation::read_at(&file, vec![0; 4], 0);
        let done = perform(&port, &mut worker, read)?;
        assert!(!port.cancel_operation(done.id));
        // Nor is the next one, which may be in its place.
        let next = port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        assert!(!port.cancel_operation(done.id));
        assert_ne!(next, done.id);
        assert_eq!(completed(&mut worker).result?, 4);
    }
    Ok(())
}

fn directory() -> io::Result<File> {
    let mut options = File::options();
    #[cfg(windows)]
    {
        use std::os::windows::fs::OpenOptionsExt;
        // FILE_FLAG_BACKUP_SEMANTICS: a directory can be opened.
        options.custom_flags(0x0200_0000);
    }
    options.read(true).open(std::env::temp_dir())
}

#[for_every_backend]
fn o6_what_is_no_file_is_refused(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        for other in super::not_files()? {
            let refused = port.adopt_file(other).expect_err("it is no file");
            // It is open, and the caller's again. Windows has no metadata of a device.
            assert!(refused.into_inner().try_clone().is_ok());
        }
        let refused = port.adopt_file(directory()?);
        let refused = refused.expect_err("it is a directory");
        #[cfg(unix)]
        assert_eq!(io::Error::from(refused).kind(), io::ErrorKind::IsADirectory);
        #[cfg(windows)]
        assert!(refused.into_inner().metadata()?.is_dir());
    }
    Ok(())
}

/// Its reads may never end. What is new has no length either, and is a file like others.
#[cfg(target_os = "linux")]
#[for_every_backend]
fn o6_what_the_kernel_makes_up_is_refused(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        for path in [
            "/proc/self/status",
            "/proc/kmsg",
            "/sys/kernel/tracing/trace_pipe",
            // These have a length.
            "/proc/config.gz",
            "/sys/kernel/uevent_seqnum",
            "/proc/sys/fs/binfmt_misc/status",
        ] {
            let Ok(file) = File::open(path) else {
                eprintln!("skipped: {path} cannot be read");
                continue;
            };
            let refused = port.adopt_file(file).expect_err("it is made up");
            let error = io::Error::from(refused);
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{path}");
        }
        assert!(port.adopt_file(tempfile::tempfile()?).is_ok());
    }
    Ok(())
}

#[for_every_backend]
fn o7_closing_waits_for_what_is_under_way(backend: Backend) -> io::Result<()> {
    const COUNT: u64 = 5000;
    for port in every_port(backend)? {
        let alive = Arc::default();
        let file = empty_file(&port)?;
        for number in 0..COUNT {
            port.begin(FileOperation::write_at(&file, buffer(&alive), number * 64))?;
            if number % 100 == 0 {
                port.begin(FileOperation::sync_all(&file))?;
            }
            port.begin(FileOperation::read_at(&file, buffer(&alive), number * 64))?;
        }
        port.close();
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        assert_eq!(port.operations(), 0);
        // What was written is whole, and nobody else has the file.
        let file = file.into_file().expect("no operation has it");
        let content = content(&file)?;
        assert!(content.iter().all(|&byte| byte == b'w' || byte == 0));
        assert_eq!(content.len() % 64, 0);
    }
    Ok(())
}

/// As many as `process` has counted, with their buffers; and nothing else is kept.
#[for_every_backend]
fn o7_what_was_dequeued_is_taken_after_closing(backend: Backend) -> io::Result<()> {
    const COUNT: usize = 8;
    for port in every_port(backend)? {
        let alive = Arc::default();
        let file = file_of(&port, &[b'w'; 64])?;
        let begin = || port.begin(FileOperation::read_at(&file, buffer(&alive), 0));
        let mut worker = port.worker(64);
        for _ in 0..COUNT {
            begin()?;
        }
        let mut count = 0;
        wait_until("all are dequeued", || {
            count = worker.process(Some(PATIENCE)).expect("it is open");
            // What is not taken is dequeued again, with those that came meanwhile.
            if count < COUNT {
                worker.release();
            }
            count == COUNT
        });
        // Nobody dequeues this one.
        begin()?;
        port.close();
        assert_eq!(port.operations(), COUNT);
        for left in (0..COUNT).rev() {
            let Some(Event::Completed(done)) = worker.take() else {
                panic!("it was dequeued")
            };
            assert_eq!(done.result?, 64);
            assert_eq!(
                (port.operations(), alive.load(Ordering::SeqCst)),
                (left, left + 1)
            );
        }
        assert!(worker.take().is_none());
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
    Ok(())
}

#[for_every_backend]
fn o7_closing_while_threads_begin_operations(backend: Backend) -> io::Result<()> {
    for round in 0..10 {
        for port in every_port(backend)? {
            let alive = Arc::default();
            let file = numbered(&port, 1000)?;
            let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                for _ in 0..3 {
                    let mut worker = port.worker(16);
                    let (file, alive, begun, ended) = (&file, &alive, &begun, &ended);
                    scope.spawn(move || {
                        let begin = |worker: &mut super::TestWorker| {
                            let read = FileOperation::read_at(file, buffer(alive), 0);
                            if worker.begin(read).is_ok() {
                                begun.fetch_add(1, Ordering::SeqCst);
                            }
                        };
                        for _ in 0..16 {
                            begin(&mut worker);
                        }
                        while worker.process(None).is_ok() {
                            while worker.take().is_some() {
                                ended.fetch_add(1, Ordering::SeqCst);
                                begin(&mut worker);
                            }
                        }
                        // What it has dequeued is its own also when the port is closed.
                        while worker.take().is_some() {
                            ended.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
                thread::sleep(Duration::from_micros(200 * round));
                let returned = port.close().take_operations().len();
                ended.fetch_add(returned, Ordering::SeqCst);
            });
            assert_eq!(ended.into_inner(), begun.into_inner());
            assert_eq!(alive.load(Ordering::SeqCst), 0);
            assert_eq!(port.operations(), 0);
        }
    }
    Ok(())
}

#[for_every_backend]
fn o7_a_closed_port_begins_nothing(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(1);
        let file = file_of(&port, b"0123456789")?;
        port.close();
        let refused = port.begin(FileOperation::write_at(&file, b"x".to_vec(), 0));
        let refused = refused.expect_err("it is closed");
        assert_eq!(refused.reason(), Error::Closed);
        assert_eq!(&*refused.into_inner().into_buffer(), b"x");
        assert!(worker.begin(FileOperation::sync_all(&file)).is_err());
        assert_eq!(worker.process(None), Err(Error::Closed));
        assert_eq!(content(&file)?, b"0123456789");
    }
    Ok(())
}

#[for_every_backend]
fn o7_a_file_is_free_when_its_operations_are_done(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(1);
        let file = file_of(&port, b"0123456789")?;
        port.begin(FileOperation::read_at(&file, vec![0; 4], 0))?;
        let file = file.into_file().expect_err("it is under way");
        let done = completed(&mut worker);
        drop(done);
        assert_eq!(file.into_file().expect("it is done").metadata()?.len(), 10);
    }
    Ok(())
}

/// A buffer that observes when it goes whether its file still grows.
struct Observer {
    bytes: Vec<u8>,
    file: File,
    grows: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Observer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Observer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let length = || self.file.metadata().expect("an open file").len();
        let before = length();
        thread::sleep(QUIET_PERIOD);
        self.grows.store(length() != before, Ordering::SeqCst);
    }
}

#[for_every_backend]
fn o7_a_panic_while_a_port_closes_frees_no_buffer_in_use(backend: Backend) -> io::Result<()> {
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    let port = builder(backend).helper_threads(1).build()?;
    if port.file_driver() != FileDriver::IoUring {
        return Ok(());
    }
    let [begun, gate] = [(); 2].map(|()| Arc::new(Gate::new()));
    let (here, there) = (Arc::clone(&begun), Arc::clone(&gate));
    port.offload(move || {
        here.open(1);
        there.pass();
        0
    })?;
    begun.pass();
    // The helper thread is busy. So this is dropped with the port.
    let panics = Panics;
    let _ = port.offload(move || {
        let _panics = &panics;
        1
    });
    let file = tempfile::tempfile()?;
    let grows = Arc::new(AtomicBool::new(false));
    let observer = Observer {
        bytes: vec![1; 128 << 20],
        file: file.try_clone()?,
        grows: Arc::clone(&grows),
    };
    let written = port.adopt_file(file.try_clone()?)?;
    let buffer = Buffer::from_owner(Box::new(observer));
    port.begin(FileOperation::write_at(&written, buffer, 0))?;
    wait_until("it is under way", || {
        file.metadata().is_ok_and(|file| file.len() > 0)
    });
    drop(port);
    gate.open(1);
    assert!(!grows.load(Ordering::SeqCst));
    Ok(())
}

/// As those that `catch_unwind` gets.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new(()));
    }
}

struct Panicking([u8; 8]);

impl AsRef<[u8]> for Panicking {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Panicking {
    fn as_mut(&mut self) -> &mut [u8] {
        std::panic::resume_unwind(Box::new(PanicsWhenDropped))
    }
}

#[for_every_backend]
fn o3_an_operation_whose_buffer_panics_completes(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        let buffer = Buffer::from_owner(Box::new(Panicking([0; 8])));
        let done = perform(&port, &mut worker, FileOperation::read_at(&file, buffer, 0))?;
        assert!(done.result.is_err() && !done.is_cancelled);
        assert_eq!((done.buffer.len(), port.operations()), (8, 0));
    }
    Ok(())
}

#[for_every_backend]
fn o3_work_that_blocks_keeps_no_operation_waiting(backend: Backend) -> io::Result<()> {
    let port = super::threads(builder(backend)).helper_threads(1).build()?;
    let mut worker = port.worker(16);
    let gate = Arc::new(Gate::new());
    let theirs = Arc::clone(&gate);
    port.offload(move || {
        theirs.pass();
        1
    })?;
    let file = file_of(&port, b"0123456789")?;
    let read = FileOperation::read_at(&file, vec![0; 4], 0);
    assert_eq!(perform(&port, &mut worker, read)?.result?, 4);
    // One for work, and one for files, which may have ended by now.
    assert!((1..=2).contains(&port.helper_threads()));
    gate.open(1);
    assert!(matches!(next(&mut worker), Event::Message(1)));
    Ok(())
}

/// A port has one ring, whichever of its layers began to use it.
#[cfg(unix)]
#[for_every_backend]
fn o3_a_port_made_of_one_that_has_read_uses_the_same_driver(backend: Backend) -> io::Result<()> {
    use socknotify::{CompletionPort, Overlapped};

    let port = CompletionPort::builder().backend(backend).build()?;
    let file = tempfile::tempfile()?;
    std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0)?;
    let mut memory = [[0; 4]; 2];
    let mut overlapped = [0, 4].map(Overlapped::new);
    for (memory, overlapped) in memory.iter_mut().zip(&mut overlapped) {
        // SAFETY: all of it stays until the port is closed.
        unsafe { port.read_at(&file, memory, 7, overlapped)? };
    }
    // One packet is dropped with the port's own layer.
    port.dequeue_one(Some(PATIENCE))?;
    let port = TestPort::from(port);
    let expected = builder(backend).build()?.file_driver();
    assert_eq!(port.file_driver(), expected);
    let mut worker = port.worker(16);
    let file = port.adopt_file(file)?;
    for _ in 0..100 {
        let read = FileOperation::read_at(&file, vec![0; 10], 0);
        let done = perform(&port, &mut worker, read)?;
        assert_eq!((done.result?, &*done.buffer), (10, &b"0123456789"[..]));
    }
    port.close();
    assert!(overlapped.iter().all(|it| !it.is_pending()));
    Ok(())
}

/// Bytes in this many buffers, of different lengths.
fn buffers(bytes: &[u8], count: usize) -> Vec<Buffer> {
    let mut rest = bytes;
    let mut buffers = Vec::new();
    for index in 0..count {
        let length = if index + 1 == count {
            rest.len()
        } else {
            index % 3
        };
        let (part, behind) = rest.split_at(length);
        buffers.push(part.to_vec().into());
        rest = behind;
    }
    buffers
}

fn joined(buffers: &[Buffer]) -> Vec<u8> {
    buffers.iter().flat_map(|buffer| buffer.to_vec()).collect()
}

#[for_every_backend]
fn o4_several_buffers_are_written_and_read_in_their_order(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        // More than the system takes in one call, too.
        for count in [0, 1, 2, 7, 1024, 3000] {
            let bytes: Vec<u8> = (0..count * 3).map(|_| fastrand::u8(..)).collect();
            let file = empty_file(&port)?;
            let write = FileOperation::write_vectored_at(&file, buffers(&bytes, count), 5);
            let done = perform(&port, &mut worker, write)?;
            assert_eq!(done.result?, bytes.len());
            assert_eq!(joined(&done.buffers), bytes);
            let empty = if count == 0 { vec![] } else { vec![0; 5] };
            assert_eq!(content(&file)?, [empty, bytes.clone()].concat());

            let read = buffers(&vec![b'.'; bytes.len() + 4], count.max(1));
            let read = FileOperation::read_vectored_at(&file, read, 5);
            let done = perform(&port, &mut worker, read)?;
            assert_eq!(done.result?, bytes.len());
            assert_eq!(joined(&done.buffers), [&bytes[..], b"...."].concat());
        }
    }
    Ok(())
}

#[for_every_backend]
fn o4_what_one_of_several_buffers_does_is_the_result(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, b"0123456789")?;
        let panicking = Buffer::from_owner(Box::new(Panicking([0; 8])));
        let both = vec![vec![0; 4].into(), panicking];
        let read = FileOperation::read_vectored_at(&file, both, 0);
        let done = perform(&port, &mut worker, read)?;
        assert!(done.result.is_err());
        assert_eq!(done.buffers.len(), 2);
        let read = FileOperation::read_vectored_at(&file, vec![vec![0; 4].into()], u64::MAX);
        assert!(perform(&port, &mut worker, read)?.result.is_err());
    }
    Ok(())
}

/// An owner whose `as_mut` has fewer bytes than its `as_ref`, and whose `as_ref` has others each time.
#[derive(Default)]
struct Inconsistent {
    bytes: [u8; 16],
    calls: AtomicUsize,
}

impl AsRef<[u8]> for Inconsistent {
    fn as_ref(&self) -> &[u8] {
        match self.calls.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => &self.bytes[8..],
            _ => &self.bytes[..4],
        }
    }
}

impl AsMut<[u8]> for Inconsistent {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..4]
    }
}

#[for_every_backend]
fn o3_a_buffer_is_asked_once_for_its_bytes(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let mut worker = port.worker(16);
        let file = file_of(&port, &[b'x'; 64])?;
        let buffer = || Buffer::from_owner(Box::new(Inconsistent::default()));
        let read = FileOperation::read_vectored_at(&file, vec![buffer(), buffer()], 0);
        let done = perform(&port, &mut worker, read)?;
        assert_eq!(done.result?, 8, "four bytes for each");
        for buffer in done.buffers {
            let owner = buffer.into_owner::<Inconsistent>().expect("it is one");
            assert_eq!(owner.bytes, *b"xxxx\0\0\0\0\0\0\0\0\0\0\0\0");
        }

        let file = empty_file(&port)?;
        let owner = Inconsistent {
            bytes: *b"aaaa____bbbbbbbb",
            calls: AtomicUsize::new(0),
        };
        let buffers = vec![Buffer::from_owner(Box::new(owner))];
        let write = FileOperation::write_vectored_at(&file, buffers, 0);
        let written = perform(&port, &mut worker, write)?.result?;
        let expected = [&b"aaaa"[..], b"bbbbbbbb"];
        let content = content(&file)?;
        assert!(expected.contains(&&*content), "{content:?}");
        assert_eq!(written, content.len());
    }
    Ok(())
}
