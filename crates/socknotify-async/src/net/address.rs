//! Where to connect to: addresses, and names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use crate::unblock;

/// Addresses, or a name with a port: what std has [`ToSocketAddrs`] for.
///
/// Resolving a name blocks. That is done by [`unblock`], so who waits for it can stop: it goes on alone. However many names are
/// resolved at once, events and timers keep a thread; names beyond that wait.
pub trait ToAddresses: private::ToAddresses {}

impl<T: private::ToAddresses + ?Sized> ToAddresses for T {}

pub(crate) mod private {
    use super::*;

    /// What is known of an address at once.
    #[derive(Debug)]
    pub enum Addresses {
        Known(Vec<SocketAddr>),
        /// A name, and the port if it is not in it.
        Name(String, Option<u16>),
    }

    pub trait ToAddresses {
        fn to_addresses(&self) -> Addresses;
    }

    macro_rules! known {
        ($($type:ty),*) => {$(
            impl ToAddresses for $type {
                fn to_addresses(&self) -> Addresses {
                    Addresses::Known(vec![(*self).into()])
                }
            }
        )*};
    }
    known!(SocketAddr, SocketAddrV4, SocketAddrV6);
    known!((IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

    impl ToAddresses for [SocketAddr] {
        fn to_addresses(&self) -> Addresses {
            Addresses::Known(self.to_vec())
        }
    }

    impl ToAddresses for str {
        fn to_addresses(&self) -> Addresses {
            match self.parse() {
                Ok(address) => Addresses::Known(vec![address]),
                Err(_) => Addresses::Name(self.into(), None),
            }
        }
    }

    impl ToAddresses for (&str, u16) {
        fn to_addresses(&self) -> Addresses {
            match self.0.parse() {
                Ok(host) => Addresses::Known(vec![SocketAddr::new(host, self.1)]),
                Err(_) => Addresses::Name(self.0.into(), Some(self.1)),
            }
        }
    }

    impl ToAddresses for (String, u16) {
        fn to_addresses(&self) -> Addresses {
            (&*self.0, self.1).to_addresses()
        }
    }

    impl ToAddresses for String {
        fn to_addresses(&self) -> Addresses {
            (**self).to_addresses()
        }
    }

    impl<T: ToAddresses + ?Sized> ToAddresses for &T {
        fn to_addresses(&self) -> Addresses {
            (**self).to_addresses()
        }
    }
}

/// Resolves a name in a task of its own.
pub(super) async fn resolve(address: impl ToAddresses) -> io::Result<Vec<SocketAddr>> {
    use private::Addresses;
    match address.to_addresses() {
        Addresses::Known(addresses) => Ok(addresses),
        Addresses::Name(name, None) => unblock(move || resolved(name)).await?,
        Addresses::Name(name, Some(port)) => unblock(move || resolved((name, port))).await?,
    }
}

fn resolved(name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    name.to_socket_addrs().map(Iterator::collect)
}
