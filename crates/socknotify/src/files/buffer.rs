//! [`Buffer`]: memory that an operation owns.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Memory that moves into an operation, and out again with its result.
///
/// Usually a `Vec<u8>`, which costs no further allocation. For memory of another owner, such as a pool or a mapping,
/// use [`from_owner`](Self::from_owner).
///
/// # Examples
///
/// ```
/// use socknotify::owned::Buffer;
///
/// let mut buffer = Buffer::from(vec![0; 4096]);
/// buffer[..5].copy_from_slice(b"hello");
/// assert_eq!(buffer.len(), 4096);
/// let vec: Vec<u8> = buffer.into_vec();
/// assert!(vec.starts_with(b"hello"));
/// ```
pub struct Buffer(Content);

enum Content {
    Vec(Vec<u8>),
    Other(Box<dyn Owner>),
}

/// An owner of bytes.
trait Owner: Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn as_any(&self) -> &dyn Any;
}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> Owner for B {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Buffer {
    /// A buffer of the bytes that another type owns.
    ///
    /// The port calls its `as_ref` or `as_mut` when an operation begins, on any thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use socknotify::owned::Buffer;
    ///
    /// let buffer = Buffer::from_owner(Box::new([0; 512]));
    /// assert_eq!(buffer.len(), 512);
    /// let array: Box<[u8; 512]> = buffer.into_owner().expect("it is one");
    /// ```
    pub fn from_owner<B>(owner: Box<B>) -> Self
    where
        B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static,
    {
        Buffer(Content::Other(owner))
    }

    /// The vector that the buffer was made of, or a copy if it was made of something else.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Content::Vec(vec) => vec,
            Content::Other(owner) => owner.bytes().to_vec(),
        }
    }

    /// The owner that the buffer was [made of](Self::from_owner).
    ///
    /// # Errors
    ///
    /// Returns the buffer if it was made of something else.
    pub fn into_owner<B: 'static>(self) -> Result<Box<B>, Self> {
        match self.0 {
            Content::Other(owner) if (*owner).as_any().is::<B>() => {
                Ok(owner.into_any().downcast().expect("it was compared"))
            }
            content => Err(Buffer(content)),
        }
    }
}

/// An empty buffer.
impl Default for Buffer {
    fn default() -> Self {
        Buffer(Content::Vec(Vec::new()))
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vec: Vec<u8>) -> Self {
        Buffer(Content::Vec(vec))
    }
}

/// As [`Buffer::into_vec`].
impl From<Buffer> for Vec<u8> {
    fn from(buffer: Buffer) -> Self {
        buffer.into_vec()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Content::Vec(vec) => vec,
            Content::Other(owner) => (**owner).bytes(),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Content::Vec(vec) => vec,
            Content::Other(owner) => (**owner).bytes_mut(),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("length", &self.len())
            .finish_non_exhaustive()
    }
}
