//! Many operations, by many threads, some cancelled and some with deadlines: none is lost, and none comes twice.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{Event, FileOperation};

use super::{every_port, file_of};

/// `SOCKNOTIFY_STRESS_OPERATIONS` asks for another number.
fn count() -> usize {
    let asked = std::env::var("SOCKNOTIFY_STRESS_OPERATIONS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    asked.unwrap_or(super::support::rounds(100_000))
}

#[for_every_backend]
fn o3_nothing_is_lost_among_many_operations_by_eight_threads(backend: Backend) -> io::Result<()> {
    const THREADS: usize = 8;
    const UNDER_WAY: usize = 32;
    const BLOCKS: u64 = 256;
    let count = count();
    for port in every_port(backend)? {
        let content: Vec<u8> = (0..BLOCKS).flat_map(|block| [block as u8; 512]).collect();
        let file = file_of(&port, &content)?;
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let mut worker = port.worker(16);
                let (port, file, begun, done) = (&port, &file, &begun, &done);
                scope.spawn(move || {
                    let begin = |worker: &mut super::TestWorker, buffer: Vec<u8>| {
                        if begun.fetch_add(1, Ordering::SeqCst) < count {
                            let block = fastrand::u64(..BLOCKS);
                            let read = FileOperation::read_at(file, buffer, block * 512);
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
                        }
                    };
                    for _ in 0..UNDER_WAY {
                        begin(&mut worker, vec![0; 512]);
                    }
                    while worker.process(None).is_ok() {
                        while let Some(event) = worker.take() {
                            let Event::Completed(completion) = event else {
                                panic!("{event:?}");
                            };
                            let buffer = completion.buffer.into_vec();
                            match completion.result {
                                Ok(count) => {
                                    assert_eq!((count, completion.is_cancelled), (512, false));
                                    assert!(buffer.iter().all(|&byte| byte == buffer[0]));
                                }
                                Err(error) => assert!(completion.is_cancelled, "{error}"),
                            }
                            begin(&mut worker, buffer);
                            if done.fetch_add(1, Ordering::SeqCst) + 1 == count {
                                port.close();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!((done.load(Ordering::SeqCst), port.operations()), (count, 0));
    }
    Ok(())
}
