//! What a real kernel was seen to do, point by point.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::ptr::{null, null_mut};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// They close queues and use their numbers again, so two must not run at once.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue that closes itself.
struct Kqueue(i32);

impl Drop for Kqueue {
    fn drop(&mut self) {
        // SAFETY: it is this test's.
        unsafe { close(self.0) };
    }
}

fn new() -> Kqueue {
    Kqueue(kqueue_by(Rules::NetBsd))
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: there is room for two numbers, which are nobody's yet.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn change(ident: &impl AsRawFd, filter: i16, flags: u16, udata: usize) -> kevent {
    of_number(ident.as_raw_fd() as usize, filter, flags, udata)
}

fn of_number(ident: usize, filter: i16, flags: u16, udata: usize) -> kevent {
    kevent {
        ident,
        filter,
        flags,
        fflags: 0,
        data: 0,
        udata: std::ptr::without_provenance_mut(udata),
    }
}

fn call(
    queue: &Kqueue,
    changes: &[kevent],
    room: usize,
    timeout: Option<Duration>,
) -> Result<Vec<kevent>, i32> {
    let time = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let mut events: Vec<kevent> = Vec::with_capacity(room);
    let count = changes.len() as i32;
    // SAFETY: so many changes are there, and room for so many events.
    unsafe {
        let memory = events.as_mut_ptr();
        match super::kevent(queue.0, changes.as_ptr(), count, memory, room as i32, time) {
            -1 => Err(*libc::__errno_location()),
            found => {
                events.set_len(found as usize);
                Ok(events)
            }
        }
    }
}

/// What is ready now: filters and what was given with them.
fn ready(queue: &Kqueue) -> Vec<(i16, usize)> {
    let events = call(queue, &[], 16, Some(Duration::ZERO)).expect("events");
    events
        .iter()
        .map(|it| (it.filter, it.udata.addr()))
        .collect()
}

fn apply(queue: &Kqueue, changes: &[kevent]) -> Result<(), i32> {
    call(queue, changes, 0, None).map(drop)
}

/// The one event that is ready: whether it is an end, its error, and how much.
fn state(queue: &Kqueue) -> (bool, u32, i64) {
    let events = call(queue, &[], 4, Some(Duration::from_secs(10))).expect("events");
    assert_eq!(events.len(), 1, "{events:?}");
    let [event] = events[..] else { unreachable!() };
    (event.flags & EV_EOF != 0, event.fflags, event.data)
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (client, listener.accept().expect("a connection").0)
}

/// A pair of which one is readable.
fn readable() -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    theirs.write_all(b"abc").expect("written");
    (ours, theirs)
}

#[test]
fn what_a_change_makes_ready_comes_out_of_the_same_call_behind_the_others() {
    let _alone = alone();
    let queue = new();
    let (first, second) = (readable(), readable());
    apply(&queue, &[change(&first.0, EVFILT_READ, EV_ADD, 1)]).expect("added");
    let add = change(&second.0, EVFILT_READ, EV_ADD | EV_DISPATCH, 2);
    let events = call(&queue, &[add], 4, None).expect("events");
    assert_eq!(
        events.iter().map(|it| it.udata.addr()).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn failed_changes_are_all_that_is_returned_and_the_others_are_made() {
    let _alone = alone();
    let queue = new();
    let pairs = [(); 3].map(|()| readable());
    let [first, second, third] = [0, 1, 2].map(|it: usize| &pairs[it].0);
    apply(&queue, &[change(first, EVFILT_READ, EV_ADD, 1)]).expect("added");
    let missing = change(second, EVFILT_READ, EV_ENABLE, 2);
    let changes = [missing, change(third, EVFILT_READ, EV_ADD, 3)];
    let events = call(&queue, &changes, 4, None).expect("answers");
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].flags, events[0].data),
        (EV_ERROR, libc::ENOENT.into())
    );
    assert_eq!(events[0].udata.addr(), 2);
    assert_eq!(ready(&queue), [(EVFILT_READ, 1), (EVFILT_READ, 3)]);
}

#[test]
fn without_room_the_first_error_stops_the_changes() {
    let _alone = alone();
    let queue = new();
    let pair = readable();
    let missing = change(&pair.0, EVFILT_WRITE, EV_ENABLE, 1);
    let changes = [missing, change(&pair.0, EVFILT_READ, EV_ADD, 2)];
    assert_eq!(apply(&queue, &changes), Err(libc::ENOENT));
    assert_eq!(ready(&queue), []);
    // With room for one of two, the second one stops it.
    let changes = [missing, missing, changes[1]];
    assert_eq!(call(&queue, &changes, 1, None).err(), Some(libc::ENOENT));
    assert_eq!(ready(&queue), []);
}

