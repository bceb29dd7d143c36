//! The contract, clause by clause, for every backend that this machine has.
//!
//! A test carries the number of its clause. Each is a function of a backend, and becomes one test for
//! each of them. Where the contract leaves something open, a comment says so, and the test holds what
//! users would expect.

#[macro_use]
extern crate socknotify_test_macros;

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod document;
mod layers;

mod a_association;
mod b_operations;
mod c_edges;
mod c_levels;
mod c_triggers;
mod d_conditions;
mod e_dequeuing;
mod e_fairness;
#[cfg(unix)]
mod e_files;
mod e_order;
mod f_limit;
mod f_permits;
mod f_slow;
mod f_threads;
mod g_duplicates;
mod g_lifetime;
mod g_ports;
mod x_extensions;
// The other loop is epoll's.
#[cfg(target_os = "linux")]
mod x_watched;

#[test]
fn at_least_one_backend_works_here() {
    assert_ne!(support::backends().count(), 0);
}
