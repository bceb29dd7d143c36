//! What the server's port owns.

use std::net::TcpListener;

use super::client::Client;
use crate::system::{AsSocket, BorrowedSocket};

#[derive(Debug)]
pub(crate) enum Connection {
    Listener(TcpListener),
    Client(Client),
}

impl Connection {
    fn socket(&self) -> &dyn AsSocket {
        match self {
            Connection::Listener(listener) => listener,
            Connection::Client(client) => client,
        }
    }
}

impl AsSocket for Connection {
    #[cfg(unix)]
    fn as_fd(&self) -> BorrowedSocket<'_> {
        self.socket().as_fd()
    }

    #[cfg(windows)]
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket().as_socket()
    }
}