#[test]
fn receipts_are_all_that_is_returned_and_without_room_the_list_is_cut() {
    let _alone = alone();
    let queue = new();
    let pair = readable();
    let read = change(&pair.0, EVFILT_READ, EV_ADD | EV_RECEIPT, 1);
    let write = change(&pair.0, EVFILT_WRITE, EV_ADD | EV_RECEIPT, 2);
    let receipts = call(&queue, &[read, write], 2, None).expect("receipts");
    assert!(
        receipts
            .iter()
            .all(|it| (it.flags, it.data) == (EV_ERROR, 0))
    );
    assert_eq!(receipts.len(), 2);
    assert_eq!(ready(&queue), [(EVFILT_READ, 1), (EVFILT_WRITE, 2)]);
    let other = new();
    assert_eq!(
        call(&other, &[read, write], 0, None)
            .expect("nothing")
            .len(),
        0
    );
    assert_eq!(ready(&other), [(EVFILT_READ, 1)]);
}

#[test]
fn without_room_nothing_is_waited_for() {
    let _alone = alone();
    let queue = new();
    for timeout in [None, Some(Duration::from_secs(100))] {
        assert_eq!(call(&queue, &[], 0, timeout).expect("nothing").len(), 0);
    }
}

#[test]
fn what_was_dispatched_is_disabled_until_it_is_enabled() {
    let _alone = alone();
    let queue = new();
    let (ours, mut theirs) = readable();
    apply(
        &queue,
        &[change(&ours, EVFILT_READ, EV_ADD | EV_DISPATCH, 1)],
    )
    .expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    theirs.write_all(b"more").expect("written");
    assert_eq!(ready(&queue), []);
    // To add it again does not enable it, but overwrites what it comes with.
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD, 2)]).expect("added");
    assert_eq!(ready(&queue), []);
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 3)]).expect("enabled");
    assert_eq!(ready(&queue), [(EVFILT_READ, 3)]);
    // What came and went meanwhile gives nothing.
    (&ours).read_exact(&mut [0; 7]).expect("read");
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 4)]).expect("enabled");
    assert_eq!(ready(&queue), []);
    // Both in one change enable.
    theirs.write_all(b"x").expect("written");
    let both = change(&ours, EVFILT_READ, EV_ENABLE | EV_DISABLE, 5);
    apply(&queue, &[both]).expect("enabled");
    assert_eq!(ready(&queue), [(EVFILT_READ, 5)]);
}

#[test]
fn what_was_dealt_with_before_the_fetch_gives_no_event_unless_it_is_a_oneshot() {
    let _alone = alone();
    for (flags, expected) in [
        (0, false),
        (EV_CLEAR, false),
        (EV_DISPATCH, false),
        (EV_ONESHOT, true),
    ] {
        let queue = new();
        let (ours, mut theirs) = readable();
        apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD | flags, 1)]).expect("added");
        (&ours).read_exact(&mut [0; 3]).expect("read");
        assert_eq!(!ready(&queue).is_empty(), expected, "{flags:#x}");
        // The others are armed still.
        theirs.write_all(b"x").expect("written");
        assert_eq!(ready(&queue).is_empty(), expected, "{flags:#x}");
    }
}

#[test]
fn clear_reports_what_holds_when_it_is_added_and_then_what_comes() {
    let _alone = alone();
    let queue = new();
    let (ours, mut theirs) = readable();
    let add = change(&ours, EVFILT_READ, EV_ADD | EV_CLEAR, 1);
    apply(&queue, &[add]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    assert_eq!(ready(&queue), []);
    (&ours).read_exact(&mut [0; 1]).expect("read");
    assert_eq!(ready(&queue), []);
    theirs.write_all(b"x").expect("written");
    theirs.write_all(b"y").expect("written");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 2)]).expect("enabled");
    assert_eq!(ready(&queue), [(EVFILT_READ, 2)]);
    // Together with this, dispatching is no more than clearing.
    let both = new();
    let add = change(&ours, EVFILT_READ, EV_ADD | EV_CLEAR | EV_DISPATCH, 1);
    apply(&both, &[add]).expect("added");
    assert_eq!(ready(&both), [(EVFILT_READ, 1)]);
    theirs.write_all(b"z").expect("written");
    assert_eq!(ready(&both), [(EVFILT_READ, 1)]);
}

