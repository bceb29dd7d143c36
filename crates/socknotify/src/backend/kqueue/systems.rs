//! Where the systems that have kqueue differ, as far as it matters here.
//!
//! | | macOS, iOS | FreeBSD | NetBSD | OpenBSD | DragonFly |
//! |---|---|---|---|---|---|
//! | `EVFILT_USER` | yes | yes | yes | not in every version | yes |
//! | a filter added before `listen` | goes on | goes on | keeps silent | keeps silent | keeps silent |
//! | a change of a filter without `EV_ADD` | changes its `udata`, `fflags`, `data` | the same | the same | changes none of them | the same as FreeBSD |
//! | timeouts | exact | exact | in ticks of 10 ms | in ticks of 10 ms | exact |
//! | `udata` | as wide as a pointer everywhere, which is enough for a generation and one bit ||||
//!
//! Seen on a kernel: NetBSD's column. The others are from manuals and sources, and are not run yet.
//!
//! What all have, and what is relied on: `EV_DISPATCH`, `EV_CLEAR`, `EV_RECEIPT`, `NOTE_LOWAT`,
//! `EVFILT_TIMER` in milliseconds; that enabling a filter makes it report what holds; that closing a number ends its filters; that a change of a filter that is
//! gone is `ENOENT`, and one of a number that is closed `EBADF`; and that a forked child has no kqueue of its
//! parent's. Whether there is an `EVFILT_USER` is found out by trying ([`super::waker`]).

/// A filter for data that was added to a socket before `listen` is never ready for connections. It has to
/// be deleted and added again.
pub(super) const LISTEN_SILENCES_FILTERS: bool = cfg!(any(
    target_os = "netbsd",
    target_os = "openbsd",
    target_os = "dragonfly",
    kqueue_stand_in,
));

/// Enabling a filter does not change the generation and the low-water mark that it was added with. It has to be deleted
/// and added again each time.
#[inline]
pub(super) fn changes_need_add() -> bool {
    #[cfg(kqueue_stand_in)]
    return kqueue_stand_in::rules() == kqueue_stand_in::Rules::OpenBsd;
    #[cfg(not(kqueue_stand_in))]
    return cfg!(target_os = "openbsd");
}
