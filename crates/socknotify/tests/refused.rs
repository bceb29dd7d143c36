//! Where the system refuses something.
//!
//! A program of its own, and a thread for each test, because what is refused to a thread is refused for
//! good.
#![cfg(all(target_os = "linux", not(kqueue_stand_in)))]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

#[path = "support/patience.rs"]
mod patience;

use patience::PATIENCE;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socknotify::owned::{Event, FileDriver, FileOperation, Interest, Port, Serving};
use socknotify::{
    CompletionPort, Error, EventFilter, Events, Overlapped, Registration, RegistrationError,
    Trigger,
};

#[path = "support/alone.rs"]
mod alone;

#[path = "support/child.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod child;

use alone::is_alone;
use child::Child;

/// A system call with these arguments, by their places, fails with this error.
struct Refusal<'a> {
    call: libc::c_long,
    arguments: &'a [(u32, u32)],
    error: i32,
}

/// Have the kernel refuse something to this thread, as container runtimes do, and to those that it starts.
fn refuse(refusal: &Refusal<'_>) -> io::Result<()> {
    refuse_to(refusal, 0)
}

/// To all threads of the process, as where it puts itself into a sandbox.
fn refuse_to_all(refusal: &Refusal<'_>) -> io::Result<()> {
    refuse_to(refusal, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

fn refuse_to(refusal: &Refusal<'_>, flags: libc::c_ulong) -> io::Result<()> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const COMPARE: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    // Where the kernel puts an argument for the filter, or its lower half.
    let argument = |place| 16 + 8 * place + if cfg!(target_endian = "big") { 4 } else { 0 };

    let call = [(0, refusal.call as u32)];
    let arguments = refusal.arguments.iter();
    let wanted = arguments.map(|&(place, value)| (argument(place), value));
    let wanted: Vec<_> = call.into_iter().chain(wanted).collect();
    let step = |code: u32, jf: usize, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jf as u8,
        k,
    };
    let mut program = Vec::new();
    for (index, &(offset, value)) in wanted.iter().enumerate() {
        program.push(step(LOAD, 0, offset));
        // To the last step, if it is another.
        program.push(step(COMPARE, 2 * (wanted.len() - index) - 1, value));
    }
    let error = libc::SECCOMP_RET_ERRNO | refusal.error as u32;
    program.push(step(RETURN, 0, error));
    program.push(step(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which copy it; it lets all but one system call through.
    let done = unsafe {
        let set = libc::SECCOMP_SET_MODE_FILTER;
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, set, flags, &filter) == 0
    };
    match done {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

/// Refuses one of the operations of `epoll_ctl` for a reason that has nothing to do with the descriptor.
fn refuse_control(operation: i32) -> io::Result<()> {
    refuse(&Refusal {
        call: libc::SYS_epoll_ctl,
        arguments: &[(1, operation as u32)],
        error: libc::ENOMEM,
    })
}

fn on_a_thread(test: fn() -> io::Result<()>) -> io::Result<()> {
    let outcome = thread::spawn(test).join();
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Reads as many times as there are letters, one at a time and many at once.
fn read_letters(port: &Port<UnixStream>) -> io::Result<()> {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
    let mut worker = port.worker(8);
    let mut file = tempfile::tempfile()?;
    file.write_all(LETTERS)?;
    let file = port.adopt_file(file)?;
    for under_way in [1, LETTERS.len()] {
        for letters in LETTERS.chunks(under_way) {
            let first = letters[0] - LETTERS[0];
            for (offset, _) in (u64::from(first)..).zip(letters) {
                // Of one buffer, it would be read within this call.
                let buffers = vec![vec![0].into()];
                port.begin(FileOperation::read_vectored_at(&file, buffers, offset))?;
            }
            let mut read = Vec::new();
            while read.len() < letters.len() {
                assert_ne!(worker.process(Some(PATIENCE))?, 0);
                while let Some(event) = worker.take() {
                    let Event::Completed(done) = event else {
                        panic!("{event:?}");
                    };
                    assert_eq!(done.result?, 1);
                    read.push(done.buffers[0][0]);
                }
            }
            read.sort_unstable();
            assert_eq!(read, letters);
        }
    }
    Ok(())
}

#[test]
fn o3_helper_threads_do_operations_where_the_system_allows_no_ring() -> io::Result<()> {
    on_a_thread(|| {
        for error in [libc::EPERM, libc::ENOSYS] {
            refuse(&Refusal {
                call: libc::SYS_io_uring_setup,
                arguments: &[],
                error,
            })?;
            assert!(FileDriver::IoUring.probe().is_err());
            let port = Port::<UnixStream>::new()?;
            assert_eq!(port.file_driver(), FileDriver::Threads);
            read_letters(&port)?;
            let builder = Port::<UnixStream>::builder().file_driver(FileDriver::IoUring);
            assert_eq!(builder.build().err(), Some(Error::BackendUnavailable));
        }
        Ok(())
    })
}

/// Linux 5.9 and 5.10 may say of cached data that there are none, which elsewhere is the end of the file.
#[test]
fn o4_a_read_that_would_wait_is_not_the_end_of_the_file() -> io::Result<()> {
    on_a_thread(|| {
        refuse(&Refusal {
            call: libc::SYS_preadv2,
            arguments: &[],
            error: 0,
        })?;
        let port = Port::<UnixStream>::new()?;
        let mut file = tempfile::tempfile()?;
        file.write_all(b"all")?;
        let file = port.adopt_file(file)?;
        port.begin(FileOperation::read_at(&file, vec![0; 3], 0))?;
        let mut worker = port.worker(8);
        worker.process(Some(PATIENCE))?;
        let Some(Event::Completed(done)) = worker.take() else {
            panic!("it completes");
        };
        assert_eq!(done.result?, 3);
        Ok(())
    })
}

/// As where a process puts itself into a sandbox when it has begun: in a child, since this is for all of its threads.
#[test]
fn o3_helper_threads_do_operations_where_the_system_allows_a_ring_no_longer() -> io::Result<()> {
    if FileDriver::IoUring.probe().is_err() {
        eprintln!("skipped: there is no ring here");
        return Ok(());
    }
    // The child starts threads.
    let test = "o3_helper_threads_do_operations_where_the_system_allows_a_ring_no_longer";
    if !is_alone(test)? {
        return Ok(());
    }
    for error in [libc::EPERM, libc::ENOMEM] {
        let outlives = || -> io::Result<()> {
            let port = Port::<UnixStream>::new()?;
            read_letters(&port)?;
            assert_eq!(port.file_driver(), FileDriver::IoUring);
            assert_eq!(port.helper_threads(), 0);
            refuse_to_all(&Refusal {
                call: libc::SYS_io_uring_enter,
                arguments: &[],
                error,
            })?;
            // A thread ends when it had nothing to do for a second, which may have passed by now.
            let mut tries = 0..10;
            let is_seen = tries.any(|_| read_letters(&port).is_ok() && port.helper_threads() > 0);
            assert!(is_seen, "no thread has done it");
            assert_eq!(port.operations(), 0);
            // The thread of the ring ends.
            drop(port);
            Ok(())
        };
        let child = Child::fork(|| {
            let outcome = std::panic::catch_unwind(outlives);
            u8::from(!matches!(outcome, Ok(Ok(()))))
        })?;
        assert_eq!(child.status(), Some(0), "{error}");
    }
    Ok(())
}

/// Another thread has to notify it, which may wait already.
fn lose_level(waits_already: bool) -> io::Result<()> {
    let builder = CompletionPort::builder().concurrency(2);
    let port = builder.strict().build()?;
    let (socket, mut peer) = UnixStream::pair()?;
    peer.write_all(b"x")?;
    let enable = Registration::enable(&socket, 1, EventFilter::IN, Trigger::LEVEL);
    port.register(enable).expect("a socket");
    let (go, waits) = channel();
    thread::scope(|scope| {
        let port = &port;
        let other = scope.spawn(move || {
            waits.recv().expect("it goes on");
            port.dequeue_one(Some(PATIENCE))
                .map(|entry| entry.completion_key)
        });
        assert_eq!(port.dequeue_one(Some(PATIENCE))?.completion_key, 1);
        refuse_control(libc::EPOLL_CTL_MOD)?;
        if waits_already {
            go.send(()).expect("it waits");
            while port.snapshot().waiting == 0 {
                thread::yield_now();
            }
        }
        let short = Some(Duration::from_millis(20));
        let taken = port.dequeue_one(short).map(|entry| entry.completion_key);
        let _ = go.send(());
        if waits_already && taken == Ok(1) {
            // The other one has armed it for both.
            port.close();
        } else {
            assert_eq!(taken, Err(Error::TimedOut));
            assert_eq!(other.join().expect("no panic"), Ok(1));
        }
        Ok(())
    })
}

#[test]
fn c4_a_level_that_cannot_be_armed_again_is_tried_again() -> io::Result<()> {
    on_a_thread(|| lose_level(false))?;
    on_a_thread(|| lose_level(true))
}

#[test]
fn b4_what_cannot_be_removed_is_still_notified() -> io::Result<()> {
    on_a_thread(|| {
        refuse_control(libc::EPOLL_CTL_DEL)?;
        let triggers = [Trigger::LEVEL, Trigger::EDGE];
        let triggers = triggers.map(|it| [it.union(Trigger::ONESHOT), it]);
        for trigger in triggers.concat() {
            let port = CompletionPort::new()?;
            let (socket, mut peer) = UnixStream::pair()?;
            let enable = Registration::enable(&socket, 1, EventFilter::IN, trigger);
            port.register(enable).expect("a socket");
            let refused = port.register(Registration::remove(&socket));
            assert!(refused.is_err(), "{trigger:?}");
            peer.write_all(b"x")?;
            assert_eq!(
                port.dequeue_one(Some(PATIENCE))?.completion_key,
                1,
                "{trigger:?}"
            );
        }
        Ok(())
    })
}

/// As in an emulator that does not know the option.
#[test]
fn a2_a_socket_has_an_identity_where_the_system_gives_no_cookies() -> io::Result<()> {
    on_a_thread(|| {
        for error in [libc::ENOPROTOOPT, libc::EINVAL] {
            refuse(&Refusal {
                call: libc::SYS_getsockopt,
                arguments: &[(1, libc::SOL_SOCKET as u32), (2, libc::SO_COOKIE as u32)],
                error,
            })?;
            let [port, other] = [CompletionPort::new()?, CompletionPort::new()?];
            let (socket, mut peer) = UnixStream::pair()?;
            let enable = || Registration::enable(&socket, 1, EventFilter::IN, Trigger::LEVEL);
            port.register(enable())?;
            let elsewhere = other.register(enable());
            assert_eq!(elsewhere, Err(RegistrationError::OtherPort.into()));
            peer.write_all(b"x")?;
            assert_eq!(port.dequeue_one(Some(PATIENCE))?.completion_key, 1);
            port.register(Registration::remove(&socket))?;
        }
        Ok(())
    })
}

/// As in an emulator that leaves most of it out, or fills in nothing.
#[test]
fn d1_a_reset_connection_is_in_where_the_system_tells_nothing_of_it() -> io::Result<()> {
    on_a_thread(|| {
        refuse(&Refusal {
            call: libc::SYS_getsockopt,
            arguments: &[(1, libc::IPPROTO_TCP as u32), (2, libc::TCP_INFO as u32)],
            // The call succeeds, and nothing is written.
            error: 0,
        })?;
        let port = CompletionPort::new()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let filter = EventFilter::ALL;
        port.register(Registration::enable(
            &socket,
            1,
            filter,
            Trigger::ONESHOT | Trigger::EDGE,
        ))?;
        port.dequeue_one(Some(PATIENCE))?;
        let (peer, _) = listener.accept()?;
        socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO))?;
        drop(peer);
        port.register(Registration::enable(
            &socket,
            1,
            EventFilter::IN,
            Trigger::LEVEL,
        ))?;
        let events = port.dequeue_one(Some(PATIENCE))?.events();
        assert_eq!(events, Events::IN | Events::ERR);
        Ok(())
    })
}

/// From here on the system starts no thread for this one.
fn refuse_threads() -> io::Result<()> {
    [libc::SYS_clone, libc::SYS_clone3]
        .into_iter()
        .try_for_each(|call| {
            refuse(&Refusal {
                call,
                arguments: &[],
                error: libc::EAGAIN,
            })
        })
}

/// As where a process may have no more threads.
#[test]
fn o2_what_no_thread_can_be_started_for_is_not_said_to_be_closed() -> io::Result<()> {
    on_a_thread(|| {
        let port = Port::<UnixStream, u64>::builder()
            .file_driver(FileDriver::Threads)
            .build()?;
        let file = port.adopt_file(tempfile::tempfile()?)?;
        refuse_threads()?;
        let none = Error::Os(libc::EAGAIN);
        let Err(refused) = port.offload(|| 5) else {
            panic!("it has no thread");
        };
        assert_eq!(refused.reason(), none);
        assert_eq!(io::Error::from(refused).raw_os_error(), Some(libc::EAGAIN));
        let write = FileOperation::write_at(&file, b"x".to_vec(), 0);
        let refused = port.begin(write).expect_err("it has no thread");
        assert_eq!(refused.reason(), none);
        assert_eq!(&*refused.into_inner().into_buffer(), b"x");
        assert_eq!(port.operations(), 0);
        // Nothing that was refused is waited for.
        port.drain(PATIENCE);
        assert_eq!(port.worker(1).process(None), Err(Error::Closed));
        Ok(())
    })
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
}

/// One thread waits for events: it has begun, and does not count only because it is being started.
fn one_waits(port: &Port<UnixStream>) -> bool {
    // In this order: while another one counts, the one that waits may end.
    port.serving().waiting == 1 && port.snapshot().waiting == 1
}

/// Two clients of a port that serves: the handler of one waits until that of the other has run. `steps` gets them, and whether the
/// first handler runs.
fn serve_a_waiter_and_an_opener(
    concurrency: usize,
    serving: Serving,
    steps: impl FnOnce(&Port<UnixStream>, [UnixStream; 2], &AtomicBool) -> io::Result<()>,
) -> io::Result<()> {
    let port = Port::builder().concurrency(concurrency).build()?;
    let client = || -> io::Result<_> {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_read_timeout(Some(PATIENCE))?;
        port.arm(port.adopt(ours)?, Interest::IN);
        Ok(theirs)
    };
    let clients = [client()?, client()?];
    let (open, gate) = sync_channel(1);
    let gate = Mutex::new(gate);
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            port.serve(serving, |_, event: Event<UnixStream>| {
                let Event::Ready(mut client, _) = event else {
                    return;
                };
                let mut byte = [0];
                if client.read_exact(&mut byte).is_ok() {
                    match byte {
                        [b'w'] => {
                            waits.store(true, Ordering::SeqCst);
                            gate.lock().expect("no panic").recv().expect("it is opened");
                        }
                        _ => open.send(()).expect("one waits"),
                    }
                    let _ = client.write_all(&byte);
                }
            })
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| steps(&port, clients, &waits)));
        port.close();
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// A handler waits for the next one, and the thread for that is the last one.
#[test]
fn serving_goes_on_though_no_thread_can_be_started() -> io::Result<()> {
    if !is_alone("serving_goes_on_though_no_thread_can_be_started")? {
        return Ok(());
    }
    let serving = Serving::default().idle(Duration::from_millis(10));
    serve_a_waiter_and_an_opener(2, serving, |port, [mut waiter, mut opener], waits| {
        waiter.write_all(b"w")?;
        wait_until(|| waits.load(Ordering::SeqCst) && one_waits(port));
        for call in [libc::SYS_clone, libc::SYS_clone3] {
            refuse_to_all(&Refusal {
                call,
                arguments: &[],
                error: libc::EAGAIN,
            })?;
        }
        opener.write_all(b"o")?;
        opener.read_exact(&mut [0])?;
        assert!(port.serving().is_short);
        waiter.read_exact(&mut [0])
    })
}

/// All threads block, and then the shortage passes: nobody but the thread that has called `serve` can start one.
#[test]
fn serving_goes_on_beside_blocked_handlers_once_threads_can_be_started_again() -> io::Result<()> {
    let test = "serving_goes_on_beside_blocked_handlers_once_threads_can_be_started_again";
    if !is_alone(test)? {
        return Ok(());
    }
    // There is no room for the stack.
    const STACK: usize = 256 << 20;
    let serving = Serving::default().stack_size(STACK);
    serve_a_waiter_and_an_opener(1, serving, |port, [mut waiter, mut opener], waits| {
        wait_until(|| one_waits(port));
        let before = getrlimit(Resource::As);
        let current = Some(memory()? + STACK as u64 / 2);
        setrlimit(Resource::As, Rlimit { current, ..before })?;
        waiter.write_all(b"w")?;
        wait_until(|| waits.load(Ordering::SeqCst));
        assert!(port.serving().is_short);
        opener.write_all(b"o")?;
        setrlimit(Resource::As, before)?;
        opener.read_exact(&mut [0])?;
        waiter.read_exact(&mut [0])
    })
}

/// How many bytes of addresses the process has.
fn memory() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|it| it.strip_prefix("VmSize:"));
    let size = size.and_then(|it| it.trim().strip_suffix(" kB"));
    let kilobytes: u64 = size.and_then(|it| it.parse().ok()).expect("a size");
    Ok(kilobytes * 1024)
}