#[test]
fn openbsd_changes_a_filter_only_if_it_is_added_again() {
    let _alone = alone();
    let queue = Kqueue(kqueue_by(Rules::OpenBsd));
    let (ours, mut theirs) = readable();
    let read = |flags, udata| change(&ours, EVFILT_READ, flags, udata);
    apply(&queue, &[read(EV_ADD | EV_DISPATCH, 1)]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    // What holds already is not looked at, and what comes is reported as it was added.
    apply(&queue, &[read(EV_ENABLE, 2)]).expect("enabled");
    assert_eq!(ready(&queue), []);
    theirs.write_all(b"x").expect("written");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    apply(&queue, &[read(EV_ADD | EV_ENABLE, 3)]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 3)]);
    // Without a filter, it says so all the same.
    let missing = change(&theirs, EVFILT_READ, EV_ENABLE, 4);
    assert_eq!(apply(&queue, &[missing]), Err(libc::ENOENT));
}

#[test]
fn a_level_takes_turns() {
    let _alone = alone();
    let queue = new();
    let pairs: Vec<_> = (0..10).map(|_| readable()).collect();
    for (index, (ours, _)) in pairs.iter().enumerate() {
        apply(&queue, &[change(ours, EVFILT_READ, EV_ADD, index)]).expect("added");
    }
    let mut order = Vec::new();
    for _ in 0..4 {
        let events = call(&queue, &[], 3, None).expect("events");
        order.extend(events.iter().map(|it| it.udata.addr()));
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
}

#[test]
fn a_low_water_mark_leaves_ends_and_errors() {
    let _alone = alone();
    let queue = new();
    let (ours, theirs) = readable();
    let low = kevent {
        fflags: NOTE_LOWAT,
        data: i32::MAX.into(),
        ..change(&ours, EVFILT_READ, EV_ADD, 1)
    };
    let full = kevent {
        filter: EVFILT_WRITE,
        ..low
    };
    apply(&queue, &[low, full]).expect("added");
    assert_eq!(ready(&queue), []);
    drop(theirs);
    assert_eq!(ready(&queue), [(EVFILT_READ, 1), (EVFILT_WRITE, 1)]);
}

#[test]
fn closing_a_number_ends_its_filters() {
    let _alone = alone();
    let queue = new();
    let (ours, _theirs) = readable();
    let number = ours.as_raw_fd() as usize;
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD, 1)]).expect("added");
    let duplicate = ours.try_clone().expect("a duplicate");
    drop(ours);
    // The socket lives on under another number, which has no filter.
    assert_eq!(ready(&queue), []);
    let enable = change(&duplicate, EVFILT_READ, EV_ENABLE, 2);
    assert_eq!(apply(&queue, &[enable]), Err(libc::ENOENT));
    let enable = of_number(number, EVFILT_READ, EV_ENABLE, 2);
    // Another test may have the number by now.
    let done = apply(&queue, &[enable]);
    assert!(matches!(done, Err(libc::EBADF | libc::ENOENT)), "{done:?}");
}

#[test]
fn a_number_that_is_used_again_has_no_filter() {
    let _alone = alone();
    for flags in [EV_ENABLE, EV_DISABLE, EV_DELETE, 0] {
        let queue = new();
        let ((ours, _theirs), (new, _peer)) = (readable(), readable());
        apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD, 1)]).expect("added");
        // SAFETY: the first number is open, and stays this socket's.
        unsafe { libc::dup2(new.as_raw_fd(), ours.as_raw_fd()) };
        assert_eq!(
            apply(&queue, &[change(&ours, EVFILT_READ, flags, 2)]),
            Err(libc::ENOENT)
        );
        assert_eq!(ready(&queue), []);
    }
}

#[test]
fn two_numbers_of_one_socket_have_filters_of_their_own() {
    let _alone = alone();
    let queue = new();
    let (ours, _theirs) = readable();
    let duplicate = ours.try_clone().expect("a duplicate");
    let dispatch = EV_ADD | EV_DISPATCH;
    apply(&queue, &[change(&ours, EVFILT_READ, dispatch, 1)]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
    apply(&queue, &[change(&duplicate, EVFILT_READ, dispatch, 2)]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_READ, 2)]);
}

