//! tokio's `AsyncRead` and `AsyncWrite`, which many crates ask of a stream: the traits, and nothing else of tokio.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io as tokio;
use futures_io::{AsyncRead, AsyncWrite};

use crate::io::poll_read_through;
use crate::{Async, ReadHalf, TcpStream, WriteHalf};

macro_rules! impl_read {
    ($(($type:ty, $($bounds:tt)*))*) => {$(
        impl<$($bounds)*> tokio::AsyncRead for $type
        where
            $type: AsyncRead,
        {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut tokio::ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                poll_read_through(self, cx, buffer.remaining(), |bytes| buffer.put_slice(bytes))
            }
        }
    )*};
}

macro_rules! impl_write {
    ($(($type:ty, $($bounds:tt)*))*) => {$(
        impl<$($bounds)*> tokio::AsyncWrite for $type
        where
            $type: AsyncWrite,
        {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write(self, cx, bytes)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write_vectored(self, cx, buffers)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(self, cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_close(self, cx)
            }
        }
    )*};
}

#[cfg(unix)]
use std::os::fd::AsFd as AsSource;
#[cfg(windows)]
use std::os::windows::io::AsSocket as AsSource;

impl_read! { (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (ReadHalf<S>, S) }
impl_write! { (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (WriteHalf<S>, S) }
#[cfg(unix)]
impl_read! { (crate::UnixStream, ) (&'a crate::UnixStream, 'a) }
#[cfg(unix)]
impl_write! { (crate::UnixStream, ) (&'a crate::UnixStream, 'a) }
