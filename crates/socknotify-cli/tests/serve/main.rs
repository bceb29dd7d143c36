//! The server and the load generator as clients and operators meet them: real processes on loopback.

mod abuse;
mod clients;
mod drain;
mod http;
mod load;
mod program;
mod streams;
mod timeouts;
