use std::io::{Read, Write};

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::os::thread_state::ThreadState;
use crate::os::thread_state::tests::{Subject, wait_until};

/// The exit status of a forked child that does `work`: 0 if that is true.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: it looks at threads, which takes no lock of this process but the allocator's, which the C library
    // releases in children. It ends without running what is the parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: numbers go in; the default action of the signal is to kill.
        unsafe {
            libc::alarm(60);
            libc::_exit(i32::from(!work()));
        }
    }
    let mut status = 0;
    // SAFETY: `status` can be written to for the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

fn pipe() -> (File, File) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (reader.into(), writer.into())
}

fn id(subject: &Subject) -> libc::pid_t {
    subject.state.thread.id
}

#[test]
fn a_thread_that_reads_an_empty_pipe_is_blocked() {
    let (mut reader, mut writer) = pipe();
    let work = move || assert_eq!(reader.read(&mut [0]).expect("read"), 1);
    let subject = Subject::new(work, move || writer.write_all(b"x").expect("written"));
    wait_until("blocked", || subject.state.activity() == Activity::Asleep);
    subject.end();
}

#[test]
fn a_name_with_parentheses_is_not_taken_for_the_state() {
    assert_eq!(from_stat(b"1 (a) R (b) S 1 1"), Activity::Asleep);
    assert_eq!(from_stat(b"1 (\n) R 1 1"), Activity::Running);
    for unknown in [&b""[..], b"1 (a", b"1 (a)", b"1 (a) ", b"1 (a) ?"] {
        assert_eq!(from_stat(unknown), Activity::Unknown);
    }

    let (mut reader, mut writer) = pipe();
    let work = move || {
        // SAFETY: the name ends with a zero.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"a) R (\n) R 1 R".as_ptr()) };
        assert_eq!(reader.read(&mut [0]).expect("read"), 1);
    };
    let subject = Subject::new(work, move || writer.write_all(b"x").expect("written"));
    wait_until("blocked", || subject.state.activity() == Activity::Asleep);
    subject.end();
}

#[test]
fn a_forked_child_sees_its_own_thread_only() {
    let seen = ThreadState::of_this();
    let unseen = ThreadState::of_this();
    assert_eq!(seen.activity(), Activity::Running);
    let status = in_child(|| {
        let own = ThreadState::of_this();
        seen.activity() == Activity::Unknown
            && unseen.activity() == Activity::Unknown
            && own.thread.id != seen.thread.id
            && own.activity() == Activity::Running
    });
    assert_eq!(status, 0);
    assert_eq!(unseen.activity(), Activity::Running);
}

#[test]
fn the_descriptor_is_closed_with_the_state_and_on_exec() {
    let subject = Subject::sleeping();
    subject.state.activity();
    let path = {
        use std::os::fd::AsRawFd;
        let stat = subject.state.thread.stat.get().expect("opened");
        // SAFETY: it returns the flags of the number.
        let flags = unsafe { libc::fcntl(stat.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
        format!("/proc/self/fd/{}", stat.as_raw_fd())
    };
    let of_thread = fs::read_link(&path).expect("open");
    assert!(of_thread.ends_with(format!("{}/stat", id(&subject))));
    drop(subject.end());
    // Another thread may have opened something else with this number.
    assert_ne!(fs::read_link(&path).ok(), Some(of_thread));
}

#[test]
fn without_a_descriptor_nothing_is_seen_until_there_is_one() {
    // The limit is the whole process's: the child has one of its own.
    let status = in_child(|| {
        let state = ThreadState::of_this();
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` can be written to and read for the calls.
        let set =
            |limit: &libc::rlimit| unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) } == 0;
        // SAFETY: as above.
        let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
        let lowered = libc::rlimit {
            rlim_cur: 0,
            ..limit
        };
        is_known
            && set(&lowered)
            && state.activity() == Activity::Unknown
            && set(&limit)
            && state.activity() == Activity::Running
            // What was opened stays, whatever happens later.
            && set(&lowered)
            && state.activity() == Activity::Running
    });
    assert_eq!(status, 0);
}
