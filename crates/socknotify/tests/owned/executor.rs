//! An executor of futures on nothing but a port: wakers are messages, sleeping is a timer of the port, and
//! waiting is for any descriptor. No other loop runs beside it.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source};

use crate::support::{backends, wait_until};

/// Something that a future waits for in the port, which borrows no descriptor: it has one of its own.
struct Wait {
    descriptor: Arc<dyn AsFd + Send + Sync>,
    done: Arc<AtomicBool>,
    waker: Waker,
}

impl Source for Wait {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.descriptor.as_fd()
    }
}

enum Message {
    Run(Arc<Task>),
    Wake(Waker, Arc<AtomicBool>),
}

struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    is_queued: AtomicBool,
    runtime: Runtime,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            let port = Arc::clone(&self.runtime.port);
            // When the port is closed, nothing runs any more.
            let _ = port.send(Message::Run(self));
        }
    }
}

#[derive(Clone)]
struct Runtime {
    port: Arc<Port<Wait, Message>>,
}

impl Runtime {
    /// Runs futures on this thread until the port is closed.
    fn run(&self) {
        let mut worker = self.port.worker(16);
        while worker.process(None).is_ok() {
            while let Some(event) = worker.take() {
                match event {
                    Event::Message(Message::Run(task)) => {
                        task.is_queued.store(false, Ordering::Release);
                        let mut future = task.future.lock().expect("no panic");
                        let waker = Waker::from(Arc::clone(&task));
                        let mut context = Context::from_waker(&waker);
                        let polled = future.as_mut().map(|it| it.as_mut().poll(&mut context));
                        if polled == Some(Poll::Ready(())) {
                            *future = None;
                        }
                    }
                    Event::Message(Message::Wake(waker, done)) => {
                        done.store(true, Ordering::Release);
                        waker.wake();
                    }
                    Event::Ready(held, _) => {
                        // Deregistered, and not closed: the future has it, too.
                        let wait = held.into_inner();
                        wait.done.store(true, Ordering::Release);
                        wait.waker.wake();
                    }
                    other => panic!("{}", std::any::type_name_of_val(&other)),
                }
            }
        }
    }

    fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = Arc::new(Task {
            future: Mutex::new(Some(Box::pin(future))),
            is_queued: AtomicBool::new(false),
            runtime: self.clone(),
        });
        task.wake();
    }

    /// Waits until something is done that is begun with a waker.
    async fn until_done(&self, begin: impl FnOnce(Waker, Arc<AtomicBool>)) {
        let done = Arc::new(AtomicBool::new(false));
        let mut begin = Some(begin);
        poll_fn(|context| {
            if let Some(begin) = begin.take() {
                begin(context.waker().clone(), Arc::clone(&done));
            }
            match done.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    async fn sleep(&self, time: Duration) {
        self.until_done(|waker, done| {
            let message = Message::Wake(waker, done);
            assert!(self.port.send_after(time, message).is_ok());
        })
        .await;
    }

    /// Tries something until it would not block.
    async fn ready<D: AsFd + Send + Sync + 'static, R>(
        &self,
        descriptor: &Arc<D>,
        interest: Interest,
        mut attempt: impl FnMut(&D) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match attempt(descriptor) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let descriptor: Arc<dyn AsFd + Send + Sync> = Arc::<D>::clone(descriptor);
            self.until_done(|waker, done| {
                let wait = Wait {
                    descriptor,
                    done,
                    waker,
                };
                let held = self.port.adopt_descriptor(wait).expect("it can be watched");
                self.port.arm(held, interest);
            })
            .await;
        }
    }
}

