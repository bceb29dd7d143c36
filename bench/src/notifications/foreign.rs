//! Event loops in C, by the packages of the system.
//!
//! A few lines of C for each are compiled when they are first needed, and loaded. Where there is no compiler or no package, the
//! library is left out.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use super::{Kind, Way};

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Libuv,
    Libevent,
}

impl Library {
    /// What pkg-config calls it, Debian's package, and the code.
    const fn about(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Library::Libuv => ("libuv", "libuv1-dev", include_str!("../../c/libuv.c")),
            Library::Libevent => {
                let code = include_str!("../../c/libevent.c");
                ("libevent_core", "libevent-dev", code)
            }
        }
    }
}

type Make = unsafe extern "C" fn(c_int) -> *mut c_void;
type Add = unsafe extern "C" fn(*mut c_void, *const RawFd, usize) -> c_int;
type Arm = unsafe extern "C" fn(*mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);

/// The functions of `bench.h`.
struct Functions {
    make: Make,
    add: Add,
    arm: Arm,
    wait: Wait,
    free: Free,
}

/// A library's functions; `None`, said once, where they cannot be had.
fn load(library: Library) -> Option<&'static Functions> {
    static LOADED: [OnceLock<Option<Functions>>; 2] = [OnceLock::new(), OnceLock::new()];
    let functions = LOADED[library as usize].get_or_init(|| {
        let left_out = |error: &io::Error| {
            let (name, package, _) = library.about();
            eprintln!("{name} is left out: {error} (package {package}, and a C compiler)");
        };
        build(library).inspect_err(left_out).ok()
    });
    functions.as_ref()
}

fn build(library: Library) -> io::Result<Functions> {
    let (module, _, code) = library.about();
    let directory = tempfile::tempdir()?;
    let [source, object] = ["library.c", "library.so"].map(|name| directory.path().join(name));
    let header = include_str!("../../c/bench.h");
    std::fs::write(directory.path().join("bench.h"), header)?;
    std::fs::write(&source, code)?;
    let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", module]))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]);
    compiler.arg(&object).arg(&source);
    output(compiler.args(flags.split_whitespace()))?;
    open(&object)
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> io::Result<String> {
    let found = command.output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match found.status.success() {
        true => Ok(text(&found.stdout)),
        false => {
            let errors = text(&found.stderr);
            Err(io::Error::other(
                errors.lines().next().unwrap_or_default().to_owned(),
            ))
        }
    }
}

fn open(object: &Path) -> io::Result<Functions> {
    // SAFETY: it is the file that was made a moment ago, whose initialisers are those of the library. `bench.h` declares each
    // function with this type, and the compiler has seen it with the definition. None is used after the library, which stays.
    unsafe {
        let library = libloading::Library::new(object).map_err(io::Error::other)?;
        let library = Box::leak(Box::new(library));
        let functions = || -> Result<Functions, libloading::Error> {
            Ok(Functions {
                make: *library.get::<Make>(b"bench_make\0")?,
                add: *library.get::<Add>(b"bench_add\0")?,
                arm: *library.get::<Arm>(b"bench_arm\0")?,
                wait: *library.get::<Wait>(b"bench_wait\0")?,
                free: *library.get::<Free>(b"bench_free\0")?,
            })
        };
        functions().map_err(io::Error::other)
    }
}

/// What C returns: 0, or that it did not work.
fn outcome(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("the library failed: {code}"))),
    }
}

/// A loop that reports sockets, and reads a byte of each.
pub(super) struct Loop {
    functions: &'static Functions,
    state: *mut c_void,
}

impl Loop {
    /// `None` where there is no such library.
    pub(super) fn new(library: Library, kind: Kind) -> io::Result<Option<Self>> {
        let Some(functions) = load(library) else {
            return Ok(None);
        };
        // SAFETY: it takes any of the numbers of `bench.h`, which are those of the kinds.
        let state = unsafe { (functions.make)(kind as c_int) };
        match state.is_null() {
            false => Ok(Some(Loop { functions, state })),
            true => Err(io::Error::other("no loop")),
        }
    }
}

impl<'a> Way<'a> for Loop {
    fn add(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        let sockets: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: there are as many descriptors as it says.
        outcome(unsafe { (self.functions.add)(self.state, sockets.as_ptr(), sockets.len()) })
    }

    fn arm(&mut self, _: &'a [UnixStream]) -> io::Result<()> {
        // SAFETY: the state is alive.
        outcome(unsafe { (self.functions.arm)(self.state) })
    }

    fn wait_and_read(&mut self, sockets: &'a [UnixStream]) -> io::Result<()> {
        // SAFETY: the state is alive.
        outcome(unsafe { (self.functions.wait)(self.state, sockets.len()) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: the state is alive, and nobody uses it after this.
        unsafe { (self.functions.free)(self.state) }
    }
}
