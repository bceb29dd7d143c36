//! [`Library`]: event loops in C, by the packages of the system.
//!
//! A few lines of C for each are compiled when they are first needed, and loaded. Where there is no compiler or no
//! package, the library is left out.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Libuv,
    Libevent,
}

impl Library {
    pub(crate) const ALL: [Library; 2] = [Library::Libuv, Library::Libevent];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Library::Libuv => "libuv",
            Library::Libevent => "libevent",
        }
    }

    /// What pkg-config calls it.
    const fn module(self) -> &'static str {
        match self {
            Library::Libuv => "libuv",
            Library::Libevent => "libevent_core",
        }
    }

    /// Of Debian.
    const fn package(self) -> &'static str {
        match self {
            Library::Libuv => "libuv1-dev",
            Library::Libevent => "libevent-dev",
        }
    }

    const fn source(self) -> &'static str {
        match self {
            Library::Libuv => include_str!("../c/libuv.c"),
            Library::Libevent => include_str!("../c/libevent.c"),
        }
    }
}

/// The functions of `bench.h`.
pub(crate) struct Functions {
    serve: unsafe extern "C" fn(*const RawFd, usize, c_uint) -> c_int,
    make: unsafe extern "C" fn(c_int) -> *mut c_void,
    add: unsafe extern "C" fn(*mut c_void, *const RawFd, usize) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void) -> c_int,
    arm: unsafe extern "C" fn(*mut c_void) -> c_int,
    wait: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    free: unsafe extern "C" fn(*mut c_void),
}

/// A library's functions; `None`, said once, where they cannot be had.
pub(crate) fn load(library: Library) -> Option<&'static Functions> {
    static LOADED: [OnceLock<Option<Functions>>; 2] = [OnceLock::new(), OnceLock::new()];
    let functions = LOADED[library as usize].get_or_init(|| {
        let built = build(library);
        let left_out = |error: &io::Error| {
            let (name, package) = (library.name(), library.package());
            eprintln!("{name} is left out: {error} (package {package}, and a C compiler)");
        };
        built.inspect_err(left_out).ok()
    });
    functions.as_ref()
}

fn build(library: Library) -> io::Result<Functions> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("library.c");
    std::fs::write(
        directory.path().join("bench.h"),
        include_str!("../c/bench.h"),
    )?;
    std::fs::write(&source, library.source())?;
    let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", library.module()]))?;
    let object = directory.path().join("library.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]);
    compiler.arg(&object).arg(&source);
    output(compiler.args(flags.split_whitespace()))?;
    open(&object)
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let found = command
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match found.status.success() {
        true => Ok(text(&found.stdout)),
        false => {
            let errors = text(&found.stderr);
            let first = errors.lines().next().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("{name}: {first}")))
        }
    }
}

fn open(object: &Path) -> io::Result<Functions> {
    let path = CString::new(object.as_os_str().to_owned().into_vec())?;
    // SAFETY: it is the file that was made a moment ago, whose initialisers are those of the library.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: `dlopen` has failed on this thread, so that there is a message.
        let message = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(io::Error::other(message.to_string_lossy().into_owned()));
    }
    let symbol = |name: &CStr| -> io::Result<*mut c_void> {
        let name: *const c_char = name.as_ptr();
        // SAFETY: the handle stays open, and the name ends with a zero.
        let found = unsafe { libc::dlsym(handle, name) };
        match found.is_null() {
            false => Ok(found),
            true => Err(io::Error::other("a function is missing")),
        }
    };
    // SAFETY: `bench.h` declares each of them with this type, and the compiler has seen it with the definition.
    unsafe {
        use std::mem::transmute;
        Ok(Functions {
            serve: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const RawFd, usize, c_uint) -> c_int,
            >(symbol(c"bench_serve")?),
            make: transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *mut c_void>(symbol(
                c"bench_make",
            )?),
            add: transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, *const RawFd, usize) -> c_int,
            >(symbol(c"bench_add")?),
            remove: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(symbol(
                c"bench_remove",
            )?),
            arm: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(symbol(
                c"bench_arm",
            )?),
            wait: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, usize) -> c_int>(
                symbol(c"bench_wait")?,
            ),
            free: transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(symbol(
                c"bench_free",
            )?),
        })
    }
}

/// What C returns: 0, or that it did not work.
fn outcome(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("the library failed: {code}"))),
    }
}

impl Functions {
    /// Echo on these connections in one loop, until the last has ended. They are closed. So much computing goes before
    /// each answer.
    pub(crate) fn serve(&self, sockets: &[RawFd], work: Duration) -> io::Result<()> {
        let work = work.as_nanos() as c_uint;
        // SAFETY: there are as many descriptors as it says, and nobody else has them.
        outcome(unsafe { (self.serve)(sockets.as_ptr(), sockets.len(), work) })
    }
}

/// A loop that reports sockets, and reads a byte of each.
pub(crate) struct Loop {
    functions: &'static Functions,
    state: *mut c_void,
}

/// What notifications are like, as `bench.h` numbers them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trigger {
    OneShot = 0,
    Edge = 1,
    Level = 2,
}

impl Loop {
    pub(crate) fn new(library: Library, trigger: Trigger) -> io::Result<Self> {
        let functions = load(library).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: it takes any of the numbers.
        let state = unsafe { (functions.make)(trigger as c_int) };
        match state.is_null() {
            false => Ok(Loop { functions, state }),
            true => Err(io::Error::other("no loop")),
        }
    }

    pub(crate) fn add(&mut self, sockets: &[RawFd]) -> io::Result<()> {
        // SAFETY: there are as many descriptors as it says.
        outcome(unsafe { (self.functions.add)(self.state, sockets.as_ptr(), sockets.len()) })
    }

    /// Register none any longer.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        // SAFETY: the state is alive.
        outcome(unsafe { (self.functions.remove)(self.state) })
    }

    /// Arm again what was read.
    pub(crate) fn arm(&mut self) -> io::Result<()> {
        // SAFETY: the state is alive.
        outcome(unsafe { (self.functions.arm)(self.state) })
    }

    /// Run until so many bytes were read.
    pub(crate) fn wait_and_read(&mut self, bytes: usize) -> io::Result<()> {
        // SAFETY: the state is alive.
        outcome(unsafe { (self.functions.wait)(self.state, bytes) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // SAFETY: the state is alive, and nobody uses it after this.
        unsafe { (self.functions.free)(self.state) }
    }
}
