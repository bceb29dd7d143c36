//! Traits of other crates for our streams, by those of `futures-io`, or by reading where nothing is initialized.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::AsyncRead;

/// The most that one read takes by way of a buffer.
const MOST: usize = 32 * 1024;

/// Reads into memory that need not be initialized. What it says that it has read is, from the beginning.
pub(crate) trait ReadInto {
    fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        memory: &mut [MaybeUninit<u8>],
    ) -> Poll<io::Result<usize>>;
}

impl<S: ReadInto> ReadInto for &S {
    #[inline]
    fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        memory: &mut [MaybeUninit<u8>],
    ) -> Poll<io::Result<usize>> {
        S::poll_read_into(self, cx, memory)
    }
}

impl<S: ReadInto> ReadInto for crate::ReadHalf<S> {
    #[inline]
    fn poll_read_into(
        &self,
        cx: &mut Context<'_>,
        memory: &mut [MaybeUninit<u8>],
    ) -> Poll<io::Result<usize>> {
        self.as_ref().poll_read_into(cx, memory)
    }
}

/// Reads by way of a buffer of this thread, which is initialized.
pub(crate) fn poll_read_through(
    stream: Pin<&mut impl AsyncRead>,
    cx: &mut Context<'_>,
    room: usize,
    put: impl FnOnce(&[u8]),
) -> Poll<io::Result<()>> {
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let room = room.min(MOST);
    // What reads may run any code, and this again. A thread that ends may have dropped it.
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    if buffer.len() < room {
        buffer.resize(room, 0);
    }
    let read = stream.poll_read(cx, &mut buffer[..room]);
    if let Poll::Ready(Ok(count)) = read {
        put(&buffer[..count]);
    }
    let _ = BUFFER.try_with(|it| it.set(buffer));
    Poll::Ready(ready!(read).map(drop))
}

/// For every stream, for references, and for halves. `$buffer` is what the trait reads into; `$memory!` is its memory without
/// bytes, and `$advance!` says that so many of them are initialized and filled.
macro_rules! impl_streams {
    ($read:path, $buffer:ty, $memory:ident, $advance:ident, $write:path) => {
        const _: () = {
            use std::io::{Result, IoSlice};
            use std::pin::Pin;
            use std::task::{Context, Poll, ready};

            use futures_io::{AsyncRead, AsyncWrite};

            use $crate::io::AsSource;
            use $crate::streams::{ReadInto, impl_read, impl_read_through, impl_write, poll_read_through};
            use $crate::{Async, File, ReadHalf, TcpStream, WriteHalf};
            #[cfg(unix)]
            use $crate::UnixStream;

            impl_read! { $read, $buffer, $memory, $advance, (TcpStream, ) (&TcpStream, ) (ReadHalf<S>, S: ReadInto) }
            impl_read_through! { $read, $buffer, (Async<T>, T: AsSource) (File, ) }
            impl_write! { $write, (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (WriteHalf<S>, S) }
            #[cfg(unix)]
            impl_read! { $read, $buffer, $memory, $advance, (UnixStream, ) (&UnixStream, ) }
            #[cfg(unix)]
            impl_write! { $write, (UnixStream, ) (&'a UnixStream, 'a) }
        };
    };
}
pub(crate) use impl_streams;

macro_rules! impl_read {
    ($trait:path, $buffer:ty, $memory:ident, $advance:ident, $(($type:ty, $($bounds:tt)*))*) => {$(
        impl<$($bounds)*> $trait for $type {
            #[allow(unused_mut, reason = "it may be a reference")]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                mut buffer: $buffer,
            ) -> Poll<Result<()>> {
                let count = ready!(self.poll_read_into(cx, $memory!(buffer)))?;
                $advance!(buffer, count);
                Poll::Ready(Ok(()))
            }
        }
    )*};
}
pub(crate) use impl_read;

macro_rules! impl_read_through {
    ($trait:path, $buffer:ty, $(($type:ty, $($bounds:tt)*))*) => {$(
        impl<$($bounds)*> $trait for $type
        where
            $type: AsyncRead,
        {
            #[allow(unused_mut, reason = "it may be a reference")]
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                mut buffer: $buffer,
            ) -> Poll<Result<()>> {
                poll_read_through(self, cx, buffer.remaining(), |bytes| buffer.put_slice(bytes))
            }
        }
    )*};
}
pub(crate) use impl_read_through;

macro_rules! impl_write {
    ($trait:path, $(($type:ty, $($bounds:tt)*))*) => {$(
        impl<$($bounds)*> $trait for $type
        where
            $type: AsyncWrite,
        {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<Result<usize>> {
                AsyncWrite::poll_write(self, cx, bytes)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<Result<usize>> {
                AsyncWrite::poll_write_vectored(self, cx, buffers)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                AsyncWrite::poll_flush(self, cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                AsyncWrite::poll_close(self, cx)
            }
        }
    )*};
}
pub(crate) use impl_write;
