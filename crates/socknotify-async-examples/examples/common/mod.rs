//! What the examples begin with.

use std::future::Future;
use std::io;

use socknotify_async::{Runtime, TcpListener};

/// Serves on the address of the first argument, or on a free port of this machine.
pub fn main<F>(serve: impl FnOnce(TcpListener) -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<()>>,
{
    Runtime::new()?.block_on(async {
        let address = std::env::args().nth(1);
        let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
        println!("serving on {}", listener.get_ref().local_addr()?);
        serve(listener).await
    })
}
