//! The live line, on a terminal.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};

use crate::clients::{GET, HttpClient};
use crate::program::{PROGRAM, Server, eventually};

/// A server whose messages go to a terminal.
struct OnTerminal {
    server: Server,
    shown: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

/// The two ends of a terminal of this width.
fn terminal(columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = open(name, flags, Mode::empty())?;
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&ours, size)?;
    Ok((ours, theirs))
}

impl OnTerminal {
    fn start(columns: u16) -> io::Result<Self> {
        let (ours, theirs) = terminal(columns)?;
        let mut command = Command::new(PROGRAM);
        command.env("TERM", "xterm").stderr(theirs);
        let server = Server::spawn(command, "http", &["--grace", "60"])?;
        let shown = Arc::new(Mutex::new(String::new()));
        let text = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            let mut ours = File::from(ours);
            // The last one at the other end is gone: that is an error here.
            while let Ok(length @ 1..) = ours.read(&mut buffer) {
                let more = String::from_utf8_lossy(&buffer[..length]);
                text.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&more);
            }
        });
        Ok(OnTerminal {
            server,
            shown,
            reader,
        })
    }

    /// All that was shown so far.
    fn text(&self) -> String {
        self.shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn shows(&self, words: &str) -> io::Result<()> {
        eventually(words, || Ok(self.text().contains(words)))
    }

    /// Stops the server. All that was shown.
    fn stop(self) -> io::Result<String> {
        self.server.stop()?;
        self.reader.join().expect("no panic");
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(shown.clone())
    }
}

#[test]
fn the_live_line_tells_that_it_drains_and_what_a_second_interrupt_does() -> io::Result<()> {
    let server = OnTerminal::start(100)?;
    let mut idle = HttpClient::connect(server.server.address)?;
    idle.request(GET)?;
    let mut busy = HttpClient::connect(server.server.address)?;
    busy.request(&format!("{GET}GET / HTTP/1.1\r\n"))?;
    server.shows("2 connections, ")?;
    server.shows(" requests/s, ")?;
    server.server.interrupt()?;
    server.shows("1 connection, ")?;
    server.shows("; draining, Ctrl-C ends it at once")?;
    busy.request("Host: a\r\n\r\n")?;
    let (status, _) = server.server.ended()?;
    assert_eq!(status.code(), Some(0));
    Ok(())
}

/// As after Ctrl-S. What is written to it waits.
#[test]
fn a_terminal_that_stands_still_does_not_keep_the_end() -> io::Result<()> {
    let (ours, theirs) = terminal(100)?;
    let mut command = Command::new(PROGRAM);
    command.env("TERM", "xterm").stderr(theirs.try_clone()?);
    let server = Server::spawn(command, "http", &["--grace", "2"])?;
    tcflow(&theirs, Action::OOff)?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(GET)?;
    // By then the line has changed. If not, the test shows less.
    thread::sleep(std::time::Duration::from_millis(1200));
    drop(client);
    server.stop()?;
    drop(ours);
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn the_live_line_of_an_idle_server_takes_few_wake_ups() -> io::Result<()> {
    use std::time::{Duration, Instant};

    let server = OnTerminal::start(100)?;
    let id = server.server.process.id();
    eventually("few wake-ups in half a second", || {
        let begin = Instant::now();
        let before = crate::drain::wake_ups(id)?;
        std::thread::sleep(Duration::from_millis(500));
        // A machine that is busy makes it longer.
        let most = begin.elapsed().as_millis() as u64 / 100;
        Ok(crate::drain::wake_ups(id)? - before <= most)
    })?;
    let mut client = HttpClient::connect(server.server.address)?;
    client.request(GET)?;
    server.shows("1 connection, ")?;
    drop(client);
    server.stop()?;
    Ok(())
}

#[test]
fn the_live_line_leaves_nothing_behind_on_a_narrow_terminal() -> io::Result<()> {
    const COLUMNS: usize = 30;
    let server = OnTerminal::start(COLUMNS as u16)?;
    server.shows("0 connections, ")?;
    let text = server.stop()?;
    // Each line begins where the one before did, and goes no further than the terminal does.
    assert!(!text.contains('\n'), "{text:?}");
    assert!(!text.contains("\x1b[1A"), "{text:?}");
    for line in text.split('\r').map(|line| line.replace("\x1b[2K", "")) {
        assert!(line.chars().count() <= COLUMNS, "{line:?}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
    Ok(())
}

#[test]
fn help_is_wrapped_at_the_width_of_the_terminal() -> io::Result<()> {
    const COLUMNS: usize = 60;
    for command in ["serve", "scenarios"] {
        let (ours, theirs) = terminal(COLUMNS as u16)?;
        let mut help = Command::new(PROGRAM)
            .args([command, "--help"])
            .stdin(theirs.try_clone()?)
            .stdout(theirs.try_clone()?)
            .stderr(theirs)
            .spawn()?;
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        let mut ours = File::from(ours);
        while let Ok(length @ 1..) = ours.read(&mut chunk) {
            text.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
        assert!(help.wait()?.success());
        let mut plain = String::new();
        for (index, part) in text.split('\x1b').enumerate() {
            // Without what makes words bold.
            let rest = part.split_once('m').filter(|_| index > 0);
            plain.push_str(rest.map_or(part, |(_, rest)| rest));
        }
        assert!(plain.contains("Options:"), "{plain}");
        for line in plain.lines() {
            assert!(line.trim_end().chars().count() <= COLUMNS, "{line:?}");
        }
    }
    Ok(())
}
