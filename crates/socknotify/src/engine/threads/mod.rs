//! Which threads run: who holds a permit, who polls, whom to wake, and how many may run.
//!
//! A thread needs a *permit* to dequeue. It keeps the permit while it handles what it has dequeued, and while it *polls*: waits
//! in the backend. So a thread that dequeues again changes nothing that others share but the number of those that poll. A
//! thread without a permit is *parked*; so is one that finds enough others polling.
//!
//! | file | its job |
//! |---|---|
//! | [`gate`] | the counts that both sides of the engine's lock need, in one atomic word |
//! | [`scheduler`] | the parked threads, and whom to wake: two rules |
//! | [`watch`] | a parked thread's timed sleep while nobody polls |
//! | [`limit`] | how many threads may run: a function of samples |
//! | [`thread`] | what a thread keeps of the ports that it has dequeued from |
//! | [`roster`] | the threads of a port, as others see them: counts, samples, who is slow |
//!
//! What a thread has dequeued is its own until it hands that back. Nobody reaches into another thread.

mod gate;
mod limit;
mod roster;
mod scheduler;
#[cfg(all(test, not(interleavings)))]
mod sim;
mod thread;
mod watch;

pub(super) use self::gate::{Flag, Gate, Load, UNLIMITED};
pub(super) use self::limit::AdaptiveLimit;
pub(super) use self::roster::Roster;
pub(super) use self::scheduler::{Rules, Scheduler, Wake};
pub(crate) use self::thread::{Holder, ThisThread, leave_threads_unnamed};
pub(super) use self::thread::{Levels, Record, put, take, take_current, with_current};
