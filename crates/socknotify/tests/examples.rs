//! The examples that are servers, as processes of their own, and clients that talk to them.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
#[cfg(unix)]
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use socket2::{Domain, Socket, Type};

#[path = "support/example.rs"]
mod example;

#[cfg(unix)]
use example::binary;
use example::{Example, PATIENCE, be_patient, expect, expect_end, much, read_line};

/// A listener of the test's own, and its address as an argument.
fn listen() -> io::Result<(TcpListener, String)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    Ok((listener, address))
}

#[test]
#[cfg_attr(
    windows,
    ignore = "under Wine a send fails with WSAEWOULDBLOCK while another thread sends on the socket"
)]
fn datagrams_answers_every_client() -> io::Result<()> {
    let server = started("datagrams", &[])?;
    thread::scope(|scope| {
        for client in 0..8 {
            let address = server.address;
            scope.spawn(move || ask_for_capitals(address, client).expect("it answers"));
        }
    });
    interrupt(server)
}

fn ask_for_capitals(address: SocketAddr, client: usize) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = [0; 64];
    for number in 0..300 {
        socket.send(format!("number {number} of {client}").as_bytes())?;
        let length = socket.recv(&mut buffer)?;
        let expected = format!("NUMBER {number} OF {client}");
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
    }
    Ok(())
}

/// Without standard input, as in the background.
fn started(name: &str, arguments: &[String]) -> io::Result<Example> {
    Example::start_with(name, arguments, Stdio::null)
}

/// A client of the chat, and the name it has there.
fn join(server: &Example) -> io::Result<(BufReader<TcpStream>, String)> {
    let mut client = BufReader::new(server.connect()?);
    let line = read_line(&mut client)?;
    let name = line
        .strip_prefix("* you are ")
        .and_then(|rest| rest.strip_suffix("\n"));
    let name = name.unwrap_or_else(|| panic!("{line:?}")).to_owned();
    Ok((client, name))
}

/// It is the example `first`, which runs here, and is short.
#[test]
fn the_program_of_the_readme_echoes() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(here.join("../../README.md"))?.replace('\r', "");
    let (_, rest) = readme.split_once("```rust,no_run\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let example = fs::read_to_string(here.join("examples/first.rs"))?.replace('\r', "");
    assert!(example.ends_with(program), "they differ");
    assert!(program.lines().count() <= 25);

    let server = Example::start("first", &[])?;
    let clients = (0..20).map(|_| server.connect());
    let clients = clients.collect::<io::Result<Vec<_>>>()?;
    for mut client in &clients {
        client.write_all(b"ping")?;
    }
    for client in &clients {
        expect(client, b"ping");
        client.shutdown(Shutdown::Write)?;
        expect_end(client);
    }
    Ok(())
}

#[test]
fn the_program_of_the_readme_waits_for_a_client_that_reads_late() -> io::Result<()> {
    const LENGTH: usize = 20_000_000;
    let server = Example::start("first", &[])?;
    let (mut late, mut other) = (server.connect()?, server.connect()?);
    let mut sending = late.try_clone()?;
    // More than all buffers on the way hold.
    let sending = thread::spawn(move || sending.write_all(&vec![b'x'; LENGTH]));
    for _ in 0..100 {
        other.write_all(b"ping")?;
        expect(&other, b"ping");
    }
    assert!(!sending.is_finished(), "it waits for this program to read");
    let mut answer = vec![0; LENGTH];
    late.read_exact(&mut answer)?;
    assert!(answer.iter().all(|&byte| byte == b'x'));
    sending.join().expect("no panic")
}

#[test]
fn key_value_answers_in_order_and_ends_in_good_order() -> io::Result<()> {
    let server = started("key_value", &[])?;
    let mut one = server.connect()?;
    one.write_all(b"SET a b c\r\nGET a\nGET b\nSET b\nDEL a\nGET a\nGE")?;
    expect(&one, b"none\nb c\nnone\nwhat?\nb c\nnone\n");
    one.write_all(b"T a\n")?;
    expect(&one, b"none\n");
    // One with a line that is too long is closed.
    let mut long = server.connect()?;
    let _ = long.write_all(&[b'x'; 100_000]);
    assert!(!matches!(long.read(&mut [0]), Ok(1..)));
    // Many answers to one that reads late, and others are served meanwhile.
    let value = [b'v'; 4000];
    one.write_all(&[b"SET big ", &value[..], b"\n"].concat())?;
    expect(&one, b"none\n");
    let late = server.connect()?;
    let mut asking = late.try_clone()?;
    let asking = thread::spawn(move || asking.write_all(&b"GET big\n".repeat(5000)));
    for _ in 0..100 {
        one.write_all(b"GET a\n")?;
        expect(&one, b"none\n");
    }
    let answer = [&value[..], b"\n"].concat();
    (0..5000).for_each(|_| expect(&late, &answer));
    asking.join().expect("no panic")?;
    // At its end it closes what has nothing to send.
    interrupt(server)?;
    if cfg!(unix) {
        expect_end(&one);
    }
    Ok(())
}