/// A helper thread is busy until what this returns is dropped, and then it says 1.
fn busy(port: &Port<UnixStream, u64>) -> io::Result<Sender<()>> {
    let (release, wait) = channel();
    let (begin, begun) = channel();
    port.offload(move || {
        begin.send(()).expect("the test waits");
        wait.recv().map_or(1, |()| 0)
    })?;
    begun.recv().expect("it begins");
    Ok(release)
}

/// A shortage passes: what was refused is begun again, and what was queued for threads that were busy goes on.
#[test]
fn o2_after_a_shortage_of_threads_work_goes_on() -> io::Result<()> {
    let port = Port::<UnixStream, u64>::builder()
        .file_driver(FileDriver::Threads)
        .build()?;
    let file = port.adopt_file(tempfile::tempfile()?)?;
    // The only thread for work is busy until the end.
    let release = busy(&port)?;
    let refused = thread::scope(|scope| {
        let without_threads = scope.spawn(|| {
            refuse_threads()?;
            port.offload(|| 2)?;
            let write = FileOperation::write_at(&file, b"x".to_vec(), 0);
            let refused = port.begin(write).expect_err("it has no thread");
            assert_eq!(refused.reason(), Error::Os(libc::EAGAIN));
            io::Result::Ok(refused.into_inner())
        });
        without_threads.join().expect("it does not panic")
    })?;
    assert_eq!(port.helper_threads(), 1);

    // This thread is refused nothing.
    port.begin(refused)?;
    port.offload(|| 3)?;
    let mut worker = port.worker(8);
    let (mut written, mut messages) = (0, Vec::new());
    let begin = Instant::now();
    while written + messages.len() < 3 {
        assert!(begin.elapsed() < PATIENCE, "{written}, {messages:?}");
        worker.process(Some(PATIENCE))?;
        while let Some(event) = worker.take() {
            match event {
                Event::Completed(completion) => written += completion.result?,
                Event::Message(message) => messages.push(message),
                event => panic!("{event:?}"),
            }
        }
    }
    messages.sort_unstable();
    assert_eq!((written, &messages[..]), (1, &[2, 3][..]));
    drop(release);
    worker.process(Some(PATIENCE))?;
    assert!(matches!(worker.take(), Some(Event::Message(1))));
    Ok(())
}

