//! Files of a FUSE daemon that does not answer: the operations of others go on.
//!
//! The daemon is a thread of the test that speaks the kernel's protocol (`linux/fuse.h`) over `/dev/fuse`. Its file has
//! direct operations, which the kernel's ring takes for ones that never wait.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socknotify::Backend;
use socknotify::owned::FileOperation;

use super::support::{Gate, PATIENCE};
use super::{TestPort, builder, completed, every_port, file_of, perform};

/// What is in its file.
const CONTENT: &[u8] = b"0123456789";

/// The file's name, and its number.
const NAME: &str = "file";
const ROOT: u64 = 1;
const NODE: u64 = 2;

/// A mounted file system with one file, whose reads are answered when the gate is open.
struct Daemon {
    directory: tempfile::TempDir,
    gate: Arc<Gate>,
}

impl Daemon {
    /// `None` where this process may not mount.
    fn mount() -> io::Result<Option<Self>> {
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            eprintln!("skipped: there is no /dev/fuse here");
            return Ok(None);
        };
        let directory = tempfile::tempdir()?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let path = CString::new(directory.path().as_os_str().as_bytes())?;
        let options = CString::new(options)?;
        let fuse = c"fuse".as_ptr();
        // SAFETY: all of these are strings that end.
        let mounted = unsafe { libc::mount(fuse, path.as_ptr(), fuse, 0, options.as_ptr().cast()) };
        if mounted != 0 {
            eprintln!("skipped: cannot mount: {}", io::Error::last_os_error());
            return Ok(None);
        }
        let gate = Arc::new(Gate::new());
        let theirs = Arc::clone(&gate);
        thread::spawn(move || serve(device, &theirs));
        Ok(Some(Daemon { directory, gate }))
    }

    fn open(&self) -> io::Result<File> {
        let path = self.directory.path().join(NAME);
        File::options().read(true).write(true).open(path)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.gate.open_for_all();
        let path = CString::new(self.directory.path().as_os_str().as_bytes());
        // SAFETY: it is a string that ends.
        unsafe { libc::umount2(path.expect("a path").as_ptr(), libc::MNT_DETACH) };
    }
}

/// Answers requests until it is unmounted. Reads wait in threads of their own.
fn serve(device: File, gate: &Arc<Gate>) {
    let device = Arc::new(device);
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = (&*device).read(&mut request) {
        let request = &request[..length];
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (opcode, unique, node) = (number(4), long(8), long(16));
        let answer = |error: i32, body: &[u8]| answer(&device, unique, error, body);
        match opcode {
            // LOOKUP
            1 if request[40..].starts_with(NAME.as_bytes()) => {
                let entry = [
                    &NODE.to_ne_bytes()[..],
                    &[0; 8],
                    &time(1),
                    &time(1),
                    &[0; 8],
                ];
                answer(0, &[&entry.concat()[..], &attributes(NODE)].concat());
            }
            1 => answer(libc::ENOENT, &[]),
            // FORGET, BATCH_FORGET
            2 | 42 => {}
            // GETATTR
            3 => answer(0, &[&time(1)[..], &[0; 8], &attributes(node)].concat()),
            // OPEN, OPENDIR: FOPEN_DIRECT_IO
            14 | 27 => answer(0, &[&[0; 8][..], &1_u32.to_ne_bytes(), &[0; 4]].concat()),
            // READ, and WRITE
            15 | 16 => {
                let (offset, size) = (long(40 + 8) as usize, number(40 + 16));
                let from = offset.min(CONTENT.len());
                let to = (offset + size as usize).min(CONTENT.len());
                let body = match opcode {
                    15 => CONTENT[from..to].to_vec(),
                    _ => [size, 0].map(u32::to_ne_bytes).concat(),
                };
                let (device, gate) = (Arc::clone(&device), Arc::clone(gate));
                thread::spawn(move || {
                    gate.pass();
                    self::answer(&device, unique, 0, &body);
                });
            }
            // STATFS is what a call may not ask.
            17 => {
                let device = Arc::clone(&device);
                thread::spawn(move || {
                    thread::sleep(SHORT + Duration::from_secs(5));
                    self::answer(&device, unique, 0, &[0; 80]);
                });
            }
            // INIT: version 7.31, and nothing that is optional
            26 => {
                let mut body = [7_u32, 31, 4096, 0, 0, 1 << 16]
                    .map(u32::to_ne_bytes)
                    .concat();
                body.resize(64, 0);
                body[20..24].copy_from_slice(&(1_u32 << 16).to_ne_bytes());
                answer(0, &body);
            }
            // RELEASE, FSYNC, FLUSH, RELEASEDIR, ACCESS
            18 | 20 | 25 | 29 | 34 => answer(0, &[]),
            _ => answer(libc::ENOSYS, &[]),
        }
    }
}

fn answer(device: &File, unique: u64, error: i32, body: &[u8]) {
    let length = 16 + body.len() as u32;
    let head = [length.to_ne_bytes(), (-error).to_ne_bytes()].concat();
    // A request may have been given up meanwhile.
    let _ = (&*device).write(&[&head[..], &unique.to_ne_bytes(), body].concat());
}

/// Seconds.
fn time(seconds: u64) -> [u8; 8] {
    seconds.to_ne_bytes()
}

/// `struct fuse_attr`
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = match node {
        ROOT => (libc::S_IFDIR | 0o755, 0),
        _ => (libc::S_IFREG | 0o644, CONTENT.len() as u64),
    };
    // Without blocks, as of a file that is made up.
    let long = [node, size, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let short = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    [long, short.map(u32::to_ne_bytes).concat()].concat()
}