#[test]
fn a_file_has_filters_too_and_what_is_not_open_has_none() {
    let _alone = alone();
    let queue = new();
    let file = std::fs::File::open(std::env::current_exe().expect("a program")).expect("open");
    apply(&queue, &[change(&file, EVFILT_READ, EV_ADD, 1)]).expect("added");
    let closed = of_number(1 << 20, EVFILT_READ, EV_ADD, 1);
    assert_eq!(apply(&queue, &[closed]), Err(libc::EBADF));
    let unknown = change(&file, -99, EV_ADD, 1);
    assert_eq!(apply(&queue, &[unknown]), Err(libc::EINVAL));
}

#[test]
fn a_queue_and_a_broken_pipe_are_not_watched_for_room() {
    let _alone = alone();
    let [outer, inner] = [new(), new()];
    let write = |number| of_number(number, EVFILT_WRITE, EV_ADD, 1);
    assert_eq!(apply(&outer, &[write(inner.0 as usize)]), Err(libc::EINVAL));
    let (reader, writer) = pipe();
    let writer_number = writer.as_raw_fd() as usize;
    apply(&outer, &[write(writer_number)]).expect("added");
    drop(reader);
    assert!(state(&outer).0);
    assert_eq!(apply(&inner, &[write(writer_number)]), Err(libc::EBADF));
    // The end is one of reading too.
    apply(&inner, &[change(&writer, EVFILT_READ, EV_ADD, 1)]).expect("added");
    assert!(state(&inner).0);
}

#[test]
fn the_end_of_a_stream_shows_with_the_data_before_it() {
    let _alone = alone();
    let queue = new();
    let (ours, mut theirs) = tcp();
    theirs.write_all(b"abc").expect("written");
    drop(theirs);
    apply(
        &queue,
        &[change(&ours, EVFILT_READ, EV_ADD | EV_DISPATCH, 1)],
    )
    .expect("added");
    assert_eq!(state(&queue), (true, 0, 3));
    (&ours).read_exact(&mut [0; 3]).expect("read");
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 1)]).expect("enabled");
    assert_eq!(state(&queue), (true, 0, 0));
    // To send is another matter.
    apply(&queue, &[change(&ours, EVFILT_READ, EV_DELETE, 1)]).expect("deleted");
    apply(&queue, &[change(&ours, EVFILT_WRITE, EV_ADD, 1)]).expect("added");
    assert!(!state(&queue).0);
}

#[test]
fn ones_own_shutdown_is_an_end_of_its_own_side_only() {
    let _alone = alone();
    let queue = new();
    let (ours, _theirs) = tcp();
    ours.shutdown(Shutdown::Write).expect("shut down");
    let both = [EVFILT_READ, EVFILT_WRITE].map(|it| change(&ours, it, EV_ADD, 1));
    apply(&queue, &both).expect("added");
    let (is_end, error, _) = state(&queue);
    assert_eq!((is_end, error), (true, 0));
    assert_eq!(ready(&queue), [(EVFILT_WRITE, 1)]);
}

#[test]
fn a_reset_is_an_end_with_an_error_on_both() {
    let _alone = alone();
    let (ours, theirs) = tcp();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = size_of_val(&linger) as libc::socklen_t;
    // SAFETY: the structure is there for the call.
    unsafe {
        let value = (&raw const linger).cast();
        libc::setsockopt(
            theirs.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            value,
            length,
        );
    }
    drop(theirs);
    for filter in [EVFILT_READ, EVFILT_WRITE] {
        let queue = new();
        apply(&queue, &[change(&ours, filter, EV_ADD, 1)]).expect("added");
        let (is_end, error, _) = state(&queue);
        assert!(is_end && error != 0);
    }
    // The error is there still; when it was taken, the end remains.
    assert!(ours.take_error().expect("an option").is_some());
    let queue = new();
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD, 1)]).expect("added");
    assert_eq!(state(&queue), (true, 0, 0));
}

