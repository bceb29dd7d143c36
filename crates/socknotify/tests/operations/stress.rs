//! Many operations, by many threads, some cancelled and some with deadlines, while children are forked: none is lost, and
//! none comes twice.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{Buffer, Event, FileOperation};

use super::{TestWorker, every_port, file_of};

/// `SOCKNOTIFY_STRESS_OPERATIONS` asks for another number.
fn count() -> usize {
    let asked = std::env::var("SOCKNOTIFY_STRESS_OPERATIONS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    asked.unwrap_or(super::support::rounds(100_000))
}

const BLOCKS: u64 = 256;

/// The buffer of one operation, which knows whose it is and what it reads.
struct Numbered {
    bytes: [u8; 512],
    number: usize,
    block: u64,
}

impl AsRef<[u8]> for Numbered {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Numbered {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// What each operation has come to.
struct Tally {
    begun: AtomicUsize,
    done: AtomicUsize,
    cancelled: AtomicUsize,
    /// A bit for each that has completed.
    completed: Vec<AtomicU64>,
}

impl Tally {
    fn new(count: usize) -> Self {
        Tally {
            begun: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            completed: (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns how many have completed.
    fn complete(&self, number: usize) -> usize {
        let bit = 1 << (number % 64);
        let before = self.completed[number / 64].fetch_or(bit, Ordering::Relaxed);
        assert_eq!(before & bit, 0, "operation {number} has completed before");
        self.done.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Forks one child after the other until all operations are done. Returns how many there were.
///
/// With `SOCKNOTIFY_STRESS_CHILDREN=0` there are none: valgrind counts what a child does not free as lost.
#[cfg(unix)]
fn fork(
    port: &super::TestPort,
    file: &socknotify::owned::PortFile,
    is_over: impl Fn() -> bool,
) -> u32 {
    use super::support::Child;

    let mut children = 0;
    if std::env::var("SOCKNOTIFY_STRESS_CHILDREN").is_ok_and(|count| count == "0") {
        return children;
    }
    while !is_over() {
        let mut mine = Some(FileOperation::read_at(file, vec![0; 8], 0));
        let child = Child::fork(|| {
            let mine = mine.take().expect("it is the child that begins it");
            if port.begin(mine).is_ok() || port.offload(|| 1).is_ok() {
                return 1;
            }
            port.close();
            0
        });
        let child = child.expect("the system can fork");
        assert_eq!(child.status(), Some(0));
        children += 1;
        // The threads of the parent have to come to something, too.
        thread::sleep(Duration::from_millis(5));
    }
    children
}

#[for_every_backend]
fn o3_nothing_is_lost_among_many_operations_by_eight_threads(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 8;
    const UNDER_WAY: usize = 32;
    let count = count();
    for port in every_port(backend)? {
        let content: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; 512]).collect();
        let file = file_of(&port, &content)?;
        let tally = Tally::new(count);
        let begin = |worker: &mut TestWorker, mut buffer: Box<Numbered>| {
            let number = tally.begun.fetch_add(1, Ordering::SeqCst);
            if number >= count {
                return;
            }
            let block = fastrand::u64(..BLOCKS);
            (buffer.number, buffer.block) = (number, block);
            // Nothing that was read before.
            buffer.bytes = [!(block as u8); 512];
            let buffer = Buffer::from_owner(buffer);
            // Of one buffer, a short read may be done within `begin`.
            let read = match fastrand::bool() {
                true => FileOperation::read_at(&file, buffer, block * 512),
                false => FileOperation::read_vectored_at(&file, vec![buffer], block * 512),
            };
            let read = match fastrand::u8(..32) {
                0 => read.within(Duration::ZERO),
                1 => read.within(Duration::from_micros(300)),
                2 => read.within(Duration::from_secs(3600)),
                _ => read,
            };
            let id = worker.begin(read).expect("the port is open");
            if fastrand::u8(..16) == 0 {
                for _ in 0..=fastrand::u8(..3) {
                    port.cancel_operation(id);
                }
            }
        };
        thread::scope(|scope| {
            #[cfg(unix)]
            scope.spawn(|| {
                let is_over = || tally.done.load(Ordering::SeqCst) == count;
                let children = fork(&port, &file, is_over);
                println!("{}: {children} children", port.file_driver());
            });
            for _ in 0..THREADS {
                let mut worker = port.worker(16);
                let (port, tally, begin) = (&port, &tally, &begin);
                scope.spawn(move || {
                    for _ in 0..UNDER_WAY {
                        let empty = Numbered {
                            bytes: [0; 512],
                            number: 0,
                            block: 0,
                        };
                        begin(&mut worker, Box::new(empty));
                    }
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            let Event::Completed(mut completion) = event else {
                                panic!("{event:?}");
                            };
                            let buffer = completion.buffers.pop().unwrap_or(completion.buffer);
                            let buffer = buffer.into_owner::<Numbered>();
                            let buffer = buffer.expect("it is as it was begun");
                            match completion.result {
                                Ok(count) => {
                                    assert_eq!((count, completion.is_cancelled), (512, false));
                                    assert_eq!(buffer.bytes, [buffer.block as u8; 512]);
                                }
                                Err(error) => {
                                    assert!(completion.is_cancelled, "{error}");
                                    tally.cancelled.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            let number = buffer.number;
                            begin(&mut worker, buffer);
                            if tally.complete(number) == count {
                                port.close();
                            }
                        }
                    }
                });
            }
        });
        let [done, cancelled] = [&tally.done, &tally.cancelled].map(|it| it.load(Ordering::SeqCst));
        println!("{}: {done} done, {cancelled} cancelled", port.file_driver());
        assert_eq!((done, port.operations()), (count, 0));
        // Windows reads what is in its cache within `begin`: nothing is left to cancel.
        assert!(cancelled > 0 || cfg!(windows));
    }
    Ok(())
}
