//! HTTP, as far as the server speaks it.

use std::io;

use serde_json::Value;

use crate::clients::{self, GET, HttpClient};
use crate::program::{Server, eventually};

#[test]
fn a_connection_is_used_again_and_requests_may_follow_each_other() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    for _ in 0..3 {
        let answer = client.request(GET)?;
        assert_eq!((answer.status, &*answer.body), (200, "Hello, world!\n"));
        assert!(
            answer.has("Content-Type: text/plain; charset=utf-8"),
            "{answer:?}"
        );
    }
    // In one write, and the answers tell them apart.
    let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nabc";
    client.send(&format!("{GET}{head}{post}{GET}"))?;
    assert_eq!(client.answer()?.body, "Hello, world!\n");
    let answer = client.head()?;
    assert!(answer.status == 200 && answer.has("Content-Length: 14"));
    assert_eq!(client.answer()?.status, 405);
    assert_eq!(client.answer()?.body, "Hello, world!\n");
    server.stop()?;
    Ok(())
}

#[test]
fn more_requests_than_answers_fit_are_all_answered() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    let mut sender = client.stream.get_ref().try_clone()?;
    let count = 50_000;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let requests = GET.repeat(count);
            io::Write::write_all(&mut sender, requests.as_bytes())
        });
        for _ in 0..count {
            assert_eq!(client.answer()?.status, 200);
        }
        sending.join().expect("no panic")
    })?;
    let mut rest = GET.to_owned();
    rest.insert_str(rest.len() - 2, "Connection: close\r\n");
    assert!(client.request(&rest)?.has("Connection: close"));
    assert!(client.is_at_end()?);
    server.stop()?;
    Ok(())
}

#[test]
fn the_old_version_closes_unless_it_is_asked_not_to() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    let answer = client.request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")?;
    assert!(answer.has("Connection: keep-alive"), "{answer:?}");
    let answer = client.request("GET / HTTP/1.0\r\n\r\n")?;
    assert!(answer.has("Connection: close"), "{answer:?}");
    assert!(client.is_at_end()?);
    server.stop()?;
    Ok(())
}

#[test]
fn figures_are_json() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    client.request(GET)?;
    assert_eq!(client.request("nonsense\r\n\r\n")?.status, 400);
    let mut stats = Value::Null;
    // What was answered is counted a moment after it.
    eventually("both requests are counted", || {
        stats = clients::stats(server.address)?;
        Ok(stats["requests"].as_u64() >= Some(2))
    })?;
    assert_eq!(stats["client_errors"], 1, "{stats}");
    for name in ["connections", "threads"] {
        assert!(stats[name].as_u64() >= Some(1), "{stats}");
    }
    let mut client = HttpClient::connect(server.address)?;
    client.send("HEAD /stats HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    assert_eq!(client.head()?.status, 200);
    assert!(client.is_at_end()?);
    server.stop()?;
    Ok(())
}

#[test]
fn what_is_not_understood_is_refused_and_the_connection_closed() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let large = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(17_000));
    // Still sending when the refusal comes: it has to get there all the same.
    let endless = format!("GET / HTTP/1.1\r\nHost: {}", "a".repeat(1_000_000));
    for (text, status) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b/\r\n\r\n", 400),
        ("GET a/b://x/a.txt HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (&*large, 431),
        (&*endless, 431),
    ] {
        let mut client = HttpClient::connect(server.address)?;
        // The server does not wait for the rest for ever.
        let _ = client.send(text);
        let answer = client.answer()?;
        assert_eq!(answer.status, status);
        assert!(answer.has("Connection: close"), "{answer:?}");
        assert!(answer.header("date").is_some(), "{answer:?}");
        assert!(answer.body.starts_with(&status.to_string()), "{answer:?}");
        assert!(client.is_at_end()?);
    }
    server.stop()?;
    Ok(())
}

#[test]
fn a_method_that_nobody_knows_is_told_from_one_that_is_not_allowed() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let mut client = HttpClient::connect(server.address)?;
    for (method, status) in [("DELETE", 405), ("BREW", 501), ("GET", 200)] {
        let answer = client.request(&GET.replace("GET", method))?;
        assert_eq!(answer.status, status, "{method}");
    }
    drop(client);
    server.stop()?;
    Ok(())
}

#[test]
fn nobody_is_asked_for_the_body_of_what_is_not_allowed() -> io::Result<()> {
    let server = Server::start("http", &[])?;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    for text in [head, &format!("{head}abc")] {
        let mut client = HttpClient::connect(server.address)?;
        let answer = client.request(text)?;
        assert!(
            answer.status == 405 && answer.has("Connection: close"),
            "{answer:?}"
        );
        assert!(client.is_at_end()?);
    }
    server.stop()?;
    Ok(())
}
