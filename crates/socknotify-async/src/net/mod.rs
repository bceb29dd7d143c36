//! Sockets of the standard library, in tasks.

mod address;
mod split;
mod tcp;
mod udp;
#[cfg(unix)]
mod unix;

pub use address::ToAddresses;
pub use split::{ReadHalf, WriteHalf};
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
#[cfg(unix)]
pub use unix::{UnixDatagram, UnixListener, UnixStream};

/// A socket of the standard library, registered with a runtime.
macro_rules! wrap {
    ($(#[$about:meta])* $name:ident, $std:ty, $address:ty $(, $peer:ident)?) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(pub(super) $crate::Async<$std>);

        impl $name {
            /// The standard library's socket, which is in non-blocking mode.
            pub fn get_ref(&self) -> &$std {
                self.0.get_ref()
            }

            /// The address of this end.
            ///
            /// # Errors
            ///
            /// The system's.
            pub fn local_addr(&self) -> std::io::Result<$address> {
                self.get_ref().local_addr()
            }

            $(
                /// The address of the peer.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn $peer(&self) -> std::io::Result<$address> {
                    self.get_ref().$peer()
                }
            )?

            /// Deregisters the socket, and returns it. It stays in non-blocking mode.
            ///
            /// # Errors
            ///
            /// As [`Async::into_inner`](crate::Async::into_inner).
            pub fn into_inner(self) -> std::io::Result<$std> {
                self.0.into_inner()
            }

            /// The same with methods for any operation.
            pub fn as_async(&self) -> &$crate::Async<$std> {
                &self.0
            }

            /// One that has just been made.
            fn new(
                socket: $std,
                shared: &std::sync::Arc<$crate::shared::Shared>,
            ) -> std::io::Result<Self> {
                socket.set_nonblocking(true)?;
                $crate::Async::of_nonblocking(socket, std::sync::Arc::clone(shared)).map(Self)
            }
        }

        /// Puts a socket into non-blocking mode, and registers it with the current runtime.
        ///
        /// # Panics
        ///
        /// If this thread is in no runtime.
        impl TryFrom<$std> for $name {
            type Error = std::io::Error;

            fn try_from(socket: $std) -> std::io::Result<Self> {
                Self::new(socket, &$crate::context::expect())
            }
        }

        #[cfg(unix)]
        impl std::os::fd::AsFd for $name {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.get_ref().as_fd()
            }
        }

        #[cfg(windows)]
        impl std::os::windows::io::AsSocket for $name {
            fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
                self.get_ref().as_socket()
            }
        }
    };
}
use wrap;

/// The traits of `futures-io` for a stream, and for a reference to it. `$ends_short`: a short read has taken all.
macro_rules! impl_stream {
    ($name:ident, $ends_short:literal, $($type:ty),*) => {
        impl $name {
            /// Splits it in two halves, for two tasks. (Two references do as well, where they live long enough.)
            pub fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
                split::split(self)
            }

            /// Shuts down one direction or both.
            ///
            /// # Errors
            ///
            /// The system's.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.get_ref().shutdown(how)
            }

            /// Waits until it may be readable: see [`Async::readable`](crate::Async::readable).
            ///
            /// # Errors
            ///
            /// If the runtime has shut down.
            pub async fn readable(&self) -> io::Result<()> {
                self.0.readable().await
            }

            /// Waits until a send may not block.
            ///
            /// # Errors
            ///
            /// If the runtime has shut down.
            pub async fn writable(&self) -> io::Result<()> {
                self.0.writable().await
            }
        }

        #[cfg(any(feature = "hyper", feature = "tokio"))]
        impl crate::streams::ReadInto for $name {
            #[inline]
            fn poll_read_into(
                &self,
                cx: &mut Context<'_>,
                memory: &mut [std::mem::MaybeUninit<u8>],
            ) -> Poll<io::Result<usize>> {
                self.0.poll_with(cx, Direction::Read, |stream, drained| {
                    let count = socket2::SockRef::from(stream).recv(memory)?;
                    if $ends_short {
                        drained.note(count, memory.len());
                    }
                    Ok(count)
                })
            }
        }

        $(
            impl AsyncRead for $type {
                #[inline]
                fn poll_read(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    buffer: &mut [u8],
                ) -> Poll<io::Result<usize>> {
                    self.0.poll_with(cx, Direction::Read, |mut stream, drained| {
                        let count = stream.read(buffer)?;
                        if $ends_short {
                            drained.note(count, buffer.len());
                        }
                        Ok(count)
                    })
                }

                fn poll_read_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    buffers: &mut [IoSliceMut<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.0.poll_with(cx, Direction::Read, |mut stream, _| stream.read_vectored(buffers))
                }
            }

            impl AsyncWrite for $type {
                #[inline]
                fn poll_write(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    bytes: &[u8],
                ) -> Poll<io::Result<usize>> {
                    self.0.poll_with(cx, Direction::Write, |mut stream, _| stream.write(bytes))
                }

                #[inline]
                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    buffers: &[IoSlice<'_>],
                ) -> Poll<io::Result<usize>> {
                    self.0.poll_with(cx, Direction::Write, |mut stream, _| stream.write_vectored(buffers))
                }

                fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                    Poll::Ready(Ok(()))
                }

                /// Shuts down the direction in which it writes.
                fn poll_close(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                ) -> Poll<io::Result<()>> {
                    std::task::ready!(self.0.spend(cx));
                    Poll::Ready(match self.get_ref().shutdown(Shutdown::Write) {
                        // The peer has closed it.
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                        outcome => outcome,
                    })
                }
            }
        )*
    };
}
use impl_stream;