#[test]
#[cfg_attr(windows, ignore = "Windows does not tell what the peer has taken")]
fn key_value_closes_who_sends_or_takes_nothing_and_nobody_slow() -> io::Result<()> {
    for _ in 0..5 {
        if closes_who_is_idle()? {
            return Ok(());
        }
    }
    panic!("this machine is too slow to tell");
}

/// False if this thread was held up for so long that the slow client did nothing either.
fn closes_who_is_idle() -> io::Result<bool> {
    const IDLE: Duration = Duration::from_secs(2);
    let server = started("key_value", &[IDLE.as_secs().to_string()])?;
    // More than a server's buffer takes, of 4 KB each.
    const ANSWERS: usize = 2000;
    // Small buffers here: what is not read soon stays with the server.
    let connect = || -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_recv_buffer_size(32_768)?;
        socket.connect(&server.address.into())?;
        be_patient(socket.into())
    };
    let begin = Instant::now();
    let idle = connect()?;
    let (mut deaf, mut slow) = (connect()?, connect()?);
    let value = [b'v'; 4000];
    let answer = [&value[..], b"\n"].concat();
    let mut last = begin;
    // A failure counts if the client was not idle before it.
    let mut succeeds = |outcome: io::Result<()>| {
        match &outcome {
            Ok(()) => last = Instant::now(),
            Err(error) => assert!(last.elapsed() >= IDLE / 2, "{error}"),
        }
        outcome.is_ok()
    };
    let mut ask = || -> io::Result<()> {
        slow.write_all(&[b"SET big ", &value[..], b"\n"].concat())?;
        receive(&slow, b"none\n")?;
        for client in [&mut deaf, &mut slow] {
            client.write_all(&b"GET big\n".repeat(ANSWERS))?;
        }
        Ok(())
    };
    if !succeeds(ask()) {
        return interrupt(server).map(|()| false);
    }
    expect_end(&idle);
    assert!(begin.elapsed() >= IDLE);

    // A little, again and again. So it takes longer until the server's socket reports OUT than a client may be idle.
    for _ in 0..ANSWERS {
        if !succeeds(receive(&slow, &answer)) {
            return interrupt(server).map(|()| false);
        }
        if begin.elapsed() < 3 * IDLE {
            thread::sleep(Duration::from_millis(15));
        }
    }
    // It gets what lies in buffers; the rest went with the connection.
    let mut rest = Vec::new();
    let _ = deaf.read_to_end(&mut rest);
    assert!(rest.len() < ANSWERS * answer.len());
    interrupt(server).map(|()| true)
}

/// The same as [`expect`], where it may not be sent.
fn receive(mut stream: impl Read, expected: &[u8]) -> io::Result<()> {
    let mut found = vec![0; expected.len()];
    stream.read_exact(&mut found)?;
    assert!(found == expected);
    Ok(())
}

#[test]
fn chat_tells_the_others() -> io::Result<()> {
    let server = started("chat", &[])?;
    let (mut one, _) = join(&server)?;
    let (mut two, second) = join(&server)?;
    assert_eq!(read_line(&mut one)?, format!("* {second} has come\n"));
    let (mut three, third) = join(&server)?;
    for other in [&mut one, &mut two] {
        assert_eq!(read_line(other)?, format!("* {third} has come\n"));
    }

    // Two lines and a half.
    two.get_mut().write_all(b"hello\nhow are you?\nwell")?;
    for other in [&mut one, &mut three] {
        assert_eq!(read_line(other)?, format!("{second}: hello\n"));
        assert_eq!(read_line(other)?, format!("{second}: how are you?\n"));
    }
    two.get_mut().write_all(b", well\n")?;
    for other in [&mut one, &mut three] {
        assert_eq!(read_line(other)?, format!("{second}: well, well\n"));
    }
    three.get_mut().write_all(b"bye\n")?;
    drop(three);
    for other in [&mut one, &mut two] {
        assert_eq!(read_line(other)?, format!("{third}: bye\n"));
        assert!(read_line(other)?.starts_with(&format!("* {third} has gone")));
    }
    interrupt(server)?;
    if cfg!(unix) {
        expect_end(one);
        expect_end(two);
    }
    Ok(())
}

