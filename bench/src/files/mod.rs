//! How many files a server of files sends over HTTP: each request opens a file, which is read and sent. There is one for each
//! of 16 connections; the port has 4 threads, tokio one for each processor.

mod servers;

use std::io::{self, Write};
use std::net::TcpStream;

use socknotify::owned::FileDriver;

use self::servers::Site;
use crate::client::{self, Load};
use crate::compare::Options;
use crate::servers::Until;

type Serve = fn(Site, Vec<TcpStream>, Until<'_>) -> io::Result<()>;

const SIDES: [(&str, Serve); 4] = [
    ("tokio", |site, streams, until| {
        servers::serve_tokio(site, false, streams, until)
    }),
    ("tokio, opens at once", |site, streams, until| {
        servers::serve_tokio(site, true, streams, until)
    }),
    ("io_uring", |site, streams, until| {
        servers::serve(FileDriver::IoUring, site, streams, until)
    }),
    ("helper threads", |site, streams, until| {
        servers::serve(FileDriver::Threads, site, streams, until)
    }),
];

const SMALL: usize = 4096;
const LARGE: usize = 16 << 20;

/// How long a file is, and whether the system has it in memory; else it reads it from the disk each time.
const CASES: [(&str, usize, bool); 4] = [
    ("4 KiB, cached", SMALL, true),
    ("16 MiB, cached", LARGE, true),
    ("4 KiB, from the disk", SMALL, false),
    ("16 MiB, from the disk", LARGE, false),
];

const CONNECTIONS: usize = 16;
const ROUNDS: usize = 5;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    for (case, length, is_cached) in CASES {
        if !options.wants(case) {
            continue;
        }
        let directory = tempfile::tempdir()?;
        // One more connection is accepted, which ends at once.
        for number in 0..=CONNECTIONS {
            let name = directory.path().join(Site::name(number));
            let mut file = std::fs::File::create(name)?;
            file.write_all(&vec![number as u8; length])?;
            // What is not on the disk stays in memory.
            file.sync_all()?;
        }
        options.compare(case, ROUNDS, &SIDES, |serve| {
            let site = Site::open(directory.path(), is_cached)?;
            let serve = |streams: Vec<_>, until: Until<'_>| serve(site, streams, until);
            client::measure(Load::Http, CONNECTIONS, options.milliseconds, false, serve).map(Some)
        })?;
    }
    Ok(())
}

/// What comes before a file.
fn file_head(length: u64) -> String {
    let kind = "application/octet-stream";
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n")
}
