//! The library in a simulation: thousands of runs, each with another order of threads, other faults, and other operations, as its
//! seed says. What a rule of the contract forbids fails, and so does a run that does not end.
//!
//! ```text
//! SOCKNOTIFY_SEEDS=100000 cargo test --manifest-path crates/socknotify-simulation/Cargo.toml
//! SOCKNOTIFY_SEED=4711 cargo test --manifest-path crates/socknotify-simulation/Cargo.toml keys
//! ```
//!
//! The second one runs one seed of one test. Threads, locks, atomics and time are the simulation's; descriptors are the kernel's, Unix
//! sockets, which do nothing by themselves.

#![cfg(target_os = "linux")]

mod connections;
mod fairness;
mod keys;
mod registrations;
mod serving;

use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use simulated_std::simulation::{self, Faults, Settings};
use socknotify_simulation::interface;

/// Numbers for the operations of a run, which are those of its seed.
fn random(below: usize) -> usize {
    simulation::random(below as u64) as usize
}

fn one_in(count: usize) -> bool {
    random(count) == 0
}

fn pick<T: Copy>(values: &[T]) -> T {
    values[random(values.len())]
}

fn microseconds(most: usize) -> Duration {
    Duration::from_micros(random(most) as u64)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("the number of a seed, or of seeds"))
}

/// Where the next descriptor would be: further on, if some were left open.
fn next_descriptor() -> i32 {
    std::fs::File::open("/dev/null").map_or(-1, |file| file.as_raw_fd())
}

/// Run a scenario with many seeds: as many as this, or as the environment says.
fn explore(name: &str, seeds: u64, is_fair: bool, scenario: fn()) {
    // Descriptors are counted: so one test runs at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The other call is none of rustix.
    interface::count_milliseconds();
    let settings = |seed| Settings {
        seed,
        processors: 2,
        within: Duration::from_secs(60),
        is_fair,
        is_told: number("SOCKNOTIFY_TELL").is_some(),
        faults: Faults::default(),
    };
    let run = |seed| {
        simulation::run(settings(seed), scenario).unwrap_or_else(|why| {
            panic!("{why}\nseed {seed}; to run it again: SOCKNOTIFY_SEED={seed} cargo test {name}")
        })
    };
    // The first one makes what the process keeps.
    let seeds = match number("SOCKNOTIFY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("SOCKNOTIFY_SEEDS").unwrap_or(seeds) + 1,
    };
    let first = seeds.start;
    run(first);
    let descriptor = next_descriptor();
    let digest = run(first);
    assert_eq!(run(first), digest, "seed {first} is not the same run again");
    for seed in seeds.skip(1) {
        run(seed);
        assert_eq!(
            next_descriptor(),
            descriptor,
            "seed {seed} leaves descriptors open"
        );
    }
}