/// More than it reads at once.
#[cfg(unix)]
#[test]
fn chat_passes_on_what_has_come_before_the_end() -> io::Result<()> {
    use rustix::process::Signal;

    const LINES: usize = 200;
    let server = started("chat", &[])?;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(join(&server)?);
    }
    signal(&server, Signal::STOP)?;
    for (client, name) in &mut clients {
        let lines = (0..LINES).map(|number| format!("line {number} of {name}, and {:50}\n", ""));
        client
            .get_mut()
            .write_all(lines.collect::<String>().as_bytes())?;
    }
    signal(&server, Signal::TERM)?;
    signal(&server, Signal::CONT)?;
    let names: Vec<_> = clients.iter().map(|(_, name)| name.clone()).collect();
    for (client, own) in &mut clients {
        let mut heard = String::new();
        client.read_to_string(&mut heard)?;
        for name in &names {
            let lines = heard
                .lines()
                .filter(|line| line.starts_with(&format!("{name}: line ")));
            let expected = if name == own { 0 } else { LINES };
            assert_eq!(lines.count(), expected, "of {name}, to {own}");
        }
    }
    let mut server = server;
    assert!(server.process.wait()?.success());
    Ok(())
}

#[test]
fn chat_drops_a_client_that_does_not_read() -> io::Result<()> {
    let server = started("chat", &[])?;
    let (mut one, _) = join(&server)?;
    let (mut two, second) = join(&server)?;
    assert_eq!(read_line(&mut one)?, format!("* {second} has come\n"));
    // It takes little, so that it need not be sent much.
    let deaf = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    deaf.set_recv_buffer_size(4096)?;
    deaf.connect(&server.address.into())?;
    for other in [&mut one, &mut two] {
        assert!(read_line(other)?.ends_with(" has come\n"));
    }
    let said = "x".repeat(8000);
    loop {
        two.get_mut().write_all(format!("{said}\n").as_bytes())?;
        let line = read_line(&mut one)?;
        if line.ends_with(" has gone: it does not read\n") {
            break;
        }
        assert_eq!(line, format!("{second}: {said}\n"));
    }
    // The others go on.
    assert!(read_line(&mut two)?.ends_with(" has gone: it does not read\n"));
    one.get_mut().write_all(b"at last\n")?;
    assert!(read_line(&mut two)?.ends_with(": at last\n"));
    interrupt(server)
}

#[test]
fn proxy_passes_on_both_directions_and_each_end() -> io::Result<()> {
    let (listener, target) = listen()?;
    let server = started("proxy", &[target])?;
    for client_is_first in [true, false] {
        let client = server.connect()?;
        let target = be_patient(listener.accept()?.0)?;
        (&client).write_all(b"ping")?;
        expect(&target, b"ping");
        (&target).write_all(b"pong")?;
        expect(&client, b"pong");
        let (first, second) = match client_is_first {
            true => (client, target),
            false => (target, client),
        };
        // One side has said all, the other one has not.
        first.shutdown(Shutdown::Write)?;
        expect_end(&second);
        (&second).write_all(b"one word more")?;
        expect(&first, b"one word more");
        second.shutdown(Shutdown::Write)?;
        expect_end(&first);
    }
    interrupt(server)
}

#[test]
fn proxy_holds_back_who_is_faster_than_the_other_side() -> io::Result<()> {
    let (listener, target) = listen()?;
    let server = started("proxy", &[target])?;
    let client = server.connect()?;
    let target = be_patient(listener.accept()?.0)?;
    // Beforehand: that takes long where others compute, too, and the other end waits.
    let much = &much();
    thread::scope(|scope| {
        // All four ends at once: nobody waits for somebody else to be done.
        let ends = [(&client, &target), (&target, &client)];
        for (mut from, mut to) in ends {
            scope.spawn(move || {
                from.write_all(much).expect("it is taken");
                from.shutdown(Shutdown::Write).expect("it is open");
            });
            scope.spawn(move || {
                let mut found = Vec::new();
                to.read_to_end(&mut found).expect("it is passed on");
                assert!(found == *much, "{} bytes", found.len());
            });
        }
    });
    interrupt(server)
}

