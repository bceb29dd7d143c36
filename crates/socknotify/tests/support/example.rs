//! An example that is a server, as a process of its own.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

#[path = "../../../socknotify-cli/tests/support/mod.rs"]
mod processes;

#[path = "patience.rs"]
mod patience;

pub(crate) use patience::PATIENCE;
use processes::started;

/// An example that runs until it is stopped.
pub(crate) struct Example {
    pub(crate) process: Child,
    /// What it says after its address.
    #[allow(dead_code, reason = "some examples say nothing else")]
    pub(crate) output: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Example {
    /// Starts the program with this path, or the library's example of this name.
    pub(crate) fn start(program: impl AsRef<Path>, arguments: &[String]) -> io::Result<Self> {
        Example::start_with(program, arguments, Stdio::piped)
    }

    /// With this standard input.
    pub(crate) fn start_with(
        program: impl AsRef<Path>,
        arguments: &[String],
        input: fn() -> Stdio,
    ) -> io::Result<Self> {
        let program = binary(program.as_ref())?;
        let mut command = Command::new(&program);
        command.arg("127.0.0.1:0").args(arguments);
        command.stdin(input()).stdout(Stdio::piped());
        let mut process = started(|| command.spawn())?;
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        let line = read_line(&mut output)?;
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.and_then(|address| address.parse().ok());
        Ok(Example {
            process,
            output,
            address: address.unwrap_or_else(|| panic!("{} says {line:?}", program.display())),
        })
    }

    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        be_patient(stream)
    }

    /// End its standard input, and so the program.
    #[allow(dead_code, reason = "most examples end at an interrupt")]
    pub(crate) fn stop(mut self) -> io::Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}

/// A test that fails leaves no process behind.
impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The example's program lies beside this one's directory. Cargo builds it before the tests, unless
/// it was asked for this test alone.
pub(crate) fn binary(name: impl AsRef<Path>) -> io::Result<PathBuf> {
    let name = name.as_ref();
    if name.is_absolute() {
        return Ok(name.to_owned());
    }
    let name = name.display();
    let this = env::current_exe()?;
    let profile = this.ancestors().nth(2).expect("target/PROFILE/deps/THIS");
    let path = profile.join("examples");
    let path = path.join(format!("{name}{}", env::consts::EXE_SUFFIX));
    if !path.exists() {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "-p", "socknotify", "--example", &name.to_string()]);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        if let Some(target) = profile.parent() {
            cargo.arg("--target-dir").arg(target);
        }
        let status = cargo.status()?;
        assert!(status.success(), "cargo build --example {name}: {status}");
    }
    Ok(path)
}

pub(crate) fn be_patient(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    // On Windows it would limit a whole call, however much that sends.
    if cfg!(unix) {
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    Ok(stream)
}

#[track_caller]
pub(crate) fn expect(mut stream: impl Read, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    stream.read_exact(&mut found).expect("it is sent");
    assert_eq!(
        found.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
}

#[track_caller]
pub(crate) fn expect_end(mut stream: impl Read) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end is sent");
    assert_eq!(rest.escape_ascii().to_string(), "");
}

pub(crate) fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok(line)
}

/// More than the buffers of a connection hold.
pub(crate) fn much() -> Vec<u8> {
    (0..32 << 20)
        .map(|number: u32| (number / 251) as u8)
        .collect()
}
