//! The traits of [`hyper::rt`], for hyper 1 and what is built on it.
//!
//! [`TcpStream`](crate::TcpStream), [`UnixStream`](crate::UnixStream) and [`Async`](crate::Async) are its streams.
//!
//! # Examples
//!
//! ```ignore
//! use std::{convert::Infallible, time::Duration};
//! use hyper::server::conn::http1;
//! use hyper::service::service_fn;
//! use hyper::{Request, Response, body::Incoming};
//! use socknotify_async::{Runtime, TcpListener, hyper_rt::Timer, sleep, spawn};
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::new()?.block_on(async {
//!     let listener = TcpListener::bind("127.0.0.1:8080")?;
//!     loop {
//!         let Ok((stream, _)) = listener.accept().await else {
//!             // Out of descriptors, say.
//!             sleep(Duration::from_millis(50)).await;
//!             continue;
//!         };
//!         spawn(async move {
//!             let service = service_fn(|_: Request<Incoming>| async {
//!                 // This may block.
//!                 Ok::<_, Infallible>(Response::new("hello".to_owned()))
//!             });
//!             let mut server = http1::Builder::new();
//!             server.timer(Timer).serve_connection(stream, service).await
//!         });
//!     }
//! })
//! # }
//! ```

#[cfg(feature = "serve")]
mod serve;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use hyper::rt;

use crate::{Handle, Sleep};

#[cfg(feature = "serve")]
pub use serve::{Peer, Serve, serve};

/// Has a function's future run on the current runtime, wherever the function is called.
///
/// For callbacks that another runtime runs, such as that of axum's `WebSocketUpgrade::on_upgrade`, which is a task of tokio's:
/// `upgrade.on_upgrade(here(exchange))`. There nothing may block, and sockets and timers of this crate panic.
///
/// If the runtime has ended, the future is dropped.
///
/// # Panics
///
/// Where there is no runtime.
#[track_caller]
pub fn here<A, R>(
    function: impl FnOnce(A) -> R,
) -> impl FnOnce(A) -> Pin<Box<dyn Future<Output = ()> + Send>>
where
    R: Future<Output = ()> + Send + 'static,
{
    let runtime = Handle::current();
    move |argument| {
        let task = runtime.spawn(function(argument));
        Box::pin(async { drop(task.await) })
    }
}

/// Spawns hyper's tasks on the current runtime.
///
/// # Panics
///
/// Where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F> rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[track_caller]
    fn execute(&self, future: F) {
        drop(Handle::current().spawn(future));
    }
}

/// Gives hyper the time of the current runtime.
///
/// # Panics
///
/// Where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer;

impl rt::Timer for Timer {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(crate::sleep(time))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(crate::sleep_until(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(sleep) => sleep.get_mut().reset(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

impl rt::Sleep for Sleep {}

macro_rules! memory {
    ($buffer:ident) => {
        // SAFETY: nothing is written to it but what is read, which is initialized.
        #[allow(unsafe_code, reason = "hyper has no other way to say it")]
        unsafe {
            $buffer.as_mut()
        }
    };
}

macro_rules! advance {
    ($buffer:ident, $count:ident) => {
        // SAFETY: what was read is initialized.
        #[allow(unsafe_code, reason = "hyper has no other way to say it")]
        unsafe {
            $buffer.advance($count)
        }
    };
}

crate::streams::impl_streams!(rt::Read, rt::ReadBufCursor<'_>, memory, advance, rt::Write);