#[test]
fn proxy_closes_clients_of_a_dead_target() -> io::Result<()> {
    // A port where nobody listens, and that nobody else is given meanwhile.
    let dead = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    dead.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let target = dead
        .local_addr()?
        .as_socket()
        .expect("an address")
        .to_string();
    let server = started("proxy", &[target])?;
    for _ in 0..3 {
        let end = server.connect()?.read(&mut [0; 1]);
        assert!(matches!(end, Ok(0)) || is_reset(&end), "{end:?}");
    }
    interrupt(server)
}

#[test]
fn proxy_closes_the_client_of_a_target_that_breaks_off() -> io::Result<()> {
    let (listener, target) = listen()?;
    let server = started("proxy", &[target])?;
    let mut client = server.connect()?;
    let target = Socket::from(listener.accept()?.0);
    target.set_linger(Some(Duration::ZERO))?;
    drop(target);
    let end = client.read(&mut [0; 1]);
    assert!(matches!(end, Ok(0)) || is_reset(&end), "{end:?}");
    interrupt(server)
}

#[cfg(target_os = "linux")]
#[test]
fn proxy_passes_on_an_answer_though_the_target_has_gone() -> io::Result<()> {
    const LENGTH: usize = 500_000;
    let (listener, target) = listen()?;
    let server = started("proxy", &[target])?;
    let client = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Most of the answer waits in the proxy's socket.
    client.set_recv_buffer_size(4096)?;
    client.connect(&server.address.into())?;
    let mut client = be_patient(client.into())?;
    client.write_all(b"ping")?;
    let mut target = be_patient(listener.accept()?.0)?;
    expect(&target, b"ping");
    target.write_all(&vec![b'x'; LENGTH])?;
    target.shutdown(Shutdown::Write)?;
    // The proxy's system has all of it, and its end: FIN-WAIT-2.
    let (ours, theirs) = (target.local_addr()?, target.peer_addr()?);
    let begin = Instant::now();
    while tcp_state(ours, theirs)?.as_deref() != Some("05") {
        assert!(begin.elapsed() < PATIENCE, "the answer stays here");
        thread::sleep(Duration::from_millis(1));
    }
    // The turn that passes on each of these receives a part of the answer before.
    for _ in 0..20 {
        client.write_all(b"more")?;
        expect(&target, b"more");
    }
    drop(target);
    // Nobody receives it any more, and the proxy finds out.
    while tcp_state(theirs, ours)?.is_some() {
        assert!(begin.elapsed() < PATIENCE, "it does not find out");
        client.write_all(b"more")?;
        thread::sleep(Duration::from_millis(5));
    }
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    assert_eq!(answer.len(), LENGTH);
    interrupt(server)
}

/// The state of a socket, as a number of two digits.
#[cfg(target_os = "linux")]
fn tcp_state(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<String>> {
    let [local, peer] = [local, peer].map(|it| format!(":{:04X}", it.port()));
    let sockets = fs::read_to_string("/proc/net/tcp")?;
    let mut sockets = sockets.lines().map(|line| line.split_whitespace().skip(1));
    Ok(sockets.find_map(|mut words| {
        let is_it = words.next()?.ends_with(&local) && words.next()?.ends_with(&peer);
        is_it.then(|| words.next()).flatten().map(String::from)
    }))
}

fn is_reset(end: &io::Result<usize>) -> bool {
    matches!(end, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
}

/// An interrupt ends it in good order. Windows has none that could be sent to one program: there it is killed.
fn interrupt(mut server: Example) -> io::Result<()> {
    #[cfg(unix)]
    {
        signal(&server, rustix::process::Signal::INT)?;
        let status = server.process.wait()?;
        assert!(status.success(), "{status}");
    }
    server.process.kill()
}

/// More than an example reads at once.
#[cfg(unix)]
#[test]
fn what_has_come_before_the_end_is_answered() -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process};
    use socknotify::owned::unacknowledged;

    const REQUESTS: usize = 2000;
    let echoed = vec![b'x'; 50_000];
    for (name, requests, answers) in [
        (
            "key_value",
            b"GET a\n".repeat(REQUESTS),
            b"none\n".repeat(REQUESTS),
        ),
        ("signals", echoed.clone(), echoed),
    ] {
        let mut server = started(name, &[])?;
        let process = Pid::from_child(&server.process);
        let clients = (0..10).map(|_| server.connect());
        let mut clients = clients.collect::<io::Result<Vec<_>>>()?;
        for client in &mut clients {
            client.write_all(&requests)?;
            client.read_exact(&mut vec![0; answers.len()])?;
        }
        kill_process(process, Signal::STOP)?;
        for client in &mut clients {
            client.write_all(&requests)?;
        }
        // On a loaded machine they are on their way for longer than the writes.
        let begin = Instant::now();
        while clients
            .iter()
            .any(|it| !matches!(unacknowledged(it), Some(0) | None))
        {
            assert!(begin.elapsed() < PATIENCE, "the requests do not come");
            thread::sleep(Duration::from_millis(1));
        }
        kill_process(process, Signal::INT)?;
        kill_process(process, Signal::CONT)?;
        for client in &mut clients {
            let mut found = String::new();
            client.read_to_string(&mut found)?;
            assert!(found.as_bytes() == answers, "{name}: {}", found.len());
        }
        drop(clients);
        let status = server.process.wait()?;
        assert!(status.success(), "{status}");
    }
    Ok(())
}

