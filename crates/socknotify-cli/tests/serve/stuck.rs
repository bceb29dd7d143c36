//! A disk that stands still, or fails: a file system of the test's, in the kernel's protocol (`linux/fuse.h`).

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::clients::HttpClient;
use crate::program::{PATIENCE, PROGRAM, Server};

/// Its files: a small one, which the port reads, and a large one, which the kernel sends.
const FILES: [(&str, u64); 2] = [("small", 1000), ("large", 1 << 20)];
const ROOT: u64 = 1;

/// Numbers of requests.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const READ: u32 = 15;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It takes no more requests from the first answer on to a request of this kind.
    StandsStill(u32),
    /// Requests of this kind fail with EIO.
    Fails(u32),
    /// It has read this much of a file, and reads no more.
    Breaks(u64),
}

/// A mounted file system with a fault.
struct Disk {
    directory: TempDir,
    stands_still: Receiver<()>,
    /// Its daemon ends when this is dropped.
    _ends: Sender<()>,
}

impl Disk {
    /// `None` where this process may not mount.
    fn mount(fault: Fault) -> io::Result<Option<Self>> {
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
        let (says, stands_still) = channel();
        let (ends, end) = channel();
        thread::spawn(move || answer_until(fault, &device, &says, &end));
        // From here on the kernel knows that there is no STATX, and asks for no more attributes.
        directory.path().metadata()?;
        Ok(Some(Disk {
            directory,
            stands_still,
            _ends: ends,
        }))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = CString::new(self.directory.path().as_os_str().as_bytes());
        // SAFETY: it is a string that ends.
        unsafe { libc::umount2(path.expect("a path").as_ptr(), libc::MNT_DETACH) };
    }
}

fn answer_until(fault: Fault, device: &File, says: &Sender<()>, end: &Receiver<()>) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = { device }.read(&mut request) {
        let request = &request[..length];
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (opcode, unique, node) = (number(4), long(8), long(16));
        let found = FILES
            .iter()
            .position(|(name, _)| request[40..].starts_with(name.as_bytes()));
        let (error, body) = match opcode {
            _ if fault == Fault::Fails(opcode) => (libc::EIO, Vec::new()),
            // fuse_read_in: the handle, the offset and the size
            READ => match fault {
                Fault::Breaks(whole) if long(48) < whole => (0, vec![b'x'; number(56) as usize]),
                _ => (libc::EIO, Vec::new()),
            },
            LOOKUP => match found {
                Some(at) => {
                    let node = ROOT + 1 + at as u64;
                    let entry = [node, 0, LONG, LONG, 0].map(u64::to_ne_bytes).concat();
                    (0, [entry, attributes(node)].concat())
                }
                None => (libc::ENOENT, Vec::new()),
            },
            // GETATTR
            3 => {
                let head = [LONG, 0].map(u64::to_ne_bytes).concat();
                (0, [head, attributes(node)].concat())
            }
            // Also OPENDIR. FOPEN_NOFLUSH: the kernel kills nobody who waits for the answer to FLUSH, as at the end of a process.
            OPEN | 27 => (0, [0, 0, 1_u32 << 5, 0].map(u32::to_ne_bytes).concat()),
            // INIT: version 7.36, and nothing that is optional
            26 => {
                let mut body = [7_u32, 36, 4096, 0, 0, 1 << 16]
                    .map(u32::to_ne_bytes)
                    .concat();
                body.resize(64, 0);
                (0, body)
            }
            // FORGET, BATCH_FORGET
            2 | 42 => continue,
            // RELEASE, RELEASEDIR
            18 | 29 => (0, Vec::new()),
            _ => (libc::ENOSYS, Vec::new()),
        };
        let length = 16 + body.len() as u32;
        let head = [length.to_ne_bytes(), (-error).to_ne_bytes()].concat();
        // A request may have been given up meanwhile.
        let _ = { device }.write(&[&head[..], &unique.to_ne_bytes(), &body].concat());
        if fault == Fault::StandsStill(opcode) && error == 0 {
            let _ = says.send(());
            let _ = end.recv();
            return;
        }
    }
}

