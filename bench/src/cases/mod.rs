//! The cases, one file for each question.

mod accept;
mod blocking;
mod churn;
mod deadlines;
mod echo;
mod files;
mod files_http;
mod http;
mod idle;
mod latency;
mod load;
mod lookup;
mod memory;
mod pipelining;
mod post;
mod ready;
mod saturated;
mod stalls;

use std::io;

use crate::case::Case;

pub(crate) static ALL: [&Case; 28] = [
    &blocking::SLEEP,
    &blocking::LOCK,
    &blocking::FILE,
    &blocking::BRIEF,
    &blocking::COMPUTE,
    &blocking::LOOKUP,
    &stalls::BURST,
    &stalls::COMPUTE,
    &stalls::WAITS_FOR_NEXT,
    &stalls::BYSTANDERS,
    &stalls::TOGETHER,
    &ready::ONE_SHOT,
    &ready::EDGE,
    &ready::LEVEL,
    &saturated::CASE,
    &pipelining::CASE,
    &echo::CASE,
    &echo::ONE_THREAD,
    &http::CASE,
    &latency::CASE,
    &post::CASE,
    &churn::CASE,
    &accept::CASE,
    &idle::CASE,
    &memory::CASE,
    &deadlines::CASE,
    &files::CASE,
    &files_http::CASE,
];

/// The cases of these names, all if there are none. `ready` means one-shot, edge and level.
pub(crate) fn named(names: &[String]) -> io::Result<Vec<&'static Case>> {
    let mut chosen = Vec::new();
    for name in names {
        let is_meant =
            |case: &&&Case| case.name == name || name == "ready" && ready::ALL.contains(&case.name);
        let before = chosen.len();
        chosen.extend(ALL.iter().filter(is_meant).copied());
        if chosen.len() == before {
            return Err(io::Error::other(format!("there is no case {name:?}")));
        }
    }
    match names {
        [] => Ok(ALL.to_vec()),
        _ => Ok(chosen),
    }
}