/// It sends until nothing more fits anywhere, and then reads.
#[cfg(unix)]
#[test]
fn a_client_that_reads_late_has_everything_echoed() -> io::Result<()> {
    for name in ["echo", "signals"] {
        let server = started(name, &[])?;
        let mut client = server.connect()?;
        client.set_write_timeout(Some(Duration::from_millis(200)))?;
        let mut sent = 0;
        while let Ok(length) = client.write(&[b'x'; 65536]) {
            sent += length;
        }
        client.shutdown(Shutdown::Write)?;
        let echoed = io::copy(&mut client, &mut io::sink())?;
        assert_eq!(echoed, sent as u64, "{name}");
        interrupt(server)?;
    }
    Ok(())
}

#[cfg(unix)]
fn signal(server: &Example, signal: rustix::process::Signal) -> io::Result<()> {
    let process = rustix::process::Pid::from_child(&server.process);
    Ok(rustix::process::kill_process(process, signal)?)
}

/// Each has a client that has said nothing.
#[cfg(unix)]
#[test]
fn servers_end_by_draining_at_sigterm_and_sigint() -> io::Result<()> {
    use rustix::process::Signal;

    let (_listener, target) = listen()?;
    for signal_ in [Signal::TERM, Signal::INT] {
        let names = ["echo", "key_value", "chat", "datagrams", "signals"];
        let mut servers = Vec::new();
        for name in names {
            servers.push((name, started(name, &[])?));
        }
        servers.push(("proxy", started("proxy", std::slice::from_ref(&target))?));
        let begin = Instant::now();
        for (name, server) in &servers {
            let client = (*name != "datagrams").then(|| server.connect());
            let client = client.transpose()?;
            thread::sleep(Duration::from_millis(50));
            signal(server, signal_)?;
            let Some(client) = client else { continue };
            let mut rest = Vec::new();
            (&client).read_to_end(&mut rest)?;
        }
        for (name, mut server) in servers {
            let status = server.process.wait()?;
            assert!(status.success(), "{name}: {status}");
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    Ok(())
}

/// What a client had sent before the signal is answered, though it reads late and sends on.
#[cfg(unix)]
#[test]
fn a_drain_destroys_no_answer_that_was_given() -> io::Result<()> {
    const REQUESTS: usize = 2000;
    let (request, answer) = ("GET a\n", "none\n");
    let server = started("key_value", &[])?;
    let client = server.connect()?;
    // Now it is accepted.
    let mut answers = BufReader::new(&client);
    (&client).write_all(request.as_bytes())?;
    while read_line(&mut answers)? != answer {}
    (&client).write_all(request.repeat(REQUESTS).as_bytes())?;
    signal(&server, rustix::process::Signal::TERM)?;
    thread::scope(|scope| {
        // It goes on until the server has gone.
        let sending = scope.spawn(|| {
            while (&client).write_all(request.as_bytes()).is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        thread::sleep(Duration::from_millis(200));
        let mut found = 0;
        loop {
            let line = read_line(&mut answers).expect("the end comes in order");
            found += usize::from(line == answer);
            if line.is_empty() {
                break;
            }
        }
        assert!(found >= REQUESTS, "{found}");
        client.shutdown(Shutdown::Both).expect("it is open");
        sending.join().expect("no panic");
    });
    interrupt(server)
}

#[cfg(unix)]
#[test]
fn proxy_lets_a_session_finish_when_it_drains() -> io::Result<()> {
    for _ in 0..20 {
        if finishes_a_session()? {
            return Ok(());
        }
    }
    panic!("this machine is too slow to tell");
}

/// False if this thread was held up for so long that the session had no traffic.
#[cfg(unix)]
fn finishes_a_session() -> io::Result<bool> {
    let (listener, target) = listen()?;
    let server = started("proxy", &[target])?;
    let client = server.connect()?;
    let target = be_patient(listener.accept()?.0)?;
    (&client).write_all(b"ping")?;
    expect(&target, b"ping");
    let mut last = Instant::now();
    signal(&server, rustix::process::Signal::TERM)?;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(100));
        let sent = (&target).write_all(b"pong");
        let mut answer = [0; 4];
        if let Err(error) = sent.and_then(|()| (&client).read_exact(&mut answer)) {
            let passed = last.elapsed();
            assert!(passed >= Duration::from_millis(300), "{error}: {passed:?}");
            interrupt(server)?;
            return Ok(false);
        }
        assert_eq!(answer, *b"pong");
        last = Instant::now();
    }
    target.shutdown(Shutdown::Write)?;
    expect_end(&client);
    interrupt(server)?;
    Ok(true)
}

#[cfg(unix)]
#[test]
fn chat_ends_in_good_order_at_an_interrupt() -> io::Result<()> {
    let chat = started("chat", &[])?;
    let (mut one, _) = join(&chat)?;
    let (two, second) = join(&chat)?;
    assert_eq!(read_line(&mut one)?, format!("* {second} has come\n"));
    interrupt(chat)?;
    expect_end(one);
    expect_end(two);
    Ok(())
}

#[cfg(unix)]
#[test]
fn signals_prints_every_threads_figures_and_ends_in_good_order() -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process};

    let mut server = Example::start("signals", &[])?;
    let process = Pid::from_child(&server.process);
    let clients = (0..10).map(|_| server.connect());
    let clients = clients.collect::<io::Result<Vec<_>>>()?;
    for round in 1..=3 {
        for mut client in &clients {
            client.write_all(b"ping")?;
            expect(client, b"ping");
        }
        kill_process(process, Signal::HUP)?;
        let mut sum = 0;
        for _ in 0..4 {
            let line = read_line(&mut server.output)?;
            let figure = line
                .split_once(": ")
                .and_then(|it| it.1.split_once(" bytes"));
            let figure = figure.and_then(|it| it.0.parse::<usize>().ok());
            sum += figure.unwrap_or_else(|| panic!("{line:?}"));
        }
        assert_eq!(sum, round * 10 * 4);
    }
    kill_process(process, Signal::TERM)?;
    for client in &clients {
        expect_end(client);
    }
    assert_eq!(read_line(&mut server.output)?, "cut off: 0\n");
    server.stop()
}

