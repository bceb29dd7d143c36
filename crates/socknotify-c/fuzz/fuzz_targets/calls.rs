//! Arbitrary sequences of calls to the C interface, on up to three threads at once.
//!
//! The threads share a few ports, sockets and files, and do with them what they are told: valid calls
//! and invalid ones, with closed and foreign handles, null pointers, misaligned and overlapping
//! arrays. AddressSanitizer watches the memory, and the target checks what can be checked of each
//! outcome whatever the other threads do: that the manual names its code, that nothing is written
//! beyond what was received, that no key comes out that nobody put in, and that each operation that
//! was begun has one packet, after which its memory is freed at once. So is what an owned connection's pointer refers to
//! when its last event says so.
//!
//! ```sh
//! cd crates/socknotify-c     # with cargo-fuzz installed
//! cargo +nightly fuzz run calls -- -max_total_time=1800 -max_len=4096 -len_control=0
//! ```

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use socknotify::Overlapped;
use socknotify_c::caller::{OverlappedEntry, PortState, SockNotifyRegistration};
use socknotify_c::files::{
    sn_associate, sn_cancel, sn_dissociate, sn_errno, sn_read, sn_read_associated, sn_readv,
    sn_result, sn_sync, sn_write, sn_write_associated, sn_writev,
};
use socknotify_c::owned::{
    OwnedEvent, sn_owned_adopt, sn_owned_arm, sn_owned_cancel, sn_owned_close, sn_owned_create,
    sn_owned_drain, sn_owned_end, sn_owned_next, sn_owned_post, sn_owned_queued, sn_owned_send,
};
use socknotify_c::{
    code, sn_backend, sn_blocking, sn_close_port, sn_create_port, sn_create_port_on, sn_dequeue,
    sn_dequeue_one, sn_deregister, sn_last_error, sn_port_descriptor, sn_post, sn_process,
    sn_process_descriptors, sn_query_port, sn_reason, sn_release, sn_set_last_error, sn_strerror,
    sn_version,
};

const PORTS: usize = 3;
const SOCKETS: usize = 8;
const HANDLES: usize = 4;

/// `SN_OWNED_CLOSED`
const CLOSED: u32 = 5;

/// Keys are small numbers, except for those that came from a misread packet.
const KEYS: usize = 256;

/// What a packet's memory holds before the call.
const UNTOUCHED: u8 = 0xa5;

/// The number of bytes that an operation's block has for each of its parts.
const PART: usize = 32;

/// What the manual says that a function returns, besides success.
struct Manual {
    errors: BTreeMap<&'static str, BTreeSet<u32>>,
    results: BTreeMap<&'static str, BTreeSet<u32>>,
}

static MANUAL: LazyLock<Manual> = LazyLock::new(|| {
    let header = include_str!("../../include/socknotify.h");
    let (_, header) = header
        .split_once("#else /* not Windows */")
        .expect("a part for Unix");
    let number = |code: &str| {
        let line = header
            .split_once(&format!("#define {code} "))
            .expect(code)
            .1;
        let end = line.find(|it: char| !it.is_ascii_digit()).expect(code);
        line[..end].parse::<u32>().expect(code)
    };
    let mut manual = Manual {
        errors: BTreeMap::new(),
        results: BTreeMap::new(),
    };
    let mut names: &str = "";
    let mut of_entries = false;
    for line in include_str!("../../man/errors").lines() {
        if line.starts_with("sn_") {
            (names, of_entries) = (line, names_entries_only(line));
        } else if line.starts_with('@') {
            of_entries = true;
        } else if line.starts_with("SN_") {
            let table = match of_entries {
                true => &mut manual.results,
                false => &mut manual.errors,
            };
            for name in names.split(' ') {
                table.entry(name).or_default().insert(number(line));
            }
        }
    }
    manual
});

/// What the page has of the function alone is of its entries.
fn names_entries_only(names: &str) -> bool {
    names == "sn_process_descriptors"
}

/// Check what a function has returned.
#[track_caller]
fn check(function: &str, outcome: u32) -> u32 {
    let errors = MANUAL.errors.get(function).expect(function);
    assert!(
        outcome == code::SUCCESS || errors.contains(&outcome),
        "{function}: {outcome}"
    );
    outcome
}

#[track_caller]
fn check_entry(function: &str, result: u32) {
    let results = MANUAL.results.get(function).expect(function);
    assert!(
        result == code::SUCCESS || results.contains(&result),
        "an entry of {function}: {result}"
    );
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Port {
    Shared(u8),
    Number(usize),
    /// A shared one's number, with one bit flipped.
    Nearly(u8, u8),
    Null,
    Invalid,
    Memory,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Socket {
    Shared(u8),
    Number(u8),
    Any(usize),
    Invalid,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Registration {
    socket: Socket,
    key: u8,
    filter: u16,
    operation: u8,
    trigger: u8,
    /// Whether the three above are to be narrowed to what is valid.
    valid: bool,
}

/// The files of the process. None is ever closed.
struct Files {
    regular: [File; 2],
    read_only: File,
    write_only: File,
    directory: File,
    made_up: File,
    pipe: [c_int; 2],
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("socknotify-fuzz-{}", std::process::id()));
    let open = |options: &mut std::fs::OpenOptions| options.open(&path).expect("a file");
    let create = || {
        let mut options = File::options();
        open(options.read(true).write(true).create(true).truncate(true))
    };
    let first = create();
    std::fs::remove_file(&path).expect("it is there");
    let second = create();
    let files = Files {
        regular: [first, second],
        read_only: open(File::options().read(true)),
        write_only: open(File::options().write(true)),
        directory: File::open("/").expect("a directory"),
        made_up: File::open("/proc/self/status").expect("a file of the kernel's"),
        pipe: {
            let mut ends = [0; 2];
            // SAFETY: there is room for two descriptors.
            assert_eq!(
                unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) },
                0
            );
            ends
        },
    };
    std::fs::remove_file(&path).expect("it is there");
    files
});

