//! The C interface as those who use it see it: installed, and compiled against with the system's
//! compilers.
#![cfg(unix)]

mod header;
mod install;
mod packaging;
mod programs;
