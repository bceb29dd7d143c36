//! Tasks by themselves: spawning, waking, timers, and memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use crate::server::Runtime;

/// Counts the bytes that are allocated.
struct Counting;

static BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as promised to this.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as promised to this.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Both runtimes, side by side.
pub(crate) fn compare() -> io::Result<()> {
    let figures = |runtime: Runtime| -> io::Result<Vec<(String, f64)>> {
        let program = std::env::current_exe()?;
        let mut all: Vec<Vec<f64>> = Vec::new();
        let mut names = Vec::new();
        for _ in 0..5 {
            let output = Command::new(&program)
                .args(["tasks", "--only", runtime.name()])
                .output()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines = text.lines().filter_map(|line| line.split_once(" = "));
            let (these, values): (Vec<_>, Vec<_>) = lines
                .map(|(name, value)| (name.to_owned(), value.parse().unwrap_or(0.0)))
                .unzip();
            names = these;
            all.push(values);
        }
        Ok(names
            .into_iter()
            .enumerate()
            .map(|(index, name)| {
                let mut values: Vec<f64> = all.iter().map(|it| it[index]).collect();
                values.sort_by(f64::total_cmp);
                (name, values[values.len() / 2])
            })
            .collect())
    };
    let tokio = figures(Runtime::Tokio)?;
    let ours = figures(Runtime::Socknotify)?;
    for ((name, tokio), (_, ours)) in tokio.iter().zip(&ours) {
        println!(
            "{name:<52} tokio {tokio:>9.1}  socknotify {ours:>9.1}  ({:.2})",
            ours / tokio
        );
    }
    Ok(())
}

/// The same program for each runtime, by its own names.
macro_rules! measured {
    ($name:ident, $spawn:path, $sleep:path, $stream:expr) => {
        async fn $name() -> io::Result<()> {
            const TASKS: u32 = 200_000;
            let nanoseconds =
                |begin: Instant, count: u32| begin.elapsed().as_nanos() as f64 / f64::from(count);

            // In a task, since one outside of the runtime's threads is another case.
            let one_by_one = $spawn(async move {
                let begin = Instant::now();
                for _ in 0..TASKS {
                    $spawn(async {}).await.expect("no panic");
                }
                nanoseconds(begin, TASKS)
            });
            let figure = one_by_one.await.expect("no panic");
            println!("spawn and join, one after the other, ns = {figure:.1}");

            let many = $spawn(async move {
                let begin = Instant::now();
                let tasks: Vec<_> = (0..TASKS).map(|_| $spawn(async {})).collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
                nanoseconds(begin, TASKS)
            });
            let figure = many.await.expect("no panic");
            println!("spawn many and join them, ns = {figure:.1}");

            let begin = Instant::now();
            for _ in 0..TASKS / 20 {
                $spawn(async {}).await.expect("no panic");
            }
            println!(
                "the same from outside, one after the other, ns = {:.1}",
                nanoseconds(begin, TASKS / 20)
            );

            let ping_pong = $spawn(async move {
                let (one, other) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
                let (ours, theirs) = (Arc::clone(&one), Arc::clone(&other));
                let pong = $spawn(async move {
                    for _ in 0..TASKS {
                        theirs.notified().await;
                        ours.notify_one();
                    }
                });
                let begin = Instant::now();
                for _ in 0..TASKS {
                    other.notify_one();
                    one.notified().await;
                }
                pong.await.expect("no panic");
                nanoseconds(begin, 2 * TASKS)
            });
            let figure = ping_pong.await.expect("no panic");
            println!("wake to run, two tasks, ns = {figure:.1}");

            let fan = $spawn(async move {
                let (sender, mut receiver) = mpsc::channel(64);
                let begin = Instant::now();
                for _ in 0..64 {
                    let sender = sender.clone();
                    drop($spawn(async move {
                        for number in 0..TASKS / 64 {
                            let _ = sender.send(number).await;
                        }
                    }));
                }
                drop(sender);
                while receiver.recv().await.is_some() {}
                nanoseconds(begin, TASKS)
            });
            let figure = fan.await.expect("no panic");
            println!("64 tasks send to one, for each message, ns = {figure:.1}");

            let timers = $spawn(async move {
                let begin = Instant::now();
                let tasks: Vec<_> = (0..TASKS / 4)
                    .map(|number| {
                        $spawn(async move {
                            $sleep(Duration::from_micros(u64::from(number % 1000))).await
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("no panic");
                }
                nanoseconds(begin, TASKS / 4)
            });
            let figure = timers.await.expect("no panic");
            println!("tasks that sleep up to 1 ms, ns = {figure:.1}");

            const IDLE: isize = 10_000;
            let before = BYTES.load(Ordering::Relaxed);
            for _ in 0..IDLE {
                drop($spawn(std::future::pending::<()>()));
            }
            $sleep(Duration::from_millis(200)).await;
            let bytes = (BYTES.load(Ordering::Relaxed) - before) / IDLE;
            println!("memory of an idle task, bytes = {bytes}");

            const SOCKETS: isize = 2000;
            let peers = (0..SOCKETS).map(|_| std::net::UdpSocket::bind("127.0.0.1:0"));
            let peers = peers.collect::<io::Result<Vec<_>>>()?;
            let before = BYTES.load(Ordering::Relaxed);
            for socket in peers {
                socket.set_nonblocking(true)?;
                let socket = $stream(socket)?;
                drop($spawn(async move {
                    let mut buffer = [0; 1];
                    let _ = socket.recv(&mut buffer).await;
                }));
            }
            $sleep(Duration::from_millis(200)).await;
            let bytes = (BYTES.load(Ordering::Relaxed) - before) / SOCKETS;
            println!("memory of an idle task with a socket, bytes = {bytes}");
            Ok(())
        }
    };
}

measured!(
    tokios,
    tokio::spawn,
    tokio::time::sleep,
    tokio::net::UdpSocket::from_std
);
measured!(
    ours,
    socknotify_async::spawn,
    socknotify_async::sleep,
    socknotify_async::UdpSocket::try_from
);

/// One of them, in this process.
pub(crate) fn measure(runtime: Runtime) -> io::Result<()> {
    match runtime {
        Runtime::Socknotify => socknotify_async::Runtime::new()?.block_on(ours()),
        _ => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(tokios()),
    }
}
