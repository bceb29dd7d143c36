//! Every test once for each backend.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use socknotify::{Backend, CompletionPort, WakePolicy};

/// How long one test may take before it is taken to hang.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes each function named, a `fn(Backend) -> io::Result<()>`, a test for every backend of this
/// system, in a module with the backend's name.
macro_rules! for_every_backend {
    ($($tests:tt)+) => {
        #[cfg(windows)]
        mod native {
            tests_for_backend!(Native $($tests)+);
        }
        for_every_backend_with_places!($($tests)+);
    };
}

/// The same for the backends whose places are the library's, and not the kernel's.
macro_rules! for_every_backend_with_places {
    ($($tests:tt)+) => {
        #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
        mod epoll {
            tests_for_backend!(Epoll $($tests)+);
        }
        #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
        mod kqueue {
            tests_for_backend!(Kqueue $($tests)+);
        }
        #[cfg(windows)]
        mod afd {
            tests_for_backend!(Afd $($tests)+);
        }
    };
}

macro_rules! tests_for_backend {
    ($backend:ident $($(#[$attribute:meta])* $test:ident),+ $(,)?) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $test() -> std::io::Result<()> {
                crate::support::run(socknotify::Backend::$backend, super::$test)
            }
        )+
    };
}

/// The backends for which `for_every_backend` makes tests.
const TESTED: &[Backend] = &[
    #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
    Backend::Epoll,
    #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
    Backend::Kqueue,
    #[cfg(windows)]
    Backend::Native,
    #[cfg(windows)]
    Backend::Afd,
];

/// The backends that work on this machine. They are tried before the first test: it may count descriptors.
fn working() -> &'static [Backend] {
    static WORKING: OnceLock<Vec<Backend>> = OnceLock::new();
    WORKING.get_or_init(|| {
        let all = Backend::ALL.iter().copied();
        all.filter(|backend| backend.probe().is_ok()).collect()
    })
}

/// The same, one after the other.
pub(crate) fn backends() -> impl Iterator<Item = Backend> {
    assert_eq!(TESTED, Backend::ALL, "a backend has no tests");
    working().iter().copied()
}

/// Held by the test that runs on Windows: some need the value of a handle that another test could be given.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a test, if its backend works here. One that hangs fails, and lets the others go on.
pub(crate) fn run(backend: Backend, test: fn(Backend) -> io::Result<()>) -> io::Result<()> {
    if !working().contains(&backend) {
        eprintln!("skipped: {backend} does not work here");
        return Ok(());
    }
    let _turn = cfg!(windows).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    super::system::prepare()?;
    let (done, outcome) = channel();
    let body = thread::spawn(move || {
        let result = test(backend);
        let _ = done.send(());
        result
    });
    match outcome.recv_timeout(LIMIT) {
        // It ended, or panicked, and so dropped its end of the channel.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => match body.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
        Err(RecvTimeoutError::Timeout) => panic!("hangs"),
    }
}

/// A port with as many places as there are processors.
pub(crate) fn port(backend: Backend) -> io::Result<CompletionPort> {
    Ok(CompletionPort::builder().backend(backend).build()?)
}

/// A port with this many places.
pub(crate) fn port_with(backend: Backend, places: usize) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(builder.concurrency(places).build()?)
}

/// The same, which wakes threads by this policy.
pub(crate) fn waking_port(
    backend: Backend,
    places: usize,
    policy: WakePolicy,
) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(builder.concurrency(places).wake_policy(policy).build()?)
}
