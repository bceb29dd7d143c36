//! rustix, for a library in a simulation: a set of descriptors is the kernel's, and what waits for it, for a time, or is to fail is
//! the [simulation's](simulated_std::simulation).

pub use rustix::*;

pub mod event {
    pub use rustix::event::*;

    pub mod epoll {
        use std::mem::MaybeUninit;
        use std::os::fd::{AsFd, AsRawFd};
        use std::time::Duration;

        use rustix::event::Timespec;
        pub use rustix::event::epoll::*;
        use rustix::io::{Errno, Result};
        use simulated_std::simulation::{self, Call, tell};

        fn may_fail(call: Call) -> Result<()> {
            let fault = simulation::fault(call).map(Errno::from_raw_os_error);
            if let Some(error) = fault {
                tell(format_args!("{call:?} fails: {error}"));
            }
            fault.map_or(Ok(()), Err)
        }

        pub fn add(
            set: impl AsFd,
            source: impl AsFd,
            data: EventData,
            flags: EventFlags,
        ) -> Result<()> {
            may_fail(Call::Add)?;
            let number = source.as_fd().as_raw_fd();
            tell(format_args!("add {number}, {:#x}, {flags:?}", data.u64()));
            rustix::event::epoll::add(set, source, data, flags)
        }

        pub fn modify(
            set: impl AsFd,
            source: impl AsFd,
            data: EventData,
            flags: EventFlags,
        ) -> Result<()> {
            may_fail(Call::Modify)?;
            let number = source.as_fd().as_raw_fd();
            tell(format_args!(
                "modify {number}, {:#x}, {flags:?}",
                data.u64()
            ));
            rustix::event::epoll::modify(set, source, data, flags)
        }

        pub fn wait<'a>(
            set: impl AsFd,
            events: &'a mut [MaybeUninit<Event>],
            timeout: Option<&Timespec>,
        ) -> Result<(&'a mut [Event], &'a mut [MaybeUninit<Event>])> {
            let timeout = timeout.map(|time| {
                let seconds = Duration::from_secs(time.tv_sec as u64);
                seconds + Duration::from_nanos(time.tv_nsec as u64)
            });
            let count = simulation::wait(&set.as_fd(), timeout, || {
                let now = Timespec::default();
                let reported = rustix::event::epoll::wait(&set, &mut *events, Some(&now));
                let Ok((reported, _)) = reported else {
                    return 0;
                };
                for &Event { flags, data } in &*reported {
                    tell(format_args!("reported {:#x}, {flags:?}", data.u64()));
                }
                reported.len()
            });
            let (reported, rest) = events.split_at_mut(count);
            let reported: *mut [MaybeUninit<Event>] = reported;
            // SAFETY: the kernel has written so many.
            Ok((unsafe { &mut *(reported as *mut [Event]) }, rest))
        }
    }
}

pub mod time {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{Errno, Result};
    pub use rustix::time::*;
    use simulated_std::simulation;

    pub fn timerfd_create(_: TimerfdClockId, _: TimerfdFlags) -> Result<OwnedFd> {
        let timer = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        simulation::add_timer(&timer).map_err(|_| Errno::MFILE)?;
        Ok(timer)
    }

    pub fn timerfd_settime(
        timer: &OwnedFd,
        _: TimerfdTimerFlags,
        time: &Itimerspec,
    ) -> Result<Itimerspec> {
        let value = time.it_value;
        let time = Duration::new(value.tv_sec as u64, value.tv_nsec as u32);
        simulation::set_timer(timer, time);
        Ok(Itimerspec {
            it_interval: value,
            it_value: value,
        })
    }
}
