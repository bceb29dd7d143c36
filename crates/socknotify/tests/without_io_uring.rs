//! Where the system refuses `io_uring`, ports are built on something else.
//!
//! A program of its own, because what is refused to a thread is refused for good.
#![cfg(target_os = "linux")]

use std::io;

use socknotify::{Backend, CompletionPort, Entry, Error};

/// Have the kernel refuse `io_uring_setup` to this thread, as container runtimes do.
fn refuse_rings() -> io::Result<()> {
    let code = |code: u32| code as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        // The number of the system call is the first that a filter is given.
        step(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0, 0, 0),
        step(
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step(
            code(libc::BPF_RET | libc::BPF_K),
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(
            code(libc::BPF_RET | libc::BPF_K),
            0,
            0,
            libc::SECCOMP_RET_ALLOW,
        ),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program outlives the calls, which copy it; it lets all but one system call through.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    };
    match done {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_port_is_built_on_epoll_where_rings_are_refused() -> io::Result<()> {
    refuse_rings()?;
    assert_eq!(Backend::IoUring.probe(), Err(Error::BackendUnavailable));
    let asked_for = CompletionPort::builder().backend(Backend::IoUring).build();
    assert_eq!(asked_for.map(drop), Err(Error::BackendUnavailable));

    let port = CompletionPort::new()?;
    assert_eq!(port.backend(), Backend::Epoll);
    assert!(!port.backend_reason().is_empty());
    port.post(Entry::new(7, 1, 2))?;
    assert_eq!(port.dequeue_one(None)?, Entry::new(7, 1, 2));
    Ok(())
}