/// How many tasks have yet to end, and where their errors go.
#[derive(Clone, Default)]
struct Tally {
    left: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Tally {
    fn spawn(
        &self,
        runtime: &Runtime,
        future: impl Future<Output = io::Result<()>> + Send + 'static,
    ) {
        self.left.fetch_add(1, Ordering::Relaxed);
        let tally = self.clone();
        runtime.spawn(async move {
            if let Err(error) = future.await {
                let mut failures = tally.failures.lock().expect("no panic");
                failures.push(error.to_string());
            }
            tally.left.fetch_sub(1, Ordering::Release);
        });
    }
}

async fn echo(runtime: Runtime, stream: TcpStream) -> io::Result<()> {
    let stream = Arc::new(stream);
    let mut buffer = [0; 256];
    loop {
        let length = runtime
            .ready(&stream, Interest::IN, |mut it| it.read(&mut buffer))
            .await?;
        if length == 0 {
            return Ok(());
        }
        let mut sent = 0;
        while sent < length {
            let bytes = &buffer[sent..length];
            sent += runtime
                .ready(&stream, Interest::OUT, |mut it| it.write(bytes))
                .await?;
        }
    }
}

async fn client(runtime: Runtime, address: SocketAddr, number: u8) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nonblocking(true)?;
    let stream = Arc::new(stream);
    for round in 0..50 {
        let request = [number, round];
        (&*stream).write_all(&request)?;
        let mut answer = [0; 2];
        let mut length = 0;
        while length < 2 {
            length += runtime
                .ready(&stream, Interest::IN, |mut it| {
                    it.read(&mut answer[length..])
                })
                .await?;
        }
        assert_eq!(answer, request);
        if round % 10 == 0 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

async fn accept(
    runtime: Runtime,
    listener: TcpListener,
    tally: Tally,
    count: usize,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = Arc::new(listener);
    for _ in 0..count {
        let (stream, _) = runtime
            .ready(&listener, Interest::IN, TcpListener::accept)
            .await?;
        stream.set_nonblocking(true)?;
        tally.spawn(&runtime, echo(runtime.clone(), stream));
    }
    Ok(())
}

const MUCH: usize = 1 << 20;

async fn fill_pipe(runtime: Runtime, pipe: File) -> io::Result<()> {
    let pipe = Arc::new(pipe);
    let bytes = vec![7; MUCH];
    let mut sent = 0;
    while sent < MUCH {
        sent += runtime
            .ready(&pipe, Interest::OUT, |mut it| it.write(&bytes[sent..]))
            .await?;
    }
    Ok(())
}

async fn empty_pipe(runtime: Runtime, pipe: File) -> io::Result<()> {
    let pipe = Arc::new(pipe);
    let mut buffer = vec![0; 5000];
    let mut received = 0;
    loop {
        let length = runtime
            .ready(&pipe, Interest::IN, |mut it| it.read(&mut buffer))
            .await?;
        if length == 0 {
            assert_eq!(received, MUCH);
            return Ok(());
        }
        assert!(buffer[..length].iter().all(|&byte| byte == 7));
        received += length;
    }
}

async fn tick(runtime: Runtime) -> io::Result<()> {
    for milliseconds in [1, 3, 7, 20] {
        let time = Duration::from_millis(milliseconds);
        let begin = Instant::now();
        runtime.sleep(time).await;
        assert!(begin.elapsed() >= time);
    }
    Ok(())
}

#[test]
fn futures_run_on_a_port_alone() -> io::Result<()> {
    const CLIENTS: u8 = 20;
    for backend in backends() {
        let port = Port::builder().backend(backend).unlimited().build()?;
        let runtime = Runtime {
            port: Arc::new(port),
        };
        let tally = Tally::default();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let accept = accept(runtime.clone(), listener, tally.clone(), CLIENTS.into());
        tally.spawn(&runtime, accept);
        for number in 0..CLIENTS {
            tally.spawn(&runtime, client(runtime.clone(), address, number));
            tally.spawn(&runtime, tick(runtime.clone()));
        }
        for _ in 0..3 {
            let (reader, writer) = rustix::pipe::pipe()?;
            rustix::io::ioctl_fionbio(&reader, true)?;
            rustix::io::ioctl_fionbio(&writer, true)?;
            tally.spawn(&runtime, fill_pipe(runtime.clone(), writer.into()));
            tally.spawn(&runtime, empty_pipe(runtime.clone(), reader.into()));
        }
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| runtime.run());
            }
            wait_until("all have ended", || tally.left.load(Ordering::Acquire) == 0);
            assert!(runtime.port.close().is_empty(), "nothing waits any more");
        });
        assert_eq!(tally.left.load(Ordering::Acquire), 0);
        assert_eq!(*tally.failures.lock().expect("no panic"), [""; 0]);
        assert_eq!(runtime.port.connections(), 0);
    }
    Ok(())
}