#[derive(Arbitrary, Clone, Copy, Debug)]
enum AnyFile {
    Regular(bool),
    /// These two are the second regular one.
    ReadOnly,
    WriteOnly,
    Directory,
    MadeUp,
    Pipe(bool),
    Negative(i32),
    /// No descriptor of this process has such a number.
    NotOpen(u16),
}

impl AnyFile {
    fn descriptor(self) -> c_int {
        match self {
            AnyFile::Regular(second) => FILES.regular[usize::from(second)].as_raw_fd(),
            AnyFile::ReadOnly => FILES.read_only.as_raw_fd(),
            AnyFile::WriteOnly => FILES.write_only.as_raw_fd(),
            AnyFile::Directory => FILES.directory.as_raw_fd(),
            AnyFile::MadeUp => FILES.made_up.as_raw_fd(),
            AnyFile::Pipe(end) => FILES.pipe[usize::from(end)],
            AnyFile::Negative(number) => number | i32::MIN,
            AnyFile::NotOpen(number) => 1 << 24 | c_int::from(number),
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    ReadParts,
    WriteParts,
    Sync,
    SyncData,
    ReadAssociated,
    WriteAssociated,
}

impl Kind {
    fn function(self) -> &'static str {
        match self {
            Kind::Read => "sn_read",
            Kind::Write => "sn_write",
            Kind::ReadParts => "sn_readv",
            Kind::WriteParts => "sn_writev",
            Kind::Sync | Kind::SyncData => "sn_sync",
            Kind::ReadAssociated => "sn_read_associated",
            Kind::WriteAssociated => "sn_write_associated",
        }
    }
}

/// What is wrong with an operation, if anything is.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Mistake {
    None,
    NullMemory,
    NullBlock,
    MisalignedBlock(u8),
    MisalignedParts,
    /// More than one operation may have: nothing of it may be touched.
    TooLong(u32),
    Offset(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Transfer {
    port: Port,
    file: AnyFile,
    kind: Kind,
    mistake: Mistake,
    key: u8,
    lengths: [u8; 3],
    parts: u8,
    offset: u16,
}

/// The block of an operation, and its memory.
#[repr(C)]
struct Block {
    overlapped: Overlapped,
    parts: [libc::iovec; 3],
    memory: [u8; 3 * PART],
}

/// An address that may be that of a block.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Address {
    /// One of an operation that was begun.
    Begun(u8),
    Null,
    Misaligned(u8),
    Any(usize),
}

/// Where the arrays of a call lie.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Layout {
    Apart,
    /// So many bytes off their alignment.
    Misaligned(u8),
    /// Everything from the same address on.
    Overlapping,
}

#[derive(Arbitrary, Debug)]
struct Process {
    port: Port,
    registrations: Vec<Registration>,
    /// How many are said to be there, if not as many.
    claimed: Option<u8>,
    room: u8,
    timeout: Timeout,
    layout: Layout,
    null_registrations: bool,
    null_entries: bool,
    null_received: bool,
    /// Without registrations: whether to dequeue by `sn_dequeue`.
    plain: bool,
    /// Otherwise: whether to use `sn_process_descriptors`.
    descriptors: bool,
}

