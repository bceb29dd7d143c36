//! Every test once for each backend.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use socknotify::{Backend, CompletionPort, WakePolicy};

/// How long one test may take before it is taken to hang. `SOCKNOTIFY_TEST_SECONDS` asks for another time.
fn limit() -> Duration {
    let asked = std::env::var("SOCKNOTIFY_TEST_SECONDS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(300))
}

/// What `#[for_every_backend]` makes of a function's name: a test for each backend of this system.
macro_rules! tests_on_backends {
    ($test:ident) => {
        // Windows before build 20348, and Wine, have none: a test that cannot run does not count as passed.
        #[cfg(windows)]
        test_on_backend!(
            #[ignore = "for Windows from build 20348: --include-ignored"]
            native, Native, $test
        );
        tests_on_backends!($test with_permits);
    };
    // How soon it is done depends on the machine, and on what else that does.
    ($test:ident timed) => {
        #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
        timed_test_on_backend!(timed_epoll, Epoll, $test);
        #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
        timed_test_on_backend!(timed_kqueue, Kqueue, $test);
        #[cfg(windows)]
        timed_test_on_backend!(timed_native, Native, $test);
        #[cfg(windows)]
        timed_test_on_backend!(timed_afd, Afd, $test);
    };
    ($test:ident with_permits) => {
        #[cfg(all(target_os = "linux", not(kqueue_stand_in)))]
        test_on_backend!(epoll, Epoll, $test);
        #[cfg(all(unix, any(kqueue_stand_in, not(target_os = "linux"))))]
        test_on_backend!(kqueue, Kqueue, $test);
        #[cfg(windows)]
        test_on_backend!(afd, Afd, $test);
    };
}

#[allow(unused_macros, reason = "most test programs have none")]
macro_rules! timed_test_on_backend {
    ($name:ident, $backend:ident, $test:ident) => {
        test_on_backend!(
            #[ignore = "for a machine with nothing else to do: .ci/timed"]
            $name,
            $backend,
            $test
        );
    };
}

macro_rules! test_on_backend {
    ($(#[$attribute:meta])* $name:ident, $backend:ident, $test:ident) => {
        $(#[$attribute])*
        #[test]
        fn $name() -> std::io::Result<()> {
            crate::support::run(socknotify::Backend::$backend, super::$test)
        }
    };
}

/// The backends for which `tests_on_backends` makes tests.
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

/// What a test is given: a backend, or a port over it, with as many permits as there are processors.
pub(crate) trait Given: Sized + 'static {
    fn on(backend: Backend) -> io::Result<Self>;
}

impl Given for Backend {
    fn on(backend: Backend) -> io::Result<Self> {
        Ok(backend)
    }
}

impl Given for CompletionPort {
    fn on(backend: Backend) -> io::Result<Self> {
        port(backend)
    }
}

/// Held by the test that runs on Windows: some need the value of a handle that another test could be given.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a test. One whose backend does not work here fails, and so does one that hangs, which lets the others go on.
///
/// On Windows one that [gives](super::system::take_number) the number of a closed socket to another can lose it to another
/// thread for good: the harness, for example, keeps a handle of the next test's thread, which waits for its turn. Such a test
/// begins anew, with other numbers.
pub(crate) fn run<G: Given>(backend: Backend, test: fn(G) -> io::Result<()>) -> io::Result<()> {
    const TRIES: usize = 10;
    assert!(working().contains(&backend), "{backend} does not work here");
    let _turn = cfg!(windows).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    let has_lost_number =
        |error: &io::Error| cfg!(windows) && error.kind() == io::ErrorKind::ResourceBusy;
    for _ in 1..TRIES {
        match run_once(backend, test) {
            Err(error) if has_lost_number(&error) => {}
            result => return result,
        }
    }
    run_once(backend, test)
}

fn run_once<G: Given>(backend: Backend, test: fn(G) -> io::Result<()>) -> io::Result<()> {
    super::system::prepare()?;
    let (done, outcome) = channel();
    let body = thread::spawn(move || {
        let result = G::on(backend).and_then(test);
        let _ = done.send(());
        result
    });
    match outcome.recv_timeout(limit()) {
        // It ended, or panicked, and so dropped its end of the channel.
        Ok(()) | Err(RecvTimeoutError::Disconnected) => match body.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
        Err(RecvTimeoutError::Timeout) => panic!("hangs"),
    }
}

/// A port with as many permits as there are processors.
pub(crate) fn port(backend: Backend) -> io::Result<CompletionPort> {
    Ok(CompletionPort::builder().backend(backend).build()?)
}

/// A port with this many permits, which a thread keeps while it blocks: tests' threads block to stay where they are.
pub(crate) fn port_with(backend: Backend, permits: usize) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    Ok(builder.concurrency(permits).strict().build()?)
}

/// The same, which wakes threads by this policy.
pub(crate) fn waking_port(
    backend: Backend,
    permits: usize,
    policy: WakePolicy,
) -> io::Result<CompletionPort> {
    let builder = CompletionPort::builder().backend(backend);
    let builder = builder.concurrency(permits).wake_policy(policy);
    Ok(builder.strict().build()?)
}
