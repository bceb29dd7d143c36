//! What the server's port owns.

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};

use super::client::Client;

#[derive(Debug)]
pub(crate) enum Connection {
    Listener(TcpListener),
    Client(Client),
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Connection::Listener(listener) => listener.as_fd(),
            Connection::Client(client) => client.as_fd(),
        }
    }
}
