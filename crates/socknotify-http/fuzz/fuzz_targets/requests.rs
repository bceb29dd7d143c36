//! Arbitrary bytes from a client: heads, bodies by length and in chunks, and what is none of these.
//!
//! They go to a server over loopback, whole and cut in two. The target checks that each answer is well formed, that after a refusal
//! nothing follows, that the answers say what was received, and that it makes no difference where the bytes are cut.
//!
//! ```sh
//! cd crates/socknotify-http     # with cargo-fuzz installed
//! cargo +nightly fuzz run requests fuzz/seeds -- -max_total_time=1800 -max_len=4096 -dict=fuzz/words
//! ```

#![no_main]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use socknotify_http::{Limits, Request, Response, Server};

static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let server = Server::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("it is bound");
    let limits = Limits::default().head(2000).line(500).body(1000);
    thread::spawn(move || server.limits(limits).serve(echo));
    address
});

/// What was received, so that what two cuts receive can be compared.
fn echo(request: &mut Request<'_>) -> Response {
    let mut body = Vec::new();
    let _ = request.body_mut().read_to_end(&mut body);
    let headers = request.headers();
    let text = format!("{} {} {headers:?} ", request.method(), request.uri());
    let trailers = format!("{:?}", request.body().trailers());
    Response::new(
        [text.as_bytes(), &body, trailers.as_bytes()]
            .concat()
            .into(),
    )
}

/// All answers to these bytes, which come in two parts.
fn answers(bytes: &[u8], cut: usize) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(*SERVER)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let (first, second) = bytes.split_at(cut);
    stream.write_all(first)?;
    // It may have been refused by now.
    if stream.write_all(second).is_ok() {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers)?;
    Ok(answers)
}

/// The statuses and bodies of final answers, whose dates may differ.
fn parse(mut rest: &[u8], bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut parsed: Vec<(u16, Vec<u8>)> = Vec::new();
    while !rest.is_empty() {
        let is_end = |it: &[u8]| it == b"\r\n\r\n";
        let end = rest.windows(4).position(is_end).expect("a whole head") + 4;
        let head = std::str::from_utf8(&rest[..end]).expect("text");
        let status = head.strip_prefix("HTTP/1.1 ").expect("a version");
        let status: u16 = status[..3].parse().expect("a status");
        rest = &rest[end..];
        if status == 100 {
            continue;
        }
        let known = [200, 400, 413, 414, 417, 431, 501, 505];
        assert!(known.contains(&status), "{status}");
        let last = parsed.last();
        assert!(
            last.is_none_or(|last| last.0 == 200),
            "it goes on after {last:?}"
        );
        let length = head.split("content-length: ").nth(1).expect("a length");
        let length = length.split("\r\n").next().expect("its end");
        // To HEAD there is none, and the client may end in the middle of nothing.
        let length: usize = length.parse().expect("digits");
        let is_head = bytes.windows(4).any(|it| it == b"HEAD");
        let body = if is_head && (rest.is_empty() || rest.starts_with(b"HTTP/1.1 ")) {
            &[]
        } else {
            rest.get(..length).expect("a whole body")
        };
        rest = &rest[body.len()..];
        parsed.push((status, body.to_vec()));
    }
    parsed
}

fuzz_target!(|input: &[u8]| {
    // The first byte says where.
    let Some((cut, bytes)) = input.split_first() else {
        return;
    };
    let cut = bytes.len() * usize::from(*cut) / 256;
    // Loopback runs out of ports, or a connection is reset with what was not received: that says nothing.
    let (Ok(whole), Ok(parts)) = (answers(bytes, bytes.len()), answers(bytes, cut)) else {
        return;
    };
    assert_eq!(parse(&whole, bytes), parse(&parts, bytes));
});
