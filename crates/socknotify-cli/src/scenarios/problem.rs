//! What went wrong, in words for the person who runs the program.

use std::{fmt, io};

use super::plan::Plan;
use crate::descriptors::{self, Shortage};

#[derive(Debug)]
pub(crate) struct Problem(String);

impl Problem {
    pub(crate) fn new(text: impl fmt::Display) -> Self {
        Problem(text.to_string())
    }

    /// A socket could not be made.
    pub(crate) fn no_socket(what: impl fmt::Display, error: &io::Error, plan: &Plan) -> Self {
        if descriptors::are_used_up(error) {
            let shortage = Shortage::now(plan.descriptors());
            Problem::new(format_args!("{what}: {error}; {shortage}"))
        } else {
            Problem::new(format_args!("{what}: {error}"))
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

/// Says what was being done when an error came.
pub(crate) trait Context<T> {
    fn context(self, what: impl fmt::Display) -> Result<T, Problem>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Problem> {
        self.map_err(|error| Problem::new(format_args!("{what}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Scenario;
    use super::*;
    use crate::system;

    fn told_of(code: i32) -> String {
        let plan = Plan::sample(Scenario::MultiThreadedTcp, 1000);
        let error = io::Error::from_raw_os_error(code);
        Problem::no_socket("accept", &error, &plan).to_string()
    }

    #[test]
    fn running_out_of_descriptors_is_told_with_the_number_needed() {
        assert!(told_of(system::USED_UP[0]).contains("2037 file descriptors are needed"));
        assert!(!told_of(1).contains("file descriptors"));
    }
}
