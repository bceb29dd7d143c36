//! tokio's `AsyncRead` and `AsyncWrite`, which many crates ask of a stream: the traits, and nothing else of tokio.

crate::streams::impl_streams!(
    ::tokio::io::AsyncRead,
    &mut ::tokio::io::ReadBuf<'_>,
    ::tokio::io::AsyncWrite
);
