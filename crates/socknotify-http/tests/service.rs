//! The example to copy, as a process: its notes, its metrics while a handler is blocked, and its end.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

struct Service {
    process: Child,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl Service {
    fn start(folder: &Path) -> io::Result<Self> {
        let mut process = Command::new(program()?)
            .args(["127.0.0.1:0", "127.0.0.1:0"])
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let mut addresses = line
            .split([' ', ','])
            .filter_map(|word| word.trim().parse().ok());
        let (Some(address), Some(metrics)) = (addresses.next(), addresses.next()) else {
            panic!("it says {line:?}")
        };
        Ok(Service {
            process,
            address,
            metrics,
        })
    }

    fn end(mut self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)?;
        let status = self.process.wait()?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

/// A test that fails leaves no process behind.
impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Cargo builds it before the tests, unless it was asked for this test alone.
fn program() -> io::Result<PathBuf> {
    let this = env::current_exe()?;
    let profile = this.ancestors().nth(2).expect("target/PROFILE/deps/THIS");
    let program = profile.join("examples/service");
    if !program.exists() {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "-p", "socknotify-http", "--example", "service"]);
        cargo.arg("--target-dir").args(profile.parent());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status()?.success(), "cargo build --example service");
    }
    Ok(program)
}

/// Sends a request, whose answer ends the connection.
fn begun(address: SocketAddr, request: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    Ok(stream)
}

/// The status and the body of its answer.
fn answer(mut stream: TcpStream) -> io::Result<(String, String)> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    Ok((status.to_owned(), body.to_owned()))
}

fn ask(address: SocketAddr, request: &str, body: &str) -> io::Result<(String, String)> {
    answer(begun(address, request, body)?)
}

#[test]
fn notes_are_kept_and_metrics_answer_while_a_handler_is_blocked() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let service = Service::start(folder.path())?;
    let address = service.address;
    assert_eq!(ask(address, "PUT /first", "buy milk")?.0, "204");
    assert_eq!(
        ask(address, "GET /first", "")?,
        ("200".into(), "buy milk".into())
    );
    assert_eq!(ask(address, "GET /second", "")?.0, "404");

    // To open it waits for who writes.
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let blocked = begun(address, "GET /pipe", "")?;
    let begin = Instant::now();
    loop {
        let (status, figures) = ask(service.metrics, "GET /", "")?;
        assert_eq!(status, "200");
        if figures == "answers 2\nerrors 1\nconnections 1\nbusy_threads 1\n" {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{figures}");
        thread::sleep(Duration::from_millis(1));
    }
    drop(File::options().write(true).open(&pipe)?);
    answer(blocked)?;

    assert_eq!(ask(address, "DELETE /first", "")?.0, "204");
    assert!(!fs::exists(folder.path().join("first"))?);
    service.end()
}
