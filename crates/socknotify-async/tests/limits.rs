//! The limit of descriptors, which is the process's: so this is a program of its own.
#![cfg(unix)]

use std::fs::File;
use std::io;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use rustix::process::{Resource, Rlimit, setrlimit};
use socknotify_async::{Runtime, TcpListener, TcpStream, sleep, spawn, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_server_goes_on_when_descriptors_are_there_again() -> io::Result<()> {
    let limit = Rlimit {
        current: Some(64),
        maximum: Some(64),
    };
    setrlimit(Resource::Nofile, limit)?;
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = spawn(async move {
            let (mut accepted, mut refused) = (0, 0);
            loop {
                match listener.accept().await {
                    Ok((mut stream, _)) => {
                        accepted += 1;
                        drop(spawn(async move {
                            let mut byte = [0];
                            stream.read_exact(&mut byte).await?;
                            stream.write_all(&byte).await
                        }));
                    }
                    Err(_) => {
                        refused += 1;
                        sleep(Duration::from_millis(1)).await;
                    }
                }
                // The first client is served: all of them may have connected before any is accepted.
                if accepted > 0 && refused > 5 {
                    return listener;
                }
            }
        });
        // One is left for the client that is never accepted meanwhile.
        let mut clients = Vec::new();
        let error = loop {
            match timeout(PATIENCE, TcpStream::connect(address)).await? {
                Ok(client) => clients.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        // An accept has one for a moment, also where nobody has connected.
        let mut listeners = Vec::new();
        while let Ok(listener) = TcpListener::bind("127.0.0.1:0") {
            listeners.push(listener);
        }
        // And a runtime has none, too.
        assert!(Runtime::new().is_err());
        let last = clients.pop();
        let mut files = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        drop((last, files, listeners));
        clients.truncate(1);
        let client = &mut clients[0];
        client.write_all(b"x").await?;
        timeout(PATIENCE, client.read_exact(&mut [0])).await??;
        let more = timeout(PATIENCE, TcpStream::connect(address)).await??;
        drop((more, server));
        Ok(())
    })
}