/// `sn_dequeue_one`, whose three results lie in one block.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct DequeueOne {
    port: Port,
    timeout: Timeout,
    layout: Layout,
    nulls: [bool; 3],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Backend {
    Best,
    Epoll,
    Kqueue,
    Empty,
    Unknown(u8, u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Timeout {
    None,
    Short,
    Infinite,
}

impl Timeout {
    fn milliseconds(self) -> u32 {
        match self {
            Timeout::None => 0,
            Timeout::Short => 1,
            Timeout::Infinite => u32::MAX,
        }
    }
}

/// A call on a port that owns connections. Handles are those that were given last, or any number.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Owned {
    Create(u32, u16),
    Close,
    Drain(u8),
    Adopt(u8),
    /// A socket that is somebody else's, or none.
    AdoptOther(Socket),
    Arm(u8, u32, Timeout),
    End(u8),
    Cancel(Result<u8, u64>),
    Send(u8, u8),
    Queued(u8),
    Post(u8, u8),
    Next(bool),
    Nulls(u8),
}

#[derive(Arbitrary, Debug)]
enum Call {
    Process(Process),
    Post(Port, u8, u32, usize),
    DequeueOne(DequeueOne),
    Begin(Transfer),
    Cancel(Port, Address),
    Result(Address, bool),
    Associate(Port, AnyFile, u8),
    Dissociate(AnyFile),
    Deregister(Port, Socket),
    Release(Port),
    Query(Port, Option<u8>, u8),
    Descriptor(Port, bool),
    Texts(Port, u32),
    Create(u8, u32),
    CreateOn(u8, u32, Backend),
    CreateNowhere(u32),
    Close(Port),
    Blocking(Port, bool),
    Owned(Option<Port>, Owned),
    LastError(u32),
    /// Calls of the system between those of the interface.
    Write(u8, u8),
    Read(u8),
    CloseSocket(u8),
    NewSockets(u8),
}

/// What the threads share.
struct World {
    ports: [AtomicUsize; PORTS],
    sockets: [AtomicUsize; SOCKETS],
    /// Ports that are to be closed when all is over, whoever else has closed them.
    made: Mutex<Vec<usize>>,
    /// The blocks of operations whose packets were not dequeued.
    begun: Mutex<BTreeSet<usize>>,
    owner: AtomicUsize,
    handles: [AtomicU64; HANDLES],
    /// What the pointers of connections refer to that have not had their last event.
    owned: Mutex<BTreeSet<usize>>,
    running: AtomicUsize,
}

fn as_pointer(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

impl World {
    fn new() -> Self {
        let world = World {
            ports: Default::default(),
            sockets: Default::default(),
            made: Mutex::default(),
            begun: Mutex::default(),
            owner: AtomicUsize::new(0),
            handles: Default::default(),
            owned: Mutex::default(),
            running: AtomicUsize::new(0),
        };
        for index in 0..PORTS - 1 {
            world.create(index, index as u32);
        }
        for pair in 0..SOCKETS / 2 {
            world.new_sockets(pair);
        }
        world
    }

    fn create(&self, index: usize, concurrency: u32) {
        let mut port = ptr::null_mut();
        // SAFETY: `port` can be written to.
        let outcome = unsafe { sn_create_port(concurrency, &mut port) };
        // Only the system can refuse.
        assert_eq!(outcome, code::SUCCESS);
        self.put_port(index, port);
    }

    fn create_on(&self, index: usize, concurrency: u32, backend: Backend) {
        let unknown;
        let name = match backend {
            Backend::Best => ptr::null(),
            Backend::Epoll => c"epoll".as_ptr(),
            Backend::Kqueue => c"kqueue".as_ptr(),
            Backend::Empty => c"".as_ptr(),
            // No name has such a letter, and not all of these are text.
            Backend::Unknown(first, second) => {
                unknown = [first | 0x80, second, 0];
                unknown.as_ptr().cast()
            }
        };
        let mut port = ptr::without_provenance_mut(1);
        // SAFETY: `port` can be written to, and the name ends.
        let outcome = unsafe { sn_create_port_on(concurrency, name, &mut port) };
        let is_there = matches!(backend, Backend::Best | Backend::Epoll);
        let expected = if is_there {
            code::SUCCESS
        } else {
            code::NOT_SUPPORTED
        };
        assert_eq!((outcome, port.is_null()), (expected, !is_there));
        if is_there {
            self.put_port(index, port);
        }
    }

    fn put_port(&self, index: usize, port: *mut c_void) {
        lock(&self.made).push(port.addr());
        self.ports[index].store(port.addr(), Ordering::Relaxed);
    }

    fn new_sockets(&self, pair: usize) {
        let mut both = [0; 2];
        // The last pair is no pair of sockets.
        let kind = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET].get(pair % 4);
        // SAFETY: there is room for two descriptors.
        let done = unsafe {
            match kind {
                Some(kind) => libc::socketpair(
                    libc::AF_UNIX,
                    kind | libc::SOCK_NONBLOCK,
                    0,
                    both.as_mut_ptr(),
                ),
                None => libc::pipe2(both.as_mut_ptr(), libc::O_NONBLOCK),
            }
        };
        assert_eq!(done, 0);
        for (offset, socket) in both.into_iter().enumerate() {
            self.close_socket(2 * pair + offset);
            // Another thread may have put one there meanwhile.
            self.put_socket(2 * pair + offset, socket as usize);
        }
    }

    fn put_socket(&self, index: usize, socket: usize) {
        let previous = self.sockets[index].swap(socket, Ordering::Relaxed);
        if previous != 0 {
            // SAFETY: whoever takes a descriptor out of its place closes it, and nobody else does.
            unsafe { libc::close(previous as i32) };
        }
    }

    fn close_socket(&self, index: usize) {
        self.put_socket(index, 0);
    }

    fn port(&self, port: Port) -> *mut c_void {
        let shared = |index: u8| self.ports[index as usize % PORTS].load(Ordering::Relaxed);
        match port {
            Port::Shared(index) => as_pointer(shared(index)),
            Port::Number(number) => as_pointer(number),
            Port::Nearly(index, bit) => {
                as_pointer(shared(index) ^ 1 << (u32::from(bit) % usize::BITS))
            }
            Port::Null => ptr::null_mut(),
            Port::Invalid => as_pointer(usize::MAX),
            Port::Memory => (&raw const *self).cast_mut().cast(),
        }
    }

    fn socket(&self, socket: Socket) -> usize {
        match socket {
            Socket::Shared(index) => self.sockets[index as usize % SOCKETS].load(Ordering::Relaxed),
            Socket::Number(number) => number.into(),
            Socket::Any(number) => number,
            Socket::Invalid => usize::MAX,
        }
    }

    fn registration(&self, from: Registration) -> SockNotifyRegistration {
        let mut registration = SockNotifyRegistration {
            socket: self.socket(from.socket),
            completion_key: from.key.into(),
            event_filter: from.filter,
            operation: from.operation,
            trigger_flags: from.trigger,
            registration_result: u32::MAX,
        };
        if from.valid {
            registration.event_filter &= 7;
            registration.operation = [1, 1, 2, 4][from.operation as usize % 4];
            registration.trigger_flags = [4, 5, 6, 8, 9, 10][from.trigger as usize % 6];
        }
        registration
    }

    fn call(&self, call: &Call) {
        match *call {
            Call::Process(ref process) => self.process(process),
            Call::DequeueOne(dequeue) => self.dequeue_one(dequeue),
            Call::Begin(transfer) => self.begin(transfer),
            Call::Cancel(port, address) => self.cancel(self.port(port), address),
            Call::Result(address, no_room) => self.result(address, no_room),
            Call::Associate(port, file, key) => {
                let outcome = sn_associate(self.port(port), file.descriptor(), key.into());
                check("sn_associate", outcome);
            }
            Call::Dissociate(file) => {
                check("sn_dissociate", sn_dissociate(file.descriptor()));
            }
            Call::Deregister(port, socket) => {
                let outcome = sn_deregister(self.port(port), self.socket(socket));
                check("sn_deregister", outcome);
            }
            Call::Release(port) => {
                check("sn_release", sn_release(self.port(port)));
            }
            Call::Query(port, size, offset) => self.query(self.port(port), size, offset),
            Call::Descriptor(port, no_room) => {
                let mut descriptor = -1;
                let room = if no_room {
                    ptr::null_mut()
                } else {
                    &raw mut descriptor
                };
                // SAFETY: it is null or can be written to.
                let outcome = unsafe { sn_port_descriptor(self.port(port), room) };
                check("sn_port_descriptor", outcome);
                assert_eq!(outcome == code::SUCCESS, descriptor >= 0);
            }
            Call::Texts(port, number) => {
                let name = sn_backend(self.port(port));
                // SAFETY: the header says that it is valid.
                let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
                assert!(name.is_none_or(|name| name == c"epoll"), "{name:?}");
                // SAFETY: as above.
                let text = unsafe { CStr::from_ptr(sn_strerror(number)) };
                assert!(text.to_str().is_ok_and(|text| !text.is_empty()));
                assert_eq!(sn_version(), 1000);
                let reason = sn_reason(number);
                assert!(reason == 0 || (0x2000_0001..=0x2000_000C).contains(&reason));
            }
            Call::Post(port, key, transferred, overlapped) => {
                // An odd address is that of no block.
                let overlapped = as_pointer(overlapped | 1);
                let outcome = sn_post(self.port(port), transferred, key.into(), overlapped);
                check("sn_post", outcome);
            }
            Call::Create(index, concurrency) => {
                if lock(&self.made).len() < 2 * PORTS {
                    self.create(index as usize % PORTS, concurrency % 4);
                }
            }
            Call::CreateOn(index, concurrency, backend) => {
                if lock(&self.made).len() < 2 * PORTS {
                    self.create_on(index as usize % PORTS, concurrency % 4, backend);
                }
            }
            Call::CreateNowhere(concurrency) => {
                // SAFETY: null is allowed.
                let outcome = unsafe { sn_create_port(concurrency, ptr::null_mut()) };
                assert_eq!(outcome, code::INVALID_PARAMETER);
            }
            Call::Close(port) => {
                check("sn_close_port", sn_close_port(self.port(port)));
            }
            Call::Blocking(port, close) => self.block(self.port(port), close),
            Call::Owned(port, call) => {
                let owner = as_pointer(self.owner.load(Ordering::Relaxed));
                self.owned(port.map_or(owner, |port| self.port(port)), call);
            }
            Call::LastError(error) => {
                sn_set_last_error(error);
                assert_eq!(sn_last_error(), error);
            }
            Call::Write(index, length) => {
                let bytes = [0; 255];
                let socket = self.sockets[index as usize % SOCKETS].load(Ordering::Relaxed);
                if socket != 0 {
                    // SAFETY: so many bytes are there.
                    unsafe {
                        libc::send(
                            socket as i32,
                            bytes.as_ptr().cast(),
                            length.into(),
                            libc::MSG_NOSIGNAL,
                        )
                    };
                }
            }
            Call::Read(index) => {
                let mut bytes = [0; 255];
                let socket = self.sockets[index as usize % SOCKETS].load(Ordering::Relaxed);
                if socket != 0 {
                    // SAFETY: there is room for so many bytes.
                    unsafe { libc::recv(socket as i32, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
                }
            }
            Call::CloseSocket(index) => self.close_socket(index as usize % SOCKETS),
            Call::NewSockets(pair) => self.new_sockets(pair as usize % (SOCKETS / 2)),
        }
    }

    fn owned(&self, port: *mut c_void, call: Owned) {
        let place = |index: u8| &self.handles[index as usize % HANDLES];
        let handle = |index| place(index).load(Ordering::Relaxed);
        let mut made = 0;
        match call {
            Owned::Create(concurrency, limit) => {
                let mut port = ptr::null_mut();
                // SAFETY: `port` can be written to.
                let outcome = unsafe { sn_owned_create(concurrency % 4, limit.into(), &mut port) };
                assert_eq!(check("sn_owned_create", outcome), code::SUCCESS);
                let before = self.owner.swap(port.addr(), Ordering::Relaxed);
                self.close_owner(before);
            }
            Owned::Close => self.close_owner(port.addr()),
            Owned::Drain(within) => {
                check("sn_owned_drain", sn_owned_drain(port, within.into()));
            }
            Owned::Adopt(index) => {
                let mut pair = [0; 2];
                let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
                // SAFETY: there is room for two descriptors.
                let done = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
                assert_eq!(done, 0);
                let user = Box::into_raw(Box::new(0_u64));
                lock(&self.owned).insert(user.expose_provenance());
                // SAFETY: the descriptor is nobody else's, and `made` can be written to.
                let outcome = unsafe { sn_owned_adopt(port, pair[0], user.cast(), &mut made) };
                if check("sn_owned_adopt", outcome) != code::SUCCESS {
                    self.free_owned(user.addr());
                    // SAFETY: it was not adopted.
                    unsafe { libc::close(pair[0]) };
                }
                self.put_socket(index as usize % SOCKETS, pair[1] as usize);
                place(index).store(made, Ordering::Relaxed);
            }
            Owned::AdoptOther(socket) => {
                let socket = self.socket(socket) as c_int;
                // SAFETY: of a copy nobody else knows; without one it is no descriptor.
                let outcome = unsafe {
                    let copy = libc::dup(socket);
                    let outcome = sn_owned_adopt(port, copy, ptr::null_mut(), &mut made);
                    if outcome != code::SUCCESS && copy >= 0 {
                        libc::close(copy);
                    }
                    outcome
                };
                check("sn_owned_adopt", outcome);
            }
            Owned::Arm(index, events, timeout) => {
                let timeout = timeout.milliseconds();
                let outcome = sn_owned_arm(port, handle(index), events % 16, timeout);
                check("sn_owned_arm", outcome);
            }
            Owned::End(index) => {
                check("sn_owned_end", sn_owned_end(port, handle(index)));
            }
            Owned::Cancel(which) => {
                let outcome = sn_owned_cancel(port, which.map_or_else(|any| any, handle));
                check("sn_owned_cancel", outcome);
            }
            Owned::Send(index, length) => {
                let bytes = [0_u8; 256];
                let first = bytes.as_ptr().cast();
                // SAFETY: so many bytes are there.
                let outcome = unsafe { sn_owned_send(port, handle(index), first, length.into()) };
                check("sn_owned_send", outcome);
            }
            Owned::Queued(index) => {
                let mut bytes = 0;
                // SAFETY: `bytes` can be written to.
                let outcome = unsafe { sn_owned_queued(port, handle(index), &mut bytes) };
                check("sn_owned_queued", outcome);
            }
            Owned::Post(index, after) => {
                let user = as_pointer(usize::from(after));
                // SAFETY: `made` can be written to.
                let outcome = unsafe { sn_owned_post(port, user, after.into(), &mut made) };
                check("sn_owned_post", outcome);
                place(index).store(made, Ordering::Relaxed);
            }
            Owned::Next(waits) => {
                let mut event = std::mem::MaybeUninit::<OwnedEvent>::uninit();
                // SAFETY: it can be written to.
                let outcome = unsafe { sn_owned_next(port, event.as_mut_ptr(), waits.into()) };
                if check("sn_owned_next", outcome) == code::SUCCESS {
                    // SAFETY: it was written.
                    let event = unsafe { event.assume_init() };
                    assert!((1..=6).contains(&event.kind), "{event:?}");
                    if event.kind == CLOSED && event.user != 0 {
                        self.free_owned(event.user);
                    }
                }
            }
            Owned::Nulls(index) => {
                let none = ptr::null_mut();
                // SAFETY: null is allowed.
                let outcomes = unsafe {
                    [
                        sn_owned_create(0, 0, ptr::null_mut()),
                        sn_owned_adopt(port, 0, none, ptr::null_mut()),
                        sn_owned_next(port, ptr::null_mut(), 0),
                        sn_owned_post(port, none, 0, ptr::null_mut()),
                        sn_owned_send(port, handle(index), ptr::null(), 1),
                        sn_owned_queued(port, handle(index), ptr::null_mut()),
                    ]
                };
                let is_wrong = |it| [code::INVALID_PARAMETER, code::INVALID_HANDLE].contains(&it);
                assert!(outcomes.into_iter().all(is_wrong), "{outcomes:?}");
            }
        }
    }

    fn close_owner(&self, number: usize) {
        check("sn_owned_close", sn_owned_close(as_pointer(number)));
    }

    /// The connection is closed, and has its last event but once.
    fn free_owned(&self, address: usize) {
        assert!(lock(&self.owned).remove(&address), "a second last event");
        // SAFETY: it was made by a box, and nobody has freed it.
        drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<u64>(address)) });
    }

    fn block(&self, port: *mut c_void, close: bool) {
        unsafe extern "C" fn work(port: *mut c_void) {
            sn_post(port, 0, 1, ptr::null_mut());
        }
        unsafe extern "C" fn work_and_close(port: *mut c_void) {
            sn_close_port(port);
        }
        let work: unsafe extern "C" fn(*mut c_void) = if close { work_and_close } else { work };
        // SAFETY: both take any pointer, and return.
        check("sn_blocking", unsafe {
            sn_blocking(port, Some(work), port)
        });
        // SAFETY: null is allowed.
        let outcome = unsafe { sn_blocking(port, None, port) };
        assert_eq!(outcome, code::INVALID_PARAMETER);
    }

    fn begin(&self, transfer: Transfer) {
        let Transfer {
            file,
            kind,
            mistake,
            ..
        } = transfer;
        let offset = match mistake {
            Mistake::Offset(offset) => offset,
            _ => transfer.offset.into(),
        };
        let block = Box::into_raw(Box::new(Block {
            overlapped: Overlapped::new(offset),
            // SAFETY: any bits are a value of them.
            parts: unsafe { std::mem::zeroed() },
            memory: [UNTOUCHED; 3 * PART],
        }));
        // SAFETY: it was made above, and nobody else has it yet.
        let memory: *mut u8 = unsafe { &raw mut (*block).memory }.cast();
        // SAFETY: as above.
        let parts: *mut libc::iovec = unsafe { &raw mut (*block).parts }.cast();
        for (index, length) in transfer.lengths.into_iter().enumerate() {
            let part = libc::iovec {
                // SAFETY: it is within the memory.
                iov_base: unsafe { memory.add(index * PART) }.cast(),
                iov_len: match mistake {
                    Mistake::TooLong(length) if index == 0 => (1 << 30 | length as usize) + 1,
                    _ => length as usize % (PART + 1),
                },
            };
            // SAFETY: there are three of them.
            unsafe { parts.add(index).write(part) };
        }
        let mut count = u32::from(transfer.parts) % 4;
        let mut length = u32::from(transfer.lengths[0]) % (3 * PART as u32 + 1);
        let (mut first, mut first_part) = (memory, parts);
        let mut overlapped = block.cast::<Overlapped>();
        match mistake {
            Mistake::None | Mistake::Offset(_) => {}
            Mistake::NullMemory => (first, first_part) = (ptr::null_mut(), ptr::null_mut()),
            Mistake::NullBlock => overlapped = ptr::null_mut(),
            Mistake::MisalignedBlock(by) => {
                overlapped = overlapped.wrapping_byte_add(1 + by as usize % 3);
            }
            Mistake::MisalignedParts => (first_part, count) = (parts.wrapping_byte_add(1), 2),
            Mistake::TooLong(more) => {
                length = (1 << 30 | more) + u32::from(more < u32::MAX);
                count = count.max(1);
            }
        }
        // It may be complete before the call has returned.
        lock(&self.begun).insert(block.expose_provenance());
        let (port, file, key) = (
            self.port(transfer.port),
            file.descriptor(),
            transfer.key.into(),
        );
        // SAFETY: what is there stays until the packet was dequeued; what is not there has to be refused.
        let outcome = unsafe {
            match kind {
                Kind::Read => sn_read(port, file, first.cast(), length, key, overlapped),
                Kind::Write => sn_write(port, file, first.cast(), length, key, overlapped),
                Kind::ReadParts => sn_readv(port, file, first_part, count, key, overlapped),
                Kind::WriteParts => sn_writev(port, file, first_part, count, key, overlapped),
                Kind::Sync => sn_sync(port, file, 0, key, overlapped),
                Kind::SyncData => sn_sync(port, file, 1, key, overlapped),
                Kind::ReadAssociated => sn_read_associated(file, first.cast(), length, overlapped),
                Kind::WriteAssociated => {
                    sn_write_associated(file, first.cast(), length, overlapped)
                }
            }
        };
        check(kind.function(), outcome);
        let is_possible = match (mistake, kind) {
            (Mistake::None | Mistake::Offset(_), _) => true,
            (Mistake::NullBlock | Mistake::MisalignedBlock(_), _) => false,
            (_, Kind::Sync | Kind::SyncData) => true,
            (Mistake::MisalignedParts, kind) => !matches!(kind, Kind::ReadParts | Kind::WriteParts),
            (Mistake::NullMemory | Mistake::TooLong(_), _) => false,
        };
        if outcome != code::SUCCESS {
            self.is_over(block.expose_provenance());
        } else {
            assert!(is_possible, "{transfer:?}");
        }
    }

    /// There is no operation with this block any more.
    fn is_over(&self, address: usize) {
        let was_begun = lock(&self.begun).remove(&address);
        assert!(was_begun, "a packet without an operation");
        // SAFETY: it was made by a box, and whoever takes it out of the set is the only one.
        drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<Block>(address)) });
    }

    /// A packet was dequeued.
    fn on_packet(&self, overlapped: usize) {
        // Posted ones have odd addresses, and notifications none.
        if overlapped != 0 && overlapped % 2 == 0 {
            self.is_over(overlapped);
        }
    }

    fn address(&self, address: Address, begun: &BTreeSet<usize>) -> *const Overlapped {
        let number = match address {
            Address::Begun(index) if !begun.is_empty() => *begun
                .iter()
                .nth(index as usize % begun.len())
                .expect("it is not empty"),
            Address::Begun(_) | Address::Null => 0,
            Address::Misaligned(by) => {
                begun.first().copied().unwrap_or(1 << 20) + 1 + by as usize % 7
            }
            Address::Any(number) => number,
        };
        ptr::with_exposed_provenance(number)
    }

    fn cancel(&self, port: *mut c_void, address: Address) {
        let begun = lock(&self.begun).clone();
        // Whoever it belongs to: it may be gone.
        let outcome = sn_cancel(port, self.address(address, &begun));
        check("sn_cancel", outcome);
        assert!(outcome != code::SUCCESS || matches!(address, Address::Begun(_) | Address::Any(_)));
    }

    fn result(&self, address: Address, no_room: bool) {
        // Nobody frees one meanwhile.
        let begun = lock(&self.begun);
        let address = match address {
            Address::Any(_) => Address::Null,
            other => other,
        };
        let overlapped = self.address(address, &begun);
        let mut transferred = u32::MAX;
        let room = if no_room {
            ptr::null_mut()
        } else {
            &raw mut transferred
        };
        // SAFETY: both are null, or there; or misaligned.
        let outcome = unsafe { sn_result(overlapped, room) };
        check("sn_result", outcome);
        // SAFETY: as above.
        let number = unsafe { sn_errno(overlapped) };
        assert!(outcome == code::SUCCESS || no_room || number != 0 || outcome == code::HANDLE_EOF);
        assert!(transferred as usize <= 3 * PART || transferred == u32::MAX);
    }

    fn query(&self, port: *mut c_void, size: Option<u8>, offset: u8) {
        const SIZE: usize = size_of::<PortState>();
        // As many bytes as the structure says that it has, wherever they are.
        let size = size.map_or(SIZE, |size| 4 + size as usize % (2 * SIZE));
        let offset = offset as usize % 8;
        let mut memory = vec![UNTOUCHED; offset + size].into_boxed_slice();
        memory[offset..offset + 4].copy_from_slice(&(size as u32).to_ne_bytes());
        let state = memory[offset..].as_mut_ptr().cast();
        // SAFETY: as many bytes are there.
        let outcome = unsafe { sn_query_port(port, state) };
        check("sn_query_port", outcome);
        let written = if outcome == code::SUCCESS { SIZE } else { 4 };
        let rest = &memory[offset + written..];
        assert!(rest.iter().all(|byte| *byte == UNTOUCHED));
        assert!(outcome != code::SUCCESS || size >= SIZE);
        // SAFETY: null is allowed.
        let outcome = unsafe { sn_query_port(port, ptr::null_mut()) };
        assert_eq!(outcome, code::INVALID_PARAMETER);
    }

    fn dequeue_one(&self, dequeue: DequeueOne) {
        const WORD: usize = size_of::<usize>();
        let (offset, apart) = match dequeue.layout {
            Layout::Apart => (0, true),
            Layout::Misaligned(by) => (by as usize % 16, true),
            Layout::Overlapping => (0, false),
        };
        let places = match apart {
            true => [offset, offset + 4, offset + 4 + WORD],
            false => [offset; 3],
        };
        let end = (places[0] + 4).max(places[1] + WORD).max(places[2] + WORD);
        let mut memory = vec![UNTOUCHED; end].into_boxed_slice();
        let base = memory.as_mut_ptr();
        let room = [0, 1, 2].map(|index| match dequeue.nulls[index] {
            true => ptr::null_mut(),
            // SAFETY: it is within the block.
            false => unsafe { base.add(places[index]) },
        });
        // SAFETY: each is null, or as much is there.
        let outcome = unsafe {
            sn_dequeue_one(
                self.port(dequeue.port),
                room[0].cast(),
                room[1].cast(),
                room[2].cast(),
                dequeue.timeout.milliseconds(),
            )
        };
        if dequeue.nulls.contains(&true) {
            assert_eq!(outcome, code::INVALID_PARAMETER);
            return;
        }
        if !apart {
            return;
        }
        // SAFETY: they are within the block.
        let [key, overlapped] =
            [1, 2].map(|index| unsafe { room[index].cast::<usize>().read_unaligned() });
        if overlapped != 0 && outcome != code::SUCCESS {
            // The error of an operation.
            check("sn_result", outcome);
        } else if check("sn_dequeue_one", outcome) != code::SUCCESS {
            assert_eq!(memory[places[0]..places[2]], [UNTOUCHED; 4 + WORD]);
            return;
        }
        assert!(key < KEYS, "{key:#x}");
        self.on_packet(overlapped);
    }

    fn process(&self, process: &Process) {
        const ENTRY: usize = size_of::<OverlappedEntry>();
        const REGISTRATION: usize = size_of::<SockNotifyRegistration>();
        let registrations: Vec<_> = process
            .registrations
            .iter()
            .take(8)
            .map(|from| self.registration(*from))
            .collect();
        let room = process.room as usize % 9;
        // The counts that a caller gives must not be more than there is. All else may be wrong.
        let claimed = process
            .claimed
            .map_or(registrations.len(), |claimed| claimed as usize % 9);
        let claimed = claimed.min(registrations.len());
        let (offset, apart) = match process.layout {
            Layout::Apart => (0, true),
            Layout::Misaligned(by) => (by as usize % 16, true),
            Layout::Overlapping => (0, false),
        };

        // One block for everything, exactly as large as what is said to be in it.
        let registrations_at = offset;
        let entries_at = if apart {
            offset + registrations.len() * REGISTRATION
        } else {
            offset
        };
        let received_at = if apart {
            entries_at + room * ENTRY
        } else {
            offset
        };
        let end = (registrations_at + registrations.len() * REGISTRATION)
            .max(entries_at + room * ENTRY)
            .max(received_at + 4);
        let mut memory = vec![UNTOUCHED; end].into_boxed_slice();
        let base = memory.as_mut_ptr();
        // SAFETY: all of them lie within the block.
        let (first, entries, received) = unsafe {
            let first: *mut SockNotifyRegistration = base.add(registrations_at).cast();
            for (index, registration) in registrations.iter().enumerate() {
                first.add(index).write_unaligned(*registration);
            }
            (
                first,
                base.add(entries_at).cast(),
                base.add(received_at).cast(),
            )
        };
        let null = |is_null, pointer| if is_null { ptr::null_mut() } else { pointer };
        let first = if process.null_registrations {
            ptr::null_mut()
        } else {
            first
        };
        let entries: *mut OverlappedEntry = if process.null_entries {
            ptr::null_mut()
        } else {
            entries
        };
        let received: *mut u32 = null(process.null_received, received);
        let timeout = process.timeout.milliseconds();
        let port = self.port(process.port);
        let (count, room_count) = (claimed as u32, room as u32);
        // SAFETY: each pointer is null or valid for its count.
        let (function, outcome) = unsafe {
            if claimed == 0 && process.plain {
                let outcome = sn_dequeue(port, entries, room_count, received, timeout);
                ("sn_dequeue", outcome)
            } else if process.descriptors {
                let outcome = sn_process_descriptors(
                    port, count, first, timeout, room_count, entries, received,
                );
                ("sn_process_descriptors", outcome)
            } else {
                let outcome =
                    sn_process(port, count, first, timeout, room_count, entries, received);
                ("sn_process", outcome)
            }
        };
        check(function, outcome);
        if !apart {
            return;
        }

        let dequeued = match outcome {
            // SAFETY: it is within the block.
            code::SUCCESS if room > 0 => unsafe { received.read_unaligned() as usize },
            _ => 0,
        };
        assert!(dequeued <= room);
        if outcome == code::SUCCESS && room > 0 {
            assert!(dequeued > 0);
        } else if !received.is_null() {
            // SAFETY: it is within the block.
            assert_eq!(unsafe { received.read_unaligned() }, 0);
        }
        for index in 0..dequeued {
            // SAFETY: it is within the block.
            let entry = unsafe { entries.add(index).read_unaligned() };
            assert!(entry.completion_key < KEYS, "{entry:?}");
            self.on_packet(entry.overlapped);
        }
        let rest = &memory[entries_at + dequeued * ENTRY..received_at];
        assert!(rest.iter().all(|byte| *byte == UNTOUCHED));

        let applied = [code::SUCCESS, code::TIMEOUT].contains(&outcome);
        for (index, before) in registrations.iter().enumerate() {
            let at = registrations_at + index * REGISTRATION;
            // SAFETY: it is within the block.
            let after: SockNotifyRegistration = unsafe {
                memory
                    .as_ptr()
                    .add(at)
                    .cast::<SockNotifyRegistration>()
                    .read_unaligned()
            };
            let result = after.registration_result;
            if applied && index < claimed {
                check_entry(function, result);
                let reason = sn_reason(index as u32);
                assert_eq!(
                    reason == 0,
                    result == code::SUCCESS,
                    "{result}: {reason:#x}"
                );
            } else {
                assert_eq!(result, before.registration_result);
            }
            assert_eq!(
                (after.socket, after.completion_key),
                (before.socket, before.completion_key)
            );
        }
    }
}

