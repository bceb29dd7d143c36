//! What the C interface costs over the Rust one: the same calls through both, in turn.
//!
//! Every call arms the one-shot registrations that the call before has delivered, and takes as many
//! again; the sockets are ready all the time. Nothing else is done, so a program sees less of the
//! difference than this shows.
//!
//! ```sh
//! cargo bench -p socknotify-c
//! ```

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    unix::main()
}

// The C interface is empty elsewhere.
#[cfg(not(unix))]
fn main() {}

#[cfg(unix)]
mod unix {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;
    use std::ptr;
    use std::time::{Duration, Instant};
    use std::{array, io};

    use socknotify::{CompletionPort, Entry, EventFilter, Registration, Trigger};
    use socknotify_c::caller::{OverlappedEntry, SockNotifyRegistration};
    use socknotify_c::{code, sn_close_port, sn_create_port, sn_process};

    const ONESHOT: Trigger = Trigger::ONESHOT.union(Trigger::LEVEL);
    const ROUNDS: usize = 41;
    const CALLS: u32 = 20_000;

    /// Sockets that have something to receive. Nobody receives it.
    struct Ready<const N: usize> {
        sockets: [UnixDatagram; N],
    }

    impl<const N: usize> Ready<N> {
        fn new() -> io::Result<Self> {
            let sockets = (0..N)
                .map(|_| {
                    let (here, there) = UnixDatagram::pair()?;
                    there.send(b"ready")?;
                    Ok(here)
                })
                .collect::<io::Result<Vec<_>>>()?;
            let sockets = sockets.try_into().expect("as many as were made");
            Ok(Ready { sockets })
        }
    }

    /// Time for one call through the Rust interface.
    fn rust_layer<const N: usize>(ready: &Ready<N>) -> io::Result<Duration> {
        let port = CompletionPort::new()?;
        let enable =
            |key: usize| Registration::enable(&ready.sockets[key], key, EventFilter::IN, ONESHOT);
        let mut batch: Vec<_> = (0..N).map(enable).collect();
        let mut entries = [Entry::default(); N];
        let begin = Instant::now();
        for _ in 0..CALLS {
            let taken = port.process(&mut batch, &mut entries, None)?;
            assert!(
                batch
                    .iter()
                    .all(|registration| registration.result().is_ok())
            );
            batch.clear();
            batch.extend(taken.iter().map(|entry| enable(entry.completion_key)));
        }
        Ok(begin.elapsed() / CALLS)
    }

    /// Time for one call through the C interface.
    fn c_layer<const N: usize>(ready: &Ready<N>) -> Duration {
        let enable = |key: usize| SockNotifyRegistration {
            socket: ready.sockets[key].as_raw_fd() as usize,
            completion_key: key,
            event_filter: EventFilter::IN.bits(),
            operation: socknotify::Operation::ENABLE.bits(),
            trigger_flags: ONESHOT.bits(),
            registration_result: 0,
        };
        let mut port = ptr::null_mut();
        // SAFETY: `port` can be written to.
        assert_eq!(unsafe { sn_create_port(0, &mut port) }, code::SUCCESS);
        let mut batch: [_; N] = array::from_fn(enable);
        let mut count = N;
        let mut entries = [OverlappedEntry::default(); N];
        let begin = Instant::now();
        for _ in 0..CALLS {
            let mut received = 0;
            let (registrations, room) = (batch.as_mut_ptr(), entries.as_mut_ptr());
            // SAFETY: the arrays have at least so many elements.
            let outcome = unsafe {
                sn_process(
                    port,
                    count as u32,
                    registrations,
                    u32::MAX,
                    N as u32,
                    room,
                    &mut received,
                )
            };
            assert_eq!(outcome, code::SUCCESS);
            assert!(
                batch[..count]
                    .iter()
                    .all(|registration| registration.registration_result == code::SUCCESS)
            );
            count = received as usize;
            for (registration, entry) in batch.iter_mut().zip(&entries[..count]) {
                *registration = enable(entry.completion_key);
            }
        }
        let time = begin.elapsed() / CALLS;
        assert_eq!(sn_close_port(port), code::SUCCESS);
        time
    }

    fn median(times: &mut [Duration]) -> f64 {
        times.sort_unstable();
        times[times.len() / 2].as_nanos() as f64
    }

    fn compare<const N: usize>() -> io::Result<()> {
        let ready = Ready::<N>::new()?;
        let mut rust = Vec::with_capacity(ROUNDS);
        let mut c = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            rust.push(rust_layer(&ready)?);
            c.push(c_layer(&ready));
        }
        let (rust, c) = (median(&mut rust), median(&mut c));
        println!(
            "{N:>7} {rust:>10.0} {c:>10.0} {:>+9.1} %",
            (c / rust - 1.0) * 100.0
        );
        Ok(())
    }

    pub(crate) fn main() -> io::Result<()> {
        println!("one-shot: nanoseconds for each call, median of {ROUNDS} rounds");
        println!(
            "{:>7} {:>10} {:>10} {:>11}",
            "at once", "Rust", "C", "difference"
        );
        compare::<1>()?;
        compare::<3>()?;
        compare::<16>()
    }
}
