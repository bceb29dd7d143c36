//! Traits of other crates for our streams, by those of `futures-io`.

/// For every stream, for references, and for halves. `$buffer` is what the trait reads into.
macro_rules! impl_streams {
    ($read:path, $buffer:ty, $write:path) => {
        const _: () = {
            use std::io::{Result, IoSlice};
            use std::pin::Pin;
            use std::task::{Context, Poll};

            use futures_io::{AsyncRead, AsyncWrite};

            use $crate::io::{AsSource, poll_read_through};
            use $crate::streams::{impl_read, impl_write};
            use $crate::{Async, ReadHalf, TcpStream, WriteHalf};

            impl_read! { $read, $buffer, (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (ReadHalf<S>, S) }
            impl_write! { $write, (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (WriteHalf<S>, S) }
            #[cfg(unix)]
            impl_read! { $read, $buffer, ($crate::UnixStream, ) (&'a $crate::UnixStream, 'a) }
            #[cfg(unix)]
            impl_write! { $write, ($crate::UnixStream, ) (&'a $crate::UnixStream, 'a) }
        };
    };
}
pub(crate) use impl_streams;

macro_rules! impl_read {
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
pub(crate) use impl_read;

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