fuzz_target!(|scripts: (Vec<Call>, Vec<Call>, Vec<Call>)| {
    let world = World::new();
    let (first, second, third) = scripts;
    let others: Vec<_> = [second, third]
        .into_iter()
        .filter(|script| !script.is_empty())
        .collect();
    world.running.store(others.len() + 1, Ordering::Relaxed);
    let main = thread::current();
    let run = |script: &[Call]| {
        for call in script.iter().take(64) {
            world.call(call);
        }
        if world.running.fetch_sub(1, Ordering::Release) == 1 {
            main.unpark();
        }
    };
    thread::scope(|scope| {
        let mut threads = vec![scope.spawn(|| run(&first))];
        threads.extend(others.iter().map(|script| scope.spawn(|| run(script))));
        // Whoever waits for ever is released by closing.
        while world.running.load(Ordering::Acquire) > 0 {
            thread::park_timeout(Duration::from_millis(2));
            if world.running.load(Ordering::Acquire) > 0 {
                close_all(&world);
            }
        }
        // The end of the scope alone does not wait for what a thread does at its very end.
        for thread in threads {
            thread.join().expect("a script does not panic");
        }
    });
    close_all(&world);
    // The ports are closed, and so the blocks are their caller's again.
    let begun = lock(&world.begun).clone();
    for address in begun {
        let mut transferred = 0;
        // SAFETY: it was made by a box, and nobody has freed it.
        let outcome = unsafe { sn_result(ptr::with_exposed_provenance(address), &mut transferred) };
        assert_ne!(check("sn_result", outcome), code::IO_INCOMPLETE);
        world.is_over(address);
    }
    world.close_owner(world.owner.load(Ordering::Relaxed));
    // Those whose last event nobody has taken.
    let owned = lock(&world.owned).clone();
    for address in owned {
        world.free_owned(address);
    }
    for index in 0..SOCKETS {
        world.close_socket(index);
    }
});

fn close_all(world: &World) {
    for port in lock(&world.made).iter() {
        sn_close_port(as_pointer(*port));
    }
}
