//! Servers at the path of a Unix socket.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::net::{self, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::program::{PATIENCE, PROGRAM, Server, eventually};

/// A path in a directory of its own, which is removed in the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> io::Result<Self> {
        let directory = format!("socknotify-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir(&directory)?;
        Ok(Place(directory))
    }

    fn path(&self) -> PathBuf {
        self.0.join("socket")
    }

    fn endpoint(&self) -> String {
        format!("unix:{}", self.path().display())
    }

    /// With so much room for connections that were not accepted.
    fn listener(&self, room: i32) -> io::Result<Socket> {
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        listener.bind(&SockAddr::unix(self.path())?)?;
        listener.listen(room)?;
        Ok(listener)
    }

    fn server(&self, mode: &str) -> io::Result<Server> {
        Server::spawn_at(&self.endpoint(), Command::new(PROGRAM), mode, &[])
    }

    /// A server that is not to start there.
    fn second(&self, mode: &str) -> io::Result<Output> {
        self.refused(mode, 1)
    }

    fn refused(&self, mode: &str, code: i32) -> io::Result<Output> {
        let endpoint = self.endpoint();
        let output = Command::new(PROGRAM)
            .args(["serve", "--mode", mode, "--listen", &endpoint])
            .stdin(Stdio::null())
            .output()?;
        assert_eq!(output.status.code(), Some(code));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let names = [&*endpoint, "unix:PATH"];
        assert!(names.iter().any(|name| message.contains(name)), "{message}");
        Ok(output)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that fails has said why already.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn assert_echoes(place: &Place) -> io::Result<()> {
    let mut stream = UnixStream::connect(place.path())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"hello")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    assert_eq!(&answer, b"hello");
    Ok(())
}

#[test]
fn clients_are_served_and_the_file_goes_with_the_server() -> io::Result<()> {
    let place = Place::new("served")?;
    let server = place.server("echo")?;
    assert_echoes(&place)?;
    place.second("echo")?;
    assert_echoes(&place)?;
    server.stop()?;
    assert!(!place.path().exists());
    Ok(())
}

/// A read ends behind the bytes that came with a descriptor, though more is there.
#[test]
fn what_is_behind_descriptors_is_read() -> io::Result<()> {
    let place = Place::new("descriptors")?;
    let server = place.server("echo")?;
    let mut client = UnixStream::connect(place.path())?;
    client.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 6];
    for _ in 0..4 {
        client.write_all(b"before")?;
        client.read_exact(&mut answer)?;
    }
    // Both parts are there when it reads.
    server.signal(Signal::STOP)?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [client.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let part = [io::IoSlice::new(b"one")];
    net::sendmsg(&client, &part, &mut control, SendFlags::empty())?;
    client.write_all(b"two")?;
    server.signal(Signal::CONT)?;
    client.read_exact(&mut answer)?;
    assert_eq!(&answer, b"onetwo");
    drop(client);
    server.stop().map(drop)
}

#[test]
fn a_file_that_was_left_behind_is_replaced_and_no_other() -> io::Result<()> {
    let place = Place::new("left")?;
    drop(UnixListener::bind(place.path())?);
    assert!(place.path().exists());
    let server = place.server("echo")?;
    assert_echoes(&place)?;
    server.stop()?;
    std::fs::write(place.path(), "precious")?;
    place.second("echo")?;
    assert_eq!(std::fs::read(place.path())?, b"precious");
    Ok(())
}

#[test]
fn a_new_server_keeps_its_path_when_the_old_one_has_drained() -> io::Result<()> {
    let place = Place::new("restart")?;
    let grace = ["--grace", "60"];
    let old = Server::spawn_at(&place.endpoint(), Command::new(PROGRAM), "http", &grace)?;
    // A request that has begun keeps the old one from its end.
    let mut client = UnixStream::connect(place.path())?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET ")?;
    client.read_exact(&mut [0; 20])?;
    old.interrupt()?;
    eventually("the path is free", || Ok(!place.path().exists()))?;
    let new = place.server("echo")?;
    assert_echoes(&place)?;
    client.write_all(b"/ HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut answers = String::new();
    client.read_to_string(&mut answers)?;
    assert!(answers.contains("connection: close"), "{answers}");
    drop(client);
    let (status, summary) = old.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    assert_echoes(&place)?;
    // Another file in its place is not its own.
    std::fs::rename(place.path(), place.0.join("other"))?;
    std::fs::write(place.path(), "precious")?;
    new.stop()?;
    assert_eq!(std::fs::read(place.path())?, b"precious");
    Ok(())
}

#[test]
fn there_are_no_datagrams_at_a_path() -> io::Result<()> {
    let place = Place::new("datagrams")?;
    place.refused("udp-echo", 2)?;
    assert!(!place.path().exists());
    Ok(())
}

/// Whether anybody listens there is found out by connecting.
#[test]
fn a_server_without_room_for_a_connection_has_its_address() -> io::Result<()> {
    let place = Place::new("no-room")?;
    let _listener = place.listener(0)?;
    let _queued = UnixStream::connect(place.path())?;
    place.second("echo")?;
    assert!(place.path().exists());
    Ok(())
}
