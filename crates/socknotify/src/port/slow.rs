//! [`SlowWatch`]: which threads to report because their handlers take long.

use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::ThreadId;
use std::time::Duration;

use crate::support::drops::drop_all;
use crate::{CompletionPort, SlowThread};

/// Tells of a thread when it has had its packets for a certain time, and again whenever that has doubled.
///
/// It looks on a thread of its own: while all others work, nobody else would.
pub struct SlowWatch {
    after: Duration,
    /// The threads that have packets in hand: for how long, and after what time they are told of next.
    seen: HashMap<ThreadId, (Duration, Duration)>,
}

impl SlowWatch {
    /// One that tells of threads after this time.
    pub fn new(after: Duration) -> Self {
        SlowWatch {
            after,
            seen: HashMap::new(),
        }
    }

    /// In what time to look again.
    pub fn pause(&self) -> Duration {
        let (least, most) = (Duration::from_millis(1), Duration::from_millis(250));
        (self.after / 4).clamp(least, most)
    }

    /// Look at a port, and call this for what each thread that is due is named as. All are named before the first call, which may
    /// take long: `name` gets the key of the packet that a thread's worker has taken last. A panic of a call goes no further.
    pub fn look<T>(
        &mut self,
        port: &CompletionPort,
        name: impl Fn(SlowThread, Option<usize>) -> T,
        call: impl Fn(&T),
    ) {
        let before = mem::take(&mut self.seen);
        let due = port.system().slow(&mut |thread, time| {
            let seen = before.get(&thread).filter(|seen| seen.0 <= time);
            let next = seen.map_or(self.after, |seen| seen.1);
            let is_due = time >= next;
            let next = if is_due { time * 2 } else { next };
            self.seen.insert(thread, (time, next));
            is_due
        });
        let named = due.into_iter().map(|(thread, key)| name(thread, key));
        for named in named.collect::<Vec<_>>() {
            drop_all([catch_unwind(AssertUnwindSafe(|| call(&named)))]);
        }
    }
}
