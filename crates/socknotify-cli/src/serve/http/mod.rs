//! HTTP/1.1, as far as a server needs it that has one small answer, or files.
//!
//! No sockets here: it takes bytes and returns answers.

mod answer;
mod conditions;
mod conversation;
mod file;
mod host;
mod listing;
mod range;
mod request;

pub(crate) use answer::Told;
pub(crate) use conversation::{Conversation, Ending};
pub(crate) use file::{Answer, FileRequest, Found, Place, is_hidden};
pub(crate) use listing::{Listing, Page};
pub(crate) use request::Site;
