//! The two halves of a stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

/// The half of a stream that reads. The stream is closed when both halves are dropped.
#[derive(Debug)]
pub struct ReadHalf<S>(Arc<S>);

/// The half of a stream that writes. Closing it, by the traits, shuts down this direction; dropping it does not.
#[derive(Debug)]
pub struct WriteHalf<S>(Arc<S>);

pub(super) fn split<S>(stream: S) -> (ReadHalf<S>, WriteHalf<S>) {
    let stream = Arc::new(stream);
    (ReadHalf(Arc::clone(&stream)), WriteHalf(stream))
}

impl<S> ReadHalf<S> {
    /// The whole stream again.
    ///
    /// # Errors
    ///
    /// Returns the halves if they are of two streams.
    pub fn reunite(self, write: WriteHalf<S>) -> Result<S, (Self, WriteHalf<S>)> {
        if !Arc::ptr_eq(&self.0, &write.0) {
            return Err((self, write));
        }
        drop(write);
        Arc::try_unwrap(self.0).map_err(|_| unreachable!("there are two halves of each stream"))
    }
}

impl<S> AsRef<S> for ReadHalf<S> {
    fn as_ref(&self) -> &S {
        &self.0
    }
}

impl<S> AsRef<S> for WriteHalf<S> {
    fn as_ref(&self) -> &S {
        &self.0
    }
}

impl<S> AsyncRead for ReadHalf<S>
where
    for<'a> &'a S: AsyncRead,
{
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_read(cx, buffer)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_read_vectored(cx, buffers)
    }
}

impl<S> AsyncWrite for WriteHalf<S>
where
    for<'a> &'a S: AsyncWrite,
{
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write_vectored(cx, buffers)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_close(cx)
    }
}
