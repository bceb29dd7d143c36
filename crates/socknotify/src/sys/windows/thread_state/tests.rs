use super::*;
use crate::sys::thread_state::tests::{Subject, stands_still, wait_until};

fn look_at_times(subject: &Subject) -> Look {
    let handle = subject.state.thread.handle.as_ref().expect("a handle");
    times(handle).map_or(Look::Unknown, Look::Time)
}

#[test]
fn without_cycles_the_times_of_a_thread_that_computes_grow() {
    let subject = Subject::computing();
    let Look::Time(first) = look_at_times(&subject) else {
        panic!("no times");
    };
    wait_until("later", || match look_at_times(&subject) {
        Look::Time(time) => time > first,
        look => panic!("{look:?} after a time"),
    });
    subject.end();
}

#[test]
fn without_cycles_the_times_of_a_thread_that_sleeps_stand_still() {
    let subject = Subject::sleeping();
    wait_until("still", || stands_still(|| look_at_times(&subject)));
    subject.end();
}

/// A system without cycles must say so: ones that never grow would make every thread seem blocked.
#[test]
fn the_cycles_of_a_thread_that_computes_grow_if_there_are_any() {
    let subject = Subject::computing();
    let now = || cycles(subject.state.thread.handle.as_ref().expect("a handle"));
    let first = now();
    println!("cycles: {first:?}");
    if first.is_some() {
        wait_until("later", || now() > first);
    }
    subject.end();
}
