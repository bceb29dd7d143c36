//! Traits of other crates for our streams, by those of `futures-io`.

/// Less room than this is read into by way of a buffer of the thread: to copy what comes costs less than to initialize it.
pub(crate) const SMALL: usize = 32 * 1024;
/// The most that one read takes.
pub(crate) const LARGE: usize = 256 * 1024;

/// For every stream, for references, and for halves. `$buffer` is what the trait reads into, and `$advance!` says that so many
/// initialized bytes of it are filled.
macro_rules! impl_streams {
    ($read:path, $buffer:ty, $advance:ident, $write:path) => {
        const _: () = {
            use std::io::{Result, IoSlice};
            use std::pin::Pin;
            use std::task::{Context, Poll};

            use futures_io::{AsyncRead, AsyncWrite};

            use $crate::io::{AsSource, poll_read_through};
            use $crate::streams::{LARGE, SMALL, impl_read, impl_write};
            use $crate::{Async, ReadHalf, TcpStream, WriteHalf};

            impl_read! { $read, $buffer, $advance, (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (ReadHalf<S>, S) ($crate::File, ) }
            impl_write! { $write, (TcpStream, ) (&'a TcpStream, 'a) (Async<T>, T: AsSource) (WriteHalf<S>, S) }
            #[cfg(unix)]
            impl_read! { $read, $buffer, $advance, ($crate::UnixStream, ) (&'a $crate::UnixStream, 'a) }
            #[cfg(unix)]
            impl_write! { $write, ($crate::UnixStream, ) (&'a $crate::UnixStream, 'a) }
        };
    };
}
pub(crate) use impl_streams;

macro_rules! impl_read {
    ($trait:path, $buffer:ty, $advance:ident, $(($type:ty, $($bounds:tt)*))*) => {$(
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
                let room = buffer.remaining();
                if room <= SMALL {
                    return poll_read_through(self, cx, room, |bytes| buffer.put_slice(bytes));
                }
                let room = room.min(LARGE);
                let into = buffer.initialize_unfilled_to(room);
                let read = AsyncRead::poll_read(self, cx, into);
                let count = std::task::ready!(read)?;
                assert!(count <= room, "a read takes no more than there is room for");
                $advance!(buffer, count);
                Poll::Ready(Ok(()))
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