/// No thread was started for two that wait for each other: who takes the first starts one for the second.
#[test]
fn o2_a_helper_starts_the_thread_that_was_refused_before() -> io::Result<()> {
    let port = Port::<UnixStream, u64>::with_messages()?;
    let release = busy(&port)?;
    let both = Arc::new(Barrier::new(2));
    thread::scope(|scope| {
        let without_threads = scope.spawn(|| {
            refuse_threads()?;
            for number in [2, 3] {
                let both = Arc::clone(&both);
                port.offload(move || {
                    both.wait();
                    number
                })?;
            }
            io::Result::Ok(())
        });
        without_threads.join().expect("it does not panic")
    })?;
    assert_eq!(port.helper_threads(), 1);
    drop(release);
    let mut worker = port.worker(8);
    let mut messages = Vec::new();
    while messages.len() < 3 {
        assert_ne!(worker.process(Some(PATIENCE))?, 0, "{messages:?}");
        while let Some(Event::Message(message)) = worker.take() {
            messages.push(message);
        }
    }
    messages.sort_unstable();
    assert_eq!(messages, [1, 2, 3]);
    Ok(())
}

/// The ring's thread is there before.
#[test]
fn o3_a_ring_needs_no_thread_more() -> io::Result<()> {
    if FileDriver::IoUring.probe().is_err() {
        eprintln!("skipped: there is no ring here");
        return Ok(());
    }
    on_a_thread(|| {
        let port = Port::<UnixStream>::new()?;
        let file = port.adopt_file(tempfile::tempfile()?)?;
        refuse_threads()?;
        let mut worker = port.worker(8);
        for _ in 0..5000 {
            worker.begin(FileOperation::read_at(&file, vec![0; 4096], 0))?;
        }
        for _ in 0..5000 {
            while port.operations() > 0 && worker.process(Some(PATIENCE))? == 0 {}
            assert!(matches!(worker.take(), Some(Event::Completed(_))));
        }
        assert_eq!(port.operations(), 0);
        Ok(())
    })
}

/// Of what the kernel makes up a read may never end, and closing waits for those that have begun.
#[test]
fn e7_helper_threads_read_into_the_callers_memory() -> io::Result<()> {
    on_a_thread(|| {
        refuse(&Refusal {
            call: libc::SYS_io_uring_setup,
            arguments: &[],
            error: libc::EPERM,
        })?;
        let port = CompletionPort::new()?;
        let file = tempfile::tempfile()?;
        let mut overlapped = Overlapped::new(0);
        // Nothing is at a null pointer, and nothing is read there.
        let none = std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0);
        // SAFETY: all of it stays until the port is closed.
        unsafe { port.read_at(&file, none, 1, &raw mut overlapped)? };
        let entry = port.dequeue_one(Some(PATIENCE))?;
        assert_eq!((entry.completion_key, entry.transferred), (1, 0));
        assert_eq!(overlapped.result()?, 0);
        let made_up = File::open("/proc/self/status")?;
        // SAFETY: as above.
        let refused = unsafe { port.read_at(&made_up, none, 1, &raw mut overlapped) };
        assert_eq!(refused, Err(Error::Os(libc::EOPNOTSUPP)));
        assert!(!overlapped.is_pending());
        Ok(())
    })
}