#[test]
fn a_stream_that_was_never_connected_holds_nothing() {
    let _alone = alone();
    for domain in [libc::AF_INET, libc::AF_UNIX] {
        let queue = new();
        // SAFETY: the number is new.
        let socket = unsafe {
            use std::os::fd::FromRawFd;
            OwnedFd::from_raw_fd(libc::socket(
                domain,
                libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
                0,
            ))
        };
        let both = [EVFILT_READ, EVFILT_WRITE].map(|it| change(&socket, it, EV_ADD, 1));
        apply(&queue, &both).expect("added");
        assert_eq!(ready(&queue), []);
        // A filter that was there before `listen` stays silent until it is deleted and added.
        // SAFETY: it takes no memory.
        let done = unsafe { libc::listen(socket.as_raw_fd(), 4) };
        if domain == libc::AF_UNIX {
            continue;
        }
        assert_eq!(done, 0);
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().expect("an address");
        let _client = TcpStream::connect(("127.0.0.1", address.port())).expect("connected");
        for flags in [EV_ENABLE, EV_ADD] {
            apply(&queue, &[change(&listener, EVFILT_READ, flags, 1)]).expect("changed");
            assert_eq!(ready(&queue), []);
        }
        for flags in [EV_DELETE, EV_ADD] {
            apply(&queue, &[change(&listener, EVFILT_READ, flags, 2)]).expect("changed");
        }
        assert_eq!(ready(&queue), [(EVFILT_READ, 2)]);
    }
}

#[test]
fn the_connect_of_a_unix_stream_is_seen_by_a_queue_in_a_queue() {
    let _alone = alone();
    let path = std::env::temp_dir().join(format!("stand-in-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a listener");
    let (inner, outer) = (new(), new());
    let (socket, address) = {
        let address = socket2::SockAddr::unix(&path).expect("an address");
        let kind = socket2::Type::STREAM;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, kind, None).expect("a socket");
        (socket, address)
    };
    apply(
        &inner,
        &[change(&socket, EVFILT_WRITE, EV_ADD | EV_CLEAR, 1)],
    )
    .expect("added");
    let watch = of_number(inner.0 as usize, EVFILT_READ, EV_ADD, 2);
    apply(&outer, &[watch]).expect("added");
    assert_eq!(ready(&outer), []);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&outer, &[], 4, Some(Duration::from_secs(10))));
        socket.connect(&address).expect("connected");
        let events = waiting.join().expect("no panic").expect("events");
        assert_eq!(events.len(), 1);
    });
    assert_eq!(ready(&inner), [(EVFILT_WRITE, 1)]);
    assert_eq!(ready(&outer), []);
    drop(listener);
    std::fs::remove_file(path).expect("removed");
}

#[test]
fn datagrams_have_data_even_if_they_are_empty_and_errors_show_by_nothing_else() {
    let _alone = alone();
    let queue = new();
    let ours = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let theirs = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    ours.connect(theirs.local_addr().expect("an address"))
        .expect("connected");
    theirs
        .connect(ours.local_addr().expect("an address"))
        .expect("connected");
    apply(
        &queue,
        &[change(&ours, EVFILT_READ, EV_ADD | EV_DISPATCH, 1)],
    )
    .expect("added");
    theirs.send(&[]).expect("sent");
    let (is_end, error, amount) = state(&queue);
    assert!(!is_end && error == 0 && amount > 0);
    ours.recv(&mut [0; 1]).expect("received");
    drop(theirs);
    ours.send(b"to nobody").expect("sent");
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 1)]).expect("enabled");
    assert_eq!(state(&queue), (false, 0, 0));
    // To peek shows the error as often as one asks.
    for _ in 0..3 {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: there is no memory needed.
        assert_eq!(unsafe { recv(ours.as_raw_fd(), null_mut(), 0, flags) }, -1);
    }
    assert!(ours.take_error().expect("an option").is_some());
    apply(&queue, &[change(&ours, EVFILT_READ, EV_ENABLE, 1)]).expect("enabled");
    assert_eq!(ready(&queue), []);
}

#[test]
fn a_unix_datagram_socket_is_writable_even_if_the_receiver_is_full() {
    let _alone = alone();
    let queue = new();
    let (ours, _theirs) = UnixDatagram::pair().expect("a pair");
    ours.set_nonblocking(true).expect("an option");
    while ours.send(b"x").is_ok() {}
    apply(&queue, &[change(&ours, EVFILT_WRITE, EV_ADD, 1)]).expect("added");
    assert_eq!(ready(&queue), [(EVFILT_WRITE, 1)]);
}