#[cfg(unix)]
#[test]
fn children_prints_what_they_say_and_how_they_end() -> io::Result<()> {
    let said = Command::new(binary("children")?)
        .args([
            "echo one; echo 1; exit 3",
            "printf 'two\nand more'",
            "kill -9 $$",
        ])
        // Its output has ended before it has, or goes on after it.
        .args(["exec >&-; sleep 0.1", "(sleep 0.1; echo late) & exit 0"])
        .output()?;
    assert!(said.status.success(), "{}", said.status);
    let said = String::from_utf8(said.stdout).expect("text");
    let of = |number: usize| {
        let begin = format!("{number}: ");
        let lines = said.lines().filter_map(|line| line.strip_prefix(&begin));
        lines.collect::<Vec<_>>()
    };
    let ended = "exit status: 0";
    for (number, words) in [&["one", "1"][..], &["two", "and more"], &[], &[], &["late"]]
        .into_iter()
        .enumerate()
    {
        let of = of(number);
        let (ends, found): (Vec<&str>, Vec<_>) = of
            .iter()
            .partition(|line| line.starts_with("exit status") || line.starts_with("signal"));
        assert_eq!(found, words);
        match number {
            0 => assert_eq!(ends, ["exit status: 3"]),
            2 => assert!(
                ends.len() == 1 && ends[0].starts_with("signal: 9"),
                "{ends:?}"
            ),
            _ => assert_eq!(ends, [ended]),
        }
    }
    Ok(())
}
