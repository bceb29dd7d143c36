//! The server as clients and operators meet it: real processes on loopback.

// It looks at the server's descriptors and memory, which `/proc` tells.
#[cfg(target_os = "linux")]
mod abuse;
#[cfg(target_os = "linux")]
mod access_log;
mod clients;
mod datagrams;
mod drain;
mod files;
mod http;
mod program;
mod streams;
#[cfg(target_os = "linux")]
mod stuck;
#[path = "../support/mod.rs"]
mod support;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;
#[cfg(target_os = "linux")]
mod terminal;
mod timeouts;
#[cfg(unix)]
mod unix_sockets;