#[test]
fn an_event_of_ones_own_is_triggered_by_a_change_without_flags() {
    let _alone = alone();
    let queue = new();
    let trigger = |flags| kevent {
        fflags: NOTE_TRIGGER,
        ..of_number(7, EVFILT_USER, flags, 0)
    };
    assert_eq!(apply(&queue, &[trigger(0)]), Err(libc::ENOENT));
    apply(&queue, &[trigger(EV_ADD | EV_CLEAR)]).expect("added");
    assert_eq!(ready(&queue), []);
    apply(&queue, &[trigger(0), trigger(0)]).expect("triggered");
    assert_eq!(ready(&queue), [(EVFILT_USER, 0)]);
    assert_eq!(ready(&queue), []);
    apply(&queue, &[trigger(0), trigger(EV_CLEAR)]).expect("reset");
    assert_eq!(ready(&queue), []);
}

#[test]
fn a_timer_counts_and_one_that_is_a_oneshot_comes_once() {
    let _alone = alone();
    let queue = new();
    let timer = |ident, flags| kevent {
        data: 5,
        ..of_number(ident, EVFILT_TIMER, flags, ident)
    };
    apply(&queue, &[timer(1, EV_ADD | EV_ONESHOT), timer(2, EV_ADD)]).expect("added");
    let start = Instant::now();
    let mut found = Vec::new();
    while found.iter().filter(|&&it| it == 2).count() < 3 {
        let events = call(&queue, &[], 4, None).expect("events");
        found.extend(events.iter().map(|it| it.udata.addr()));
    }
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert_eq!(found.iter().filter(|&&it| it == 1).count(), 1);
    assert_eq!(apply(&queue, &[timer(1, EV_DELETE)]), Err(libc::ENOENT));
    apply(&queue, &[timer(2, EV_DELETE)]).expect("deleted");
}

#[test]
fn one_event_goes_to_one_of_many_who_wait_unless_it_is_a_level() {
    let _alone = alone();
    for flags in [EV_DISPATCH, EV_CLEAR, EV_ONESHOT, 0] {
        let queue = new();
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        apply(&queue, &[change(&ours, EVFILT_READ, EV_ADD | flags, 1)]).expect("added");
        let got = thread::scope(|scope| {
            let wait = || call(&queue, &[], 4, Some(Duration::from_millis(300)));
            let waiting: Vec<_> = (0..6).map(|_| scope.spawn(wait)).collect();
            theirs.write_all(b"x").expect("written");
            let waiting = waiting.into_iter();
            let found = waiting.map(|it| it.join().expect("no panic").expect("events"));
            found.filter(|events| !events.is_empty()).count()
        });
        assert_eq!(got, if flags == 0 { 6 } else { 1 }, "{flags:#x}");
    }
}

#[test]
fn who_waits_in_a_queue_that_is_closed_is_told_so() {
    let _alone = alone();
    let queue = new();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| call(&queue, &[], 4, None)))
            .collect();
        // Whoever has not begun to wait by then finds it closed as well. The number stays open until all have
        // left: another test's queue would get it, and they would wait in that.
        let closed = queues().remove(&queue.0).expect("it is open");
        closed.end_waits();
        for waiting in waiting {
            assert_eq!(waiting.join().expect("no panic").err(), Some(libc::EBADF));
        }
        closed.close();
    });
    std::mem::forget(queue);
}

#[test]
fn a_wait_never_ends_early_and_a_bad_time_is_refused() {
    let _alone = alone();
    let queue = new();
    let start = Instant::now();
    let time = Duration::from_micros(2500);
    assert_eq!(call(&queue, &[], 4, Some(time)).expect("nothing").len(), 0);
    assert!(start.elapsed() >= time);
    let bad = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000_000,
    };
    // SAFETY: the time is there for the call.
    let done = unsafe { super::kevent(queue.0, null(), 0, null_mut(), 0, &bad) };
    assert_eq!(done, -1);
}

#[test]
fn a_forked_child_has_no_queue() {
    let _alone = alone();
    let queue = new();
    let pair = readable();
    apply(&queue, &[change(&pair.0, EVFILT_READ, EV_ADD, 1)]).expect("added");
    // SAFETY: the child makes system calls only, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            let is_open = libc::fcntl(queue.0, libc::F_GETFD) != -1;
            libc::_exit(i32::from(is_open));
        }
    }
    let mut status = 0;
    // SAFETY: the status is there for the call.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    // The child's copy of the socket changes nothing here.
    assert_eq!(ready(&queue), [(EVFILT_READ, 1)]);
}
