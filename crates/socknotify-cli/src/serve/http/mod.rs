//! HTTP/1.1, as far as a server needs it that has one small answer.
//!
//! Nothing here knows of sockets: bytes come in, answers come out.

mod answer;
mod conversation;
mod request;

pub(crate) use conversation::{Conversation, Ending};
