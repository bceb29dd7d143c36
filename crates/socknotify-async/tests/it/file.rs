//! Operations on files.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncSeekExt};
use socknotify_async::{File, Runtime, spawn, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

fn run<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    Runtime::new()?.block_on(async { timeout(PATIENCE, future).await? })
}

fn is_pending<F: Future>(future: Pin<&mut F>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    future.poll(&mut cx).is_pending()
}

#[test]
fn files_are_written_and_read() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let file = File::try_from(tempfile::tempfile()?)?;
        let content: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
        let mut written = 0;
        while written < content.len() {
            let (count, _) = file
                .write_at(content[written..].to_vec(), written as u64)
                .await;
            written += count?;
        }
        file.sync_data().await?;
        file.sync_all().await?;
        let file = Arc::new(file);
        // Many at once.
        let parts: Vec<_> = (0..100)
            .map(|part| {
                let file = Arc::clone(&file);
                spawn(async move { file.read_at(vec![0; 1000], part * 1000).await })
            })
            .collect();
        for (part, expected) in parts.into_iter().zip(content.chunks(1000)) {
            let (count, bytes) = timeout(PATIENCE, part).await??;
            assert_eq!((count?, &bytes[..]), (1000, expected));
        }
        let (count, bytes) = file.read_at(vec![7; 5], 100_000).await;
        assert_eq!((count?, &bytes[..]), (0, &[7; 5][..]));
        Ok(())
    })
}

#[test]
fn an_operation_may_be_dropped_at_any_moment() -> io::Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let file = File::try_from(tempfile::tempfile()?)?;
        for round in 0..200 {
            let mut read = pin!(file.read_at(vec![0; 4096], 0));
            if round % 2 == 0 {
                let mut cx = Context::from_waker(Waker::noop());
                let _ = read.as_mut().poll(&mut cx);
            }
        }
        let (count, _) = timeout(PATIENCE, file.write_at(b"x".to_vec(), 0)).await?;
        assert_eq!(count?, 1);
        Ok(())
    })
}

#[test]
fn what_cannot_be_done_is_an_error() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let file = runtime.block_on(async {
        assert!(File::open("there is no such file").is_err());
        let path = tempfile::NamedTempFile::new()?;
        let file = File::open(path.path())?;
        // It is open to be read.
        let (count, buffer) = file.write_at(b"x".to_vec(), 0).await;
        assert!(count.is_err() && buffer == b"x");
        io::Result::Ok(file)
    })?;
    assert!(runtime.shutdown(PATIENCE));
    let (count, buffer) = handle.block_on(file.read_at(vec![0; 5], 0));
    assert_eq!(count.unwrap_err().to_string(), "the runtime has shut down");
    assert_eq!(buffer.len(), 5);
    let entered = handle.enter();
    assert!(File::open("Cargo.toml").is_err());
    drop(entered);
    Ok(())
}

/// A waker that holds an operation: dropped, it cancels that.
struct Holds(#[allow(dead_code, reason = "it is dropped")] Mutex<Pin<Box<Read>>>);

type Read = dyn Future<Output = (io::Result<usize>, Vec<u8>)> + Send;

impl Wake for Holds {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_have_operations_that_it_drops() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let file = {
        let _entered = runtime.handle().enter();
        Arc::new(File::try_from(tempfile::tempfile()?)?)
    };
    let read = {
        let file = Arc::clone(&file);
        move || -> Pin<Box<Read>> {
            let file = Arc::clone(&file);
            Box::pin(async move { file.read_at(vec![0; 16], 0).await })
        }
    };
    let (sender, polled) = mpsc::channel();
    thread::spawn(move || {
        let mut held = read();
        let mut outer = read();
        let mut noop = Context::from_waker(Waker::noop());
        let _ = held.as_mut().poll(&mut noop);
        let waker = Waker::from(Arc::new(Holds(Mutex::new(held))));
        let is_pending = outer
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        drop(waker);
        if is_pending {
            // The one before is dropped here, if it still waits.
            let _ = outer.as_mut().poll(&mut noop);
        }
        sender.send(is_pending)
    });
    assert!(polled.recv_timeout(PATIENCE).is_ok());
    Ok(())
}

#[test]
fn a_task_that_tries_what_fails_again_and_again_ends_with_its_runtime() -> io::Result<()> {
    let runtime = Runtime::builder().places(1).build()?;
    let file = runtime.block_on(async { File::try_from(tempfile::tempfile()?) })?;
    let (release, blocked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    drop(runtime.spawn(async move {
        tell.send(()).expect("someone listens");
        let _ = blocked.recv();
        while file.sync_all().await.is_err() {}
    }));
    let handle = runtime.handle().clone();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()), "it has begun");
    assert!(!runtime.shutdown(Duration::from_millis(5)));
    release.send(()).expect("it waits");
    crate::until_it_has_ended(&handle);
    Ok(())
}

