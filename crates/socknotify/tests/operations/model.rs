//! Random operations on files, against a model of them.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use socknotify::Backend;
use socknotify::owned::{FileCompletion, FileOperation, OperationId, PortFile};

use super::{TestPort, TestWorker, completed, content, empty_file, every_port, nothing};

/// A file is made of so many parts, and in each there is one operation at a time.
const PARTS: usize = 24;
const PART: usize = 4096;

/// What is under way in a part.
enum Doing {
    /// These bytes are written from here on.
    Write(usize, Vec<u8>),
    /// So many bytes are read from here on, of which so many were there.
    Read(usize, usize, usize),
}

/// Files as they should be.
struct Model {
    /// Of each file its content; nothing behind its end.
    files: Vec<(PortFile, Vec<u8>)>,
    under_way: HashMap<OperationId, (usize, usize, Doing)>,
    free: Vec<(usize, usize)>,
}

impl Model {
    fn begin(
        &mut self,
        port: &TestPort,
        worker: &mut TestWorker,
        random: &mut fastrand::Rng,
    ) -> io::Result<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        let (file, part) = self.free.swap_remove(random.usize(..self.free.len()));
        let from = random.usize(..PART);
        let length = random.usize(..=PART - from);
        let handle = &self.files[file].0;
        let offset = (part * PART + from) as u64;
        let (operation, doing) = if random.bool() {
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(1..)).collect();
            let write = FileOperation::write_at(handle, bytes.clone(), offset);
            (write, Doing::Write(from, bytes))
        } else {
            let read = FileOperation::read_at(handle, vec![0; length], offset);
            let there = self.files[file].1.len().saturating_sub(part * PART + from);
            (read, Doing::Read(from, length, there.min(length)))
        };
        let operation = match random.u8(..20) {
            0 => operation.within(Duration::ZERO),
            1 => operation.within(Duration::from_millis(1)),
            2 => operation.within(Duration::from_secs(3600)),
            _ => operation,
        };
        let id = match random.bool() {
            true => port.begin(operation)?,
            false => worker.begin(operation)?,
        };
        let before = self.under_way.insert(id, (file, part, doing));
        assert!(before.is_none(), "a name was given again");
        Ok(())
    }

    fn end(&mut self, done: FileCompletion) {
        let (file, part, doing) = self.under_way.remove(&done.id).expect("it completes once");
        self.free.push((file, part));
        let content = &mut self.files[file].1;
        let count = match done.result {
            Ok(count) => count,
            Err(error) => {
                assert!(done.is_cancelled, "{error}");
                // Of what was cancelled nobody knows how far it came.
                if let Doing::Write(..) = doing {
                    self.under_way.insert(done.id, (file, part, doing));
                    self.free.pop();
                }
                return;
            }
        };
        match doing {
            Doing::Write(from, bytes) => {
                assert_eq!(count, bytes.len());
                let begin = part * PART + from;
                let end = begin + count;
                // To write nothing makes no file longer.
                if count > 0 && content.len() < end {
                    content.resize(end, 0);
                }
                if count > 0 {
                    content[begin..end].copy_from_slice(&bytes);
                }
            }
            // Behind the end another part may have been written meanwhile: what is there then is zero.
            Doing::Read(from, length, there) => {
                assert!((there..=length).contains(&count));
                let begin = part * PART + from;
                let known = content.get(begin..).unwrap_or_default();
                let known = &known[..known.len().min(length)];
                let read = &done.buffer[..count];
                let common = known.len().min(read.len());
                assert_eq!(read[..common], known[..common]);
                assert!(read[common..].iter().all(|&byte| byte == 0));
            }
        }
    }
}

#[for_every_backend]
fn o3_what_is_under_way_does_what_the_model_says(backend: Backend) -> io::Result<()> {
    const STEPS: usize = 20_000;
    for port in every_port(backend)? {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut worker = port.worker(8);
        let files = (0..3).map(|_| Ok((empty_file(&port)?, Vec::new())));
        let mut model = Model {
            files: files.collect::<io::Result<_>>()?,
            under_way: HashMap::new(),
            free: (0..3)
                .flat_map(|file| (0..PARTS).map(move |part| (file, part)))
                .collect(),
        };
        for _ in 0..STEPS {
            match random.u8(..16) {
                0..8 => model.begin(&port, &mut worker, &mut random)?,
                8 if !model.under_way.is_empty() => {
                    let ids: Vec<_> = model.under_way.keys().copied().collect();
                    port.cancel_operation(ids[random.usize(..ids.len())]);
                }
                _ if port.operations() > 0 => model.end(completed(&mut worker)),
                _ => {}
            }
        }
        while port.operations() > 0 {
            model.end(completed(&mut worker));
        }
        nothing(&mut worker);
        let unknown: Vec<_> = model.under_way.into_values().collect();
        for (number, (file, expected)) in model.files.iter().enumerate() {
            let mut found = content(file)?;
            let mut expected = expected.clone();
            let length = found.len().max(expected.len());
            found.resize(length, 0);
            expected.resize(length, 0);
            // Parts that a cancelled write may have changed.
            for (_, part, _) in unknown.iter().filter(|(file, ..)| *file == number) {
                let part = part * PART..((part + 1) * PART).min(length);
                if part.start < length {
                    found[part.clone()].fill(0);
                    expected[part].fill(0);
                }
            }
            assert!(found == expected, "file {number}, seed {seed}");
        }
    }
    Ok(())
}