/// Seconds for which an answer holds.
const LONG: u64 = 1000;

/// `struct fuse_attr`
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = match node {
        ROOT => (libc::S_IFDIR | 0o755, 0),
        _ => (libc::S_IFREG | 0o644, FILES[node as usize - 2].1),
    };
    let long = [node, size, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let short = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    [long, short.map(u32::to_ne_bytes).concat()].concat()
}

/// Clients ask for a file of a disk that stands still when it was asked for this. The server ends in time, and says what it leaves behind.
fn end_beside(last: u32, file: &str, clients: usize) -> io::Result<()> {
    let Some(disk) = Disk::mount(Fault::StandsStill(last))? else {
        return Ok(());
    };
    let root = disk.directory.path().to_str().expect("a name");
    let mut command = Command::new(PROGRAM);
    command.stderr(Stdio::piped());
    let mut server = Server::spawn(command, "files", &["--root", root, "--grace", "0.5"])?;
    let mut errors = server.process.stderr.take().expect("it is a pipe");
    let mut asked = Vec::new();
    for _ in 0..clients {
        let mut client = HttpClient::connect(server.address)?;
        client.send(&format!("GET /{file} HTTP/1.1\r\nHost: a\r\n\r\n"))?;
        asked.push(client);
    }
    let heard = disk.stands_still.recv_timeout(PATIENCE);
    heard.expect("somebody asks for the file");
    server.signal(Signal::TERM)?;
    let (status, summary) = server.ended()?;
    assert_eq!(status.code(), Some(1), "{summary}");
    let mut text = String::new();
    errors.read_to_string(&mut text)?;
    assert!(text.contains(" handlers were left behind: "), "{text}");
    Ok(())
}

#[test]
fn a_disk_that_does_not_read_does_not_keep_the_end() -> io::Result<()> {
    end_beside(OPEN, "large", 6)
}

#[test]
fn a_disk_that_does_not_open_does_not_keep_the_end() -> io::Result<()> {
    end_beside(LOOKUP, "small", 6)
}

/// The status of the answer to a request for a file of a disk with this fault, what follows its head, and what is said at the end.
fn ask(fault: Fault, file: &str) -> io::Result<Option<(u16, u64, String)>> {
    let Some(disk) = Disk::mount(fault)? else {
        return Ok(None);
    };
    let root = disk.directory.path().to_str().expect("a name");
    let server = Server::start("files", &["--root", root])?;
    let mut client = HttpClient::connect(server.address)?;
    client.send(&format!(
        "GET /{file} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    ))?;
    let status = client.head()?.status;
    let length = io::copy(&mut client.stream, &mut io::sink())?;
    let summary = server.stop()?;
    Ok(Some((status, length, summary)))
}

/// Whether there is such a file, nobody knows.
#[test]
fn a_disk_that_fails_to_open_a_file_does_not_say_that_there_is_none() -> io::Result<()> {
    for kind in [LOOKUP, OPEN] {
        if let Some((status, ..)) = ask(Fault::Fails(kind), "small")? {
            assert_eq!(status, 503);
        }
    }
    Ok(())
}

#[test]
fn a_disk_that_fails_before_the_first_byte_is_an_error_of_the_server() -> io::Result<()> {
    for file in ["small", "large"] {
        if let Some((status, _, summary)) = ask(Fault::Fails(READ), file)? {
            assert_eq!(status, 500);
            assert!(summary.contains("failed bodies             1"), "{summary}");
        }
    }
    Ok(())
}

#[test]
fn a_disk_that_fails_in_the_middle_of_a_file_is_counted_as_that() -> io::Result<()> {
    if let Some((status, length, summary)) = ask(Fault::Breaks(1 << 19), "large")? {
        assert!(status == 200 && length < 1 << 20, "{status} {length}");
        assert!(summary.contains("failed bodies             1"), "{summary}");
    }
    Ok(())
}