#[test]
fn a_file_is_read_by_the_traits_from_wherever_it_is_told_to() -> io::Result<()> {
    run(async {
        let content: Vec<u8> = (0..300_000).map(|index| (index % 251) as u8).collect();
        let mut file = tempfile::tempfile()?;
        io::Write::write_all(&mut file, &content)?;
        let mut file = File::try_from(file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).await?;
        assert_eq!(bytes, content);
        let mut part = [0; 10];
        assert_eq!(file.seek(SeekFrom::End(-5)).await?, 299_995);
        assert_eq!(file.read(&mut part).await?, 5);
        assert_eq!(part[..5], content[299_995..]);
        assert_eq!(file.seek(SeekFrom::Start(20)).await?, 20);
        file.read_exact(&mut part).await?;
        assert_eq!(file.seek(SeekFrom::Current(-10)).await?, 20);
        // What is dropped has taken nothing, also if another buffer has less room. A read may also end at once.
        while !is_pending(pin!(file.read(&mut part))) {
            assert_eq!(file.seek(SeekFrom::Start(20)).await?, 20);
        }
        file.read_exact(&mut part[..3]).await?;
        file.read_exact(&mut part[3..]).await?;
        assert_eq!(part[..], content[20..30]);
        let error = file.seek(SeekFrom::Current(-31)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(file.read(&mut []).await?, 0);
        Ok(())
    })
}

#[test]
fn the_position_of_the_descriptor_stays() -> io::Result<()> {
    run(async {
        let mut theirs = tempfile::tempfile()?;
        io::Write::write_all(&mut theirs, b"0123456789")?;
        io::Seek::rewind(&mut theirs)?;
        let mut file = File::try_from(theirs.try_clone()?)?;
        assert_eq!(file.seek(SeekFrom::End(-2)).await?, 8);
        let mut part = [0; 2];
        file.read_exact(&mut part).await?;
        assert_eq!(&part, b"89");
        if cfg!(unix) {
            assert_eq!(io::Seek::stream_position(&mut theirs)?, 0);
        }
        assert!(
            !format!("{file:?}").contains("bytes"),
            "it shows no content"
        );
        Ok(())
    })
}

/// The tag of one that is dropped, and that the system has begun, goes to no other one before it is over.
#[test]
fn results_go_to_who_has_begun_them() -> io::Result<()> {
    run(async {
        let content: Vec<u8> = (0..=255).collect();
        let mut file = tempfile::tempfile()?;
        io::Write::write_all(&mut file, &content)?;
        let file = File::try_from(file)?;
        for round in 0..2000 {
            let (dropped, kept) = (round % 256, round * 7 % 256);
            let _ = is_pending(pin!(file.read_at(vec![0], dropped)));
            let (count, bytes) = timeout(PATIENCE, file.read_at(vec![0], kept)).await?;
            assert_eq!((count?, bytes), (1, vec![kept as u8]));
        }
        Ok(())
    })
}

/// The one before was given up: its bytes are gone, or come.
#[test]
fn a_read_of_nothing_after_one_that_was_dropped_has_nothing() -> io::Result<()> {
    run(async {
        let mut file = File::open("Cargo.toml")?;
        let mut all = Vec::new();
        File::open("Cargo.toml")?.read_to_end(&mut all).await?;
        let mut bytes = [0; 10];
        file.read_exact(&mut bytes).await?;
        // A read may also end at once.
        while !is_pending(pin!(file.read(&mut bytes))) {
            assert_eq!(file.seek(SeekFrom::Start(10)).await?, 10);
        }
        assert_eq!(file.read(&mut []).await?, 0);
        file.read_exact(&mut bytes).await?;
        assert_eq!(bytes, all[10..20]);
        Ok(())
    })
}
