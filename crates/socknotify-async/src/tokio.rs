//! tokio's `AsyncRead` and `AsyncWrite`, which many crates ask of a stream: the traits, and nothing else of tokio.

macro_rules! advance {
    ($buffer:ident, $count:ident) => {
        $buffer.advance($count)
    };
}

crate::streams::impl_streams!(
    ::tokio::io::AsyncRead,
    &mut ::tokio::io::ReadBuf<'_>,
    advance,
    ::tokio::io::AsyncWrite
);
