//! Arbitrary sequences of calls to the C interface, on up to three threads at once.
//!
//! The threads share a few ports and a few sockets, and do with them what they are told: valid calls
//! and invalid ones, with closed and foreign handles, null pointers, misaligned and overlapping
//! arrays. AddressSanitizer watches the memory, and the target checks what can be checked of each
//! outcome whatever the other threads do: that its code is one that the header names, that nothing
//! is written beyond what was received, and that no key comes out that nobody put in.
//!
//! ```sh
//! cd crates/socknotify-c     # with cargo-fuzz installed
//! cargo +nightly fuzz run calls -- -max_total_time=1800 -max_len=4096 -len_control=0
//! ```

#![no_main]

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use socknotify_c::caller::{OverlappedEntry, SockNotifyRegistration};
use socknotify_c::{
    code, sn_blocking, sn_close_port, sn_create_port, sn_dequeue, sn_last_error, sn_post,
    sn_process, sn_set_last_error,
};

const PORTS: usize = 3;
const SOCKETS: usize = 8;

/// Keys are small numbers, except for those that came from a misread packet.
const KEYS: usize = 256;

/// What a packet's memory holds before the call.
const UNTOUCHED: u8 = 0xa5;

/// The codes that a call on a port may return, whatever else goes on.
const OF_CALLS: [u32; 6] = [
    code::SUCCESS,
    code::INVALID_HANDLE,
    code::NOT_ENOUGH_MEMORY,
    code::INVALID_PARAMETER,
    code::TIMEOUT,
    code::ABANDONED_WAIT,
];

/// The codes that an entry may get: these, `ERROR_NOT_FOUND` and `WSAENOTSOCK`.
const OF_ENTRIES: [u32; 5] = [
    code::SUCCESS,
    code::NOT_ENOUGH_MEMORY,
    code::INVALID_PARAMETER,
    1168,
    10038,
];

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
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Timeout {
    None,
    Short,
    Infinite,
}

#[derive(Arbitrary, Debug)]
enum Call {
    Process(Process),
    Post(Port, u8, u32, usize),
    Create(u8, u32),
    CreateNowhere(u32),
    Close(Port),
    Blocking(Port, bool),
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
        self.made.lock().unwrap().push(port.addr());
        self.ports[index].store(port.addr(), Ordering::Relaxed);
    }

    fn new_sockets(&self, pair: usize) {
        let kind = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET][pair % 3];
        let mut both = [0; 2];
        // SAFETY: there is room for two descriptors.
        let done = unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                kind | libc::SOCK_NONBLOCK,
                0,
                both.as_mut_ptr(),
            )
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
            Call::Post(port, key, transferred, overlapped) => {
                let outcome = sn_post(
                    self.port(port),
                    transferred,
                    key.into(),
                    as_pointer(overlapped),
                );
                assert!(OF_CALLS.contains(&outcome), "{outcome}");
            }
            Call::Create(index, concurrency) => {
                if self.made.lock().unwrap().len() < 2 * PORTS {
                    self.create(index as usize % PORTS, concurrency % 4);
                }
            }
            Call::CreateNowhere(concurrency) => {
                // SAFETY: null is allowed.
                let outcome = unsafe { sn_create_port(concurrency, ptr::null_mut()) };
                assert_eq!(outcome, code::INVALID_PARAMETER);
            }
            Call::Close(port) => {
                let outcome = sn_close_port(self.port(port));
                assert!(
                    [code::SUCCESS, code::INVALID_HANDLE].contains(&outcome),
                    "{outcome}"
                );
            }
            Call::Blocking(port, close) => self.block(self.port(port), close),
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

    fn block(&self, port: *mut c_void, close: bool) {
        unsafe extern "C" fn work(port: *mut c_void) {
            sn_post(port, 0, 1, ptr::null_mut());
        }
        unsafe extern "C" fn work_and_close(port: *mut c_void) {
            sn_close_port(port);
        }
        let work: unsafe extern "C" fn(*mut c_void) = if close { work_and_close } else { work };
        // SAFETY: both take any pointer, and return.
        let outcome = unsafe { sn_blocking(port, Some(work), port) };
        assert!(
            [code::SUCCESS, code::INVALID_HANDLE].contains(&outcome),
            "{outcome}"
        );
        // SAFETY: null is allowed.
        let outcome = unsafe { sn_blocking(port, None, port) };
        assert_eq!(outcome, code::INVALID_PARAMETER);
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
        let timeout = match process.timeout {
            Timeout::None => 0,
            Timeout::Short => 1,
            Timeout::Infinite => u32::MAX,
        };
        let port = self.port(process.port);
        let outcome = if claimed == 0 && process.plain {
            // SAFETY: each pointer is null or valid for its count.
            unsafe { sn_dequeue(port, entries, room as u32, received, timeout) }
        } else {
            // SAFETY: as above.
            unsafe {
                sn_process(
                    port,
                    claimed as u32,
                    first,
                    timeout,
                    room as u32,
                    entries,
                    received,
                )
            }
        };
        assert!(OF_CALLS.contains(&outcome), "{outcome}");
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
                assert!(OF_ENTRIES.contains(&result), "{result}");
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
    for index in 0..SOCKETS {
        world.close_socket(index);
    }
});

fn close_all(world: &World) {
    for port in world.made.lock().unwrap().iter() {
        sn_close_port(as_pointer(*port));
    }
}
