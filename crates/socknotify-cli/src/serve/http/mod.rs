//! HTTP/1.1, as far as a server needs it that has one small answer, or files.
//!
//! No sockets here: it takes bytes and returns answers.

mod answer;
mod conversation;
mod file;
mod range;
mod request;

pub(crate) use conversation::{Conversation, Ending};
pub(crate) use file::{Answer, FileRequest, Found};
pub(crate) use request::Site;
