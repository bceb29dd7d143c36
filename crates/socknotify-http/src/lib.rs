#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod body;
mod connection;
mod date;
mod file;
mod head;
mod limits;
mod log;
mod response;
mod server;
mod signals;
mod wire;

pub use body::RequestBody;
pub use file::file_response;
pub use http;
pub use limits::Limits;
pub use response::{ResponseBody, Upgraded};
#[cfg(feature = "tls")]
pub use rustls;
pub use server::{Handle, Listener, Metrics, Server};
pub use socknotify::owned::Serving;

/// A request: its method, target and headers, and a body to read. The types are those of the `http` crate.
pub type Request<'a> = http::Request<RequestBody<'a>>;

/// An answer. Without more than a body it has status 200.
pub type Response = http::Response<ResponseBody>;
