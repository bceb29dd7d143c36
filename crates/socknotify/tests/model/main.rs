//! The port against a model of its contract.
//!
//! Random sequences of operations are done to real ports with real sockets, and to a model which says
//! for each packet whether it has to come, may come, or may not. A sequence that goes wrong is made
//! as short as possible, and shown with the clause that it breaks.
//!
//! As a test this runs some cases that are always the same. For more of them, by hand:
//!
//! ```text
//! SOCKNOTIFY_MODEL_CASES=200000 SOCKNOTIFY_MODEL_SEED=7 \
//!     cargo test --release -p socknotify --test model
//! ```
//!
//! `SOCKNOTIFY_MODEL_STEPS` sets how many operations a case has at the most.

#![cfg(unix)]
#![cfg(target_os = "linux")]

mod conditions;
mod loopback;
mod model;
mod operations;
#[path = "../support/patience.rs"]
mod patience;

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use socknotify::Backend;

use crate::operations::{World, cases};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {value}")),
        Err(_) => default,
    }
}

fn runner(cases: u64, seed: u64) -> TestRunner {
    let config = Config {
        cases: u32::try_from(cases).expect("too many cases"),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn the_port_does_what_the_model_says() {
    let count = setting("SOCKNOTIFY_MODEL_CASES", 5_000);
    let seed = setting("SOCKNOTIFY_MODEL_SEED", 1);
    let steps = setting("SOCKNOTIFY_MODEL_STEPS", 40) as usize;
    for &backend in Backend::ALL {
        if backend.probe().is_err() {
            continue;
        }
        let world = RefCell::new(World::new(backend).expect("no ports or no loopback"));
        let outcome = runner(count, seed).run(&cases(steps), |case| {
            let outcome = world.borrow_mut().run(&case);
            outcome.map_err(|error| TestCaseError::fail(error.to_string()))
        });
        if let Err(failure) = outcome {
            panic!("{backend}, seed {seed}: {failure}");
        }
    }
}