#[track_caller]
fn within<R>(limit: Duration, what: &str, work: impl FnOnce() -> R) -> R {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < limit, "{what} took {:?}", begin.elapsed());
    result
}

/// Long for a call that waits for nobody, on a busy machine and disk. The daemon does not answer at all.
const SHORT: Duration = Duration::from_secs(20);

/// As many reads of a file as there are helper threads, and a few more. The gate opens in time for no `begin`.
#[for_every_backend]
fn o3_a_file_whose_daemon_does_not_answer_keeps_nobody_waiting(backend: Backend) -> io::Result<()> {
    const MANY: usize = 40;
    for port in every_port(backend)? {
        let Some(daemon) = Daemon::mount()? else {
            return Ok(());
        };
        let hangs = daemon.open()?;
        let hangs = within(SHORT, "adopting", || port.adopt_file(hangs))?;
        assert_ne!(hangs.metadata()?.dev(), 0);
        let file = file_of(&port, CONTENT)?;
        let mut worker = port.worker(16);
        let read = || FileOperation::read_at(&hangs, vec![0; 16], 0);
        for _ in 0..MANY {
            within(SHORT, "begin", || port.begin(read()))?;
        }
        let late = port.begin(read().within(Duration::from_millis(5)))?;
        let done = within(SHORT, "a deadline", || completed(&mut worker));
        assert_eq!(
            (done.id, done.is_cancelled),
            (late, true),
            "it had not begun"
        );
        for operation in [
            FileOperation::read_at(&file, vec![0; 16], 0),
            FileOperation::write_at(&file, CONTENT.to_vec(), 0),
            FileOperation::sync_all(&file),
        ] {
            within(SHORT, "another file's operation", || {
                perform(&port, &mut worker, operation)
            })?
            .result?;
        }
        daemon.gate.open_for_all();
        for _ in 0..MANY {
            let done = completed(&mut worker);
            assert_eq!(&done.buffer[..done.result?], CONTENT);
        }
    }
    Ok(())
}

/// The caller's memory, without adopting the file.
#[for_every_backend]
fn e7_beginning_with_a_file_whose_daemon_does_not_answer_does_not_wait(
    backend: Backend,
) -> io::Result<()> {
    use socknotify::{CompletionPort, Overlapped};

    let Some(daemon) = Daemon::mount()? else {
        return Ok(());
    };
    let port = CompletionPort::builder().backend(backend).build()?;
    let file = daemon.open()?;
    let mut memory = [0; 16];
    let mut overlapped = Overlapped::new(0);
    // SAFETY: all of it stays until its packet was dequeued.
    within(SHORT, "begin", || unsafe {
        port.read_at(&file, &raw mut memory, 7, &raw mut overlapped)
    })?;
    daemon.gate.open_for_all();
    let entry = port.dequeue_one(Some(PATIENCE))?;
    assert_eq!((entry.completion_key, entry.transferred), (7, 10));
    Ok(())
}

/// When the time of `drain` is over, the port closes, and says what it leaves behind.
#[for_every_backend]
fn o7_closing_after_a_drain_waits_for_no_daemon(backend: Backend) -> io::Result<()> {
    for port in every_port(backend)? {
        let Some(daemon) = Daemon::mount()? else {
            return Ok(());
        };
        let file = port.adopt_file(daemon.open()?)?;
        for _ in 0..2 {
            port.begin(FileOperation::read_at(&file, vec![0; 16], 0))?;
        }
        let weak = in_progress(&port);
        // What has not begun when the time is over is cancelled.
        port.drain(Duration::from_secs(1));
        let mut worker = port.worker(1);
        while worker.process(None).is_ok() {}
        let left = within(SHORT, "closing", || port.close());
        assert_eq!(left.left_behind(), weak);
        drop((left, worker));
        within(SHORT, "dropping", || drop(port));
        assert!(file.clone().into_file().is_err(), "they have the file");
        daemon.gate.open_for_all();
        let mut file = file;
        let end = Instant::now() + PATIENCE;
        // When they have ended, what they had is dropped.
        while let Err(again) = file.into_file() {
            assert!(Instant::now() < end, "it is kept");
            thread::sleep(Duration::from_millis(1));
            file = again;
        }
    }
    Ok(())
}

/// Waits until both have begun.
fn in_progress(port: &TestPort) -> usize {
    super::support::wait_until("both have begun", || port.helper_threads() >= 2);
    port.operations()
}

/// One mount that does not answer has half of the threads at most.
#[for_every_backend]
fn o2_a_daemon_that_does_not_answer_has_half_of_the_threads(backend: Backend) -> io::Result<()> {
    let port = super::threads(builder(backend)).helper_threads(4).build()?;
    let Some(daemon) = Daemon::mount()? else {
        return Ok(());
    };
    let hangs = port.adopt_file(daemon.open()?)?;
    for _ in 0..10 {
        port.begin(FileOperation::read_at(&hangs, vec![0; 16], 0))?;
    }
    let file = file_of(&port, CONTENT)?;
    let mut worker = port.worker(16);
    for _ in 0..100 {
        let read = FileOperation::read_at(&file, vec![0; 16], 0);
        let done = within(SHORT, "a read", || perform(&port, &mut worker, read))?;
        assert_eq!(done.result?, CONTENT.len());
    }
    daemon.gate.open_for_all();
    for _ in 0..10 {
        assert_eq!(completed(&mut worker).result?, CONTENT.len());
    }
    Ok(())
}
