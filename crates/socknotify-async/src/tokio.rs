//! tokio's `AsyncRead` and `AsyncWrite`, which many crates ask of a stream: the traits, and nothing else of tokio.

macro_rules! memory {
    ($buffer:ident) => {
        // SAFETY: nothing is written to it but what is read, which is initialized.
        #[allow(unsafe_code, reason = "tokio has no other way to say it")]
        unsafe {
            $buffer.unfilled_mut()
        }
    };
}

macro_rules! advance {
    ($buffer:ident, $count:ident) => {
        // SAFETY: what was read is initialized.
        #[allow(unsafe_code, reason = "tokio has no other way to say it")]
        unsafe {
            $buffer.assume_init($count)
        };
        $buffer.advance($count);
    };
}

crate::streams::impl_streams!(
    ::tokio::io::AsyncRead,
    &mut ::tokio::io::ReadBuf<'_>,
    memory,
    advance,
    ::tokio::io::AsyncWrite
);
