//! Child processes: runs each argument as a command of the shell, all at once, and prints what they say as they say it.
//!
//! What it shows:
//!
//! - Pipes come out of the port as sockets do; they are adopted by a call of their own.
//! - That a child has ended is a signal, which `signal-hook` turns into a byte in a socket. Several may come as one:
//!   so each child is asked.
//! - The end of its output and its own end come in either order.
//!
//! Run it with `cargo run -p socknotify --example children 'echo one' 'sleep 1; echo two'`.
//!
//! It is for Unix, where pipes have descriptors that can be watched.
//!
//! ```toml
//! [dependencies]
//! signal-hook = "0.4"
//! socknotify = "0.1"
//! ```

#[cfg(unix)]
fn main() -> std::io::Result<()> {
    unix::main()
}

#[cfg(not(unix))]
fn main() {
    eprintln!("pipes cannot be watched here");
    std::process::exit(1);
}

#[cfg(unix)]
mod unix {
    use std::env;
    use std::io::{self, Read};
    use std::os::unix::net::UnixStream;
    use std::process::{Child, ChildStdout, Command, Stdio};

    use signal_hook::consts::SIGCHLD;
    use signal_hook::low_level::pipe;
    use socknotify::owned::{BorrowedSocket, Event, Interest, Port, Source};

    enum Watched {
        Output(Output),
        /// A byte comes when children have ended.
        Ends(UnixStream),
    }

    /// What a child says.
    struct Output {
        pipe: ChildStdout,
        number: usize,
        /// The beginning of a line.
        line: Vec<u8>,
    }

    impl Source for Watched {
        fn socket(&self) -> BorrowedSocket<'_> {
            match self {
                Watched::Output(output) => output.pipe.socket(),
                Watched::Ends(stream) => stream.socket(),
            }
        }
    }

    pub(super) fn main() -> io::Result<()> {
        let port = Port::<Watched>::new()?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // Before there is a child that could end.
        pipe::register(SIGCHLD, theirs)?;
        port.arm(port.adopt(Watched::Ends(ours))?, Interest::IN);

        let mut children = Vec::new();
        for (number, command) in env::args().skip(1).enumerate() {
            let mut child = start(&command)?;
            let pipe = child.stdout.take().expect("it is piped");
            let output = Watched::Output(Output {
                pipe,
                number,
                line: Vec::new(),
            });
            port.arm(port.adopt_descriptor(output)?, Interest::IN);
            children.push(Some(child));
        }
        let mut outputs = children.len();
        let mut worker = port.worker(16);
        while outputs > 0 || children.iter().any(Option::is_some) {
            worker.process(None)?;
            while let Some(event) = worker.take() {
                let mut watched = match event {
                    Event::Ready(watched, _) => watched,
                    // Nobody would tell of its end.
                    Event::Refused(_, error) => return Err(error.into()),
                    _ => continue,
                };
                match &mut *watched {
                    Watched::Output(output) => {
                        if !output.print()? {
                            outputs -= 1;
                            continue;
                        }
                    }
                    Watched::Ends(stream) => {
                        let _ = stream.read(&mut [0; 64]);
                        reap(&mut children)?;
                    }
                }
                worker.arm(watched, Interest::IN);
            }
        }
        Ok(())
    }

    fn start(command: &str) -> io::Result<Child> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    }

    /// Ask each child whether it has ended.
    fn reap(children: &mut [Option<Child>]) -> io::Result<()> {
        for (number, place) in children.iter_mut().enumerate() {
            if let Some(child) = place {
                if let Some(status) = child.try_wait()? {
                    println!("{number}: {status}");
                    *place = None;
                }
            }
        }
        Ok(())
    }

    impl Output {
        /// Read once, and print the lines that are complete. False at the end.
        fn print(&mut self) -> io::Result<bool> {
            let mut chunk = [0; 4096];
            let length = self.pipe.read(&mut chunk)?;
            self.line.extend(&chunk[..length]);
            while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                self.say(end + 1);
            }
            if length == 0 && !self.line.is_empty() {
                self.say(self.line.len());
            }
            Ok(length > 0)
        }

        fn say(&mut self, length: usize) {
            let line: Vec<u8> = self.line.drain(..length).collect();
            let text = String::from_utf8_lossy(&line);
            println!("{}: {}", self.number, text.trim_end_matches('\n'));
        }
    }
}
