//! What a read of 4 KiB costs, somewhere in a file that the system has in memory.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use io_uring::{IoUring, opcode, types};
use socknotify::owned::{Event, FileDriver, FileOperation, Port};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::case::{Axis, Case, Effort, Parameter, Trial};
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::stopwatch::Stopwatch;

pub(crate) const CASE: Case = Case {
    name: "files",
    about: "4 KiB read at random from a file that the system has in memory; one thread, but for pread and tokio",
    compared_by: Figure::Cpu,
    axes: &[Axis {
        parameter: Parameter::UnderWay,
        values: &[1, 32],
        quick: &[1, 32],
    }],
    implementations: || {
        use Implementation::*;
        vec![
            RawUring,
            Pread,
            Files(FileDriver::IoUring),
            Files(FileDriver::Threads),
            Tokio,
        ]
    },
    parts: 1,
    is_counted: false,
    prepare: |setting, effort| {
        let under_way = setting.get(Parameter::UnderWay);
        Ok(Box::new(Files::prepare(under_way, effort)?))
    },
};

const BLOCK: usize = 4096;
/// 64 MiB.
const BLOCKS: u64 = 16 * 1024;

struct Files {
    path: tempfile::TempPath,
    under_way: usize,
    effort: Effort,
}

/// Where to read next.
struct Offsets(u64);

impl Offsets {
    fn next(&mut self) -> u64 {
        // Xorshift: the same sequence for all.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % BLOCKS * BLOCK as u64
    }
}

impl Files {
    fn prepare(under_way: usize, effort: Effort) -> io::Result<Self> {
        let mut file = tempfile::NamedTempFile::new()?;
        for block in 0..BLOCKS {
            file.write_all(&[block as u8; BLOCK])?;
        }
        Ok(Files {
            path: file.into_temp_path(),
            under_way,
            effort,
        })
    }

    fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    fn reads(&self) -> usize {
        self.effort.notifications / 2
    }

    /// One thread for each that is under way.
    fn pread(&self) -> io::Result<Sample> {
        let file = self.open()?;
        let begun = AtomicUsize::new(0);
        let stopwatch = Stopwatch::of_process();
        let read = |seed: usize| {
            let mut offsets = Offsets(seed as u64 + 1);
            let mut buffer = vec![0; BLOCK];
            while begun.fetch_add(1, Ordering::Relaxed) < self.reads() {
                file.read_exact_at(&mut buffer, offsets.next())?;
            }
            io::Result::Ok(())
        };
        let read = &read;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.under_way)
                .map(|seed| scope.spawn(move || read(seed)))
                .collect();
            let mut threads = threads.into_iter();
            threads.try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        Ok(stopwatch.per(self.reads()))
    }

    fn ring(&self) -> io::Result<Sample> {
        let file = self.open()?;
        let mut ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(256)?;
        let mut buffers = vec![vec![0_u8; BLOCK]; self.under_way];
        let mut offsets = Offsets(1);
        let mut free: Vec<usize> = (0..self.under_way).collect();
        let (mut begun, mut done) = (0, 0);
        let stopwatch = Stopwatch::of_process();
        while done < self.reads() {
            while begun < self.reads() {
                let Some(index) = free.pop() else { break };
                let memory = buffers[index].as_mut_ptr();
                let read = opcode::Read::new(types::Fd(file.as_raw_fd()), memory, BLOCK as u32)
                    .offset(offsets.next())
                    .build()
                    .user_data(index as u64);
                // SAFETY: the buffer is there until the end, when all have completed.
                let pushed = unsafe { ring.submission().push(&read) };
                pushed.map_err(io::Error::other)?;
                begun += 1;
            }
            ring.submit_and_wait(1)?;
            for completion in ring.completion() {
                assert_eq!(completion.result(), BLOCK as i32);
                free.push(completion.user_data() as usize);
                done += 1;
            }
        }
        Ok(stopwatch.per(self.reads()))
    }

    fn port(&self, driver: FileDriver) -> io::Result<Sample> {
        let port = Port::<TcpStream>::builder().file_driver(driver).build()?;
        let file = port.adopt_file(self.open()?)?;
        let mut worker = port.worker(64);
        let mut offsets = Offsets(1);
        let mut free = vec![vec![0; BLOCK]; self.under_way];
        let (mut begun, mut done) = (0, 0);
        let stopwatch = Stopwatch::of_process();
        while done < self.reads() {
            while begun < self.reads() {
                let Some(buffer) = free.pop() else { break };
                worker.begin(FileOperation::read_at(&file, buffer, offsets.next()))?;
                begun += 1;
            }
            worker.process(None)?;
            while let Some(event) = worker.take() {
                if let Event::Completed(completion) = event {
                    assert_eq!(completion.result?, BLOCK);
                    free.push(completion.buffer.into_vec());
                    done += 1;
                }
            }
        }
        Ok(stopwatch.per(self.reads()))
    }

    /// A task for each that is under way, with the file open for itself, as each has a position.
    fn tokio(&self) -> io::Result<Sample> {
        // It is slow, and the same for each.
        let reads = self.reads() / 10;
        let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
        let stopwatch = Stopwatch::of_process();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..self.under_way)
                .map(|seed| {
                    let file = self.open();
                    let share = reads / self.under_way;
                    tokio::spawn(async move {
                        let mut file = tokio::fs::File::from_std(file?);
                        let mut offsets = Offsets(seed as u64 + 1);
                        let mut buffer = vec![0; BLOCK];
                        for _ in 0..share {
                            file.seek(io::SeekFrom::Start(offsets.next())).await?;
                            file.read_exact(&mut buffer).await?;
                        }
                        io::Result::Ok(())
                    })
                })
                .collect();
            for task in tasks {
                task.await.map_err(io::Error::other)??;
            }
            io::Result::Ok(())
        })?;
        Ok(stopwatch.per(reads / self.under_way * self.under_way))
    }
}

impl Trial for Files {
    fn measure(&mut self, implementation: Implementation) -> io::Result<Option<Sample>> {
        match implementation {
            Implementation::RawUring => self.ring(),
            Implementation::Pread => self.pread(),
            Implementation::Files(driver) => self.port(driver),
            Implementation::Tokio => self.tokio(),
            _ => return Ok(None),
        }
        .map(Some)
    }
}
