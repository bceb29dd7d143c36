//! Files over HTTP.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::thread;
#[cfg(target_os = "linux")]
use std::time::Instant;
use std::time::{Duration, SystemTime};

#[cfg(target_os = "linux")]
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::clients::{Answer, HttpClient};
use crate::program::{PROGRAM, Server, eventually};
use crate::support::started;

/// More than one read takes, and no multiple of it.
const LARGE: usize = 3_000_001;

/// More than the kernel keeps for a client that does not read.
const HUGE: u64 = 256 << 20;

/// A server and its root, which is in a directory beside files that are nobody's business.
struct Site {
    server: Server,
    directory: TempDir,
}

impl Site {
    fn new(arguments: &[&str]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("below"))?;
        fs::write(directory.path().join("secret.txt"), "secret")?;
        fs::write(root.join("small.txt"), "0123456789")?;
        fs::write(root.join("empty"), "")?;
        fs::write(root.join("index.html"), "<p>root")?;
        fs::write(root.join("below/index.html"), "<p>below")?;
        fs::write(root.join("large.css"), large())?;
        let arguments = [&["--root", root.to_str().expect("a name")], arguments].concat();
        let server = Server::start("files", &arguments)?;
        Ok(Site { server, directory })
    }

    /// One with a client.
    fn visited(arguments: &[&str]) -> io::Result<(Self, HttpClient)> {
        let site = Site::new(arguments)?;
        let client = site.client()?;
        Ok((site, client))
    }

    fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("root")
    }

    fn client(&self) -> io::Result<HttpClient> {
        HttpClient::connect(self.server.address)
    }

    /// Without the client, for which the server would wait.
    fn stop(self, client: HttpClient) -> io::Result<String> {
        drop(client);
        self.server.stop()
    }

    /// A file whose bytes are all zero.
    fn huge(&self) -> io::Result<File> {
        let file = File::create(self.root().join("huge"))?;
        file.set_len(HUGE)?;
        Ok(file)
    }
}

/// Text in which each part differs from the others.
fn large() -> String {
    let mut text: String = (0..)
        .map(|line| format!("{line}\n"))
        .take(LARGE / 8)
        .collect();
    text.push_str(&"x".repeat(LARGE - text.len()));
    text
}

fn request(method: &str, target: &str, headers: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n")
}

fn get(client: &mut HttpClient, target: &str, headers: &str) -> io::Result<Answer> {
    client.request(&request("GET", target, headers))
}

#[test]
fn files_have_their_bytes_their_length_and_their_type() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let large = large();
    for (target, kind, body) in [
        ("/small.txt", "text/plain", "0123456789"),
        ("/small.txt?query", "text/plain", "0123456789"),
        ("/%73mall%2Etxt", "text/plain", "0123456789"),
        ("/empty", "application/octet-stream", ""),
        ("/", "text/html", "<p>root"),
        ("/below/", "text/html", "<p>below"),
        ("http://a/below/./index.html", "text/html", "<p>below"),
        ("/large.css", "text/css", &*large),
    ] {
        let answer = get(&mut client, target, "")?;
        assert_eq!(answer.status, 200, "{target}");
        let charset = match kind.starts_with("text/") {
            true => "; charset=utf-8",
            false => "",
        };
        assert!(
            answer.has(&format!("Content-Type: {kind}{charset}")),
            "{answer:?}"
        );
        assert!(answer.has(&format!("Content-Length: {}", body.len())));
        assert!(answer.body == body, "{target}");
    }
    site.stop(client)?;
    Ok(())
}

#[test]
fn a_client_gets_the_part_that_it_asks_for() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let large = large();
    for (range, part) in [
        ("0-0", 0..1),
        ("100-", 100..LARGE),
        ("1000-1999999", 1000..2_000_000),
        ("-7", LARGE - 7..LARGE),
        ("-99999999", 0..LARGE),
    ] {
        let answer = get(
            &mut client,
            "/large.css",
            &format!("Range: bytes={range}\r\n"),
        )?;
        assert_eq!(answer.status, 206, "{range}");
        let header = format!(
            "Content-Range: bytes {}-{}/{LARGE}",
            part.start,
            part.end - 1
        );
        assert!(answer.has(&header), "{range}: {:?}", answer.headers);
        assert!(answer.body == large[part], "{range}");
    }
    let answer = get(&mut client, "/small.txt", "Range: bytes=10-\r\n")?;
    assert!(
        answer.status == 416 && answer.has("Content-Range: bytes */10"),
        "{answer:?}"
    );
    let answer = get(&mut client, "/empty", "Range: bytes=-5\r\n")?;
    assert_eq!((answer.status, &*answer.body), (200, ""));
    for ignored in ["bytes=0-1,3-4", "bytes=4-2", "lines=1-2"] {
        let answer = get(&mut client, "/small.txt", &format!("Range: {ignored}\r\n"))?;
        assert_eq!((answer.status, &*answer.body), (200, "0123456789"));
    }
    site.stop(client)?;
    Ok(())
}

#[test]
fn a_head_comes_without_a_body_and_a_file_that_has_not_changed_not_at_all() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    client.send(&request("HEAD", "/large.css", "Range: bytes=0-1\r\n"))?;
    let answer = client.head()?;
    assert!(answer.status == 200 && answer.has(&format!("Content-Length: {LARGE}")));
    let modified = answer.header("last-modified");
    let modified = modified.expect("the file has a time");
    client.send(&request(
        "GET",
        "/large.css",
        &format!("If-Modified-Since: {modified}\r\n"),
    ))?;
    assert_eq!(client.head()?.status, 304);
    let before = "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    assert_eq!(get(&mut client, "/small.txt", before)?.body, "0123456789");
    let answer = client.request(&request("DELETE", "/small.txt", ""))?;
    assert!(
        answer.status == 405 && answer.has("Allow: GET, HEAD"),
        "{answer:?}"
    );
    assert_eq!(get(&mut client, "/small.txt", "")?.body, "0123456789");
    site.stop(client)?;
    Ok(())
}

#[test]
fn no_path_leads_out_of_the_root() -> io::Result<()> {
    let site = Site::new(&[])?;
    let secret = site.directory.path().join("secret.txt");
    let mut client = site.client()?;
    for target in [
        "/../secret.txt",
        "/below/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/..%5csecret.txt",
        "/below/%2E./..%2Fsecret.txt",
        "//../secret.txt",
        &format!("/{}", secret.display()),
        &format!("//{}", secret.display()),
        &format!("/%2f{}", secret.display()),
        "/nothing",
        "/small.txt/",
        "/small.txt/small.txt",
        "/small.txt%00",
        &format!("/{}", "a".repeat(5000)),
    ] {
        let answer = get(&mut client, target, "")?;
        assert_eq!(
            (answer.status, &*answer.body),
            (404, "404 Not Found\n"),
            "{target}"
        );
    }
    site.stop(client)?;
    Ok(())
}

#[cfg(unix)]
#[test]
fn no_link_leads_out_of_the_root() -> io::Result<()> {
    use std::os::unix::fs::symlink;

    let site = Site::new(&[])?;
    let (root, outside) = (site.root(), site.directory.path());
    symlink(outside.join("secret.txt"), root.join("absolute"))?;
    symlink("../secret.txt", root.join("relative"))?;
    symlink(outside, root.join("directory"))?;
    symlink("..", root.join("up"))?;
    symlink("loop", root.join("loop"))?;
    symlink(root.join("small.txt"), root.join("inside-but-absolute"))?;
    symlink("below/../small.txt", root.join("within"))?;
    let mut client = site.client()?;
    for target in [
        "/absolute",
        "/relative",
        "/directory/secret.txt",
        "/up/secret.txt",
        "/up/root/small.txt",
        "/loop",
        "/inside-but-absolute",
    ] {
        let answer = get(&mut client, target, "")?;
        assert_eq!(
            (answer.status, &*answer.body),
            (404, "404 Not Found\n"),
            "{target}"
        );
    }
    assert_eq!(get(&mut client, "/within", "")?.body, "0123456789");
    site.stop(client)?;
    Ok(())
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_served_and_keeps_nobody() -> io::Result<()> {
    let site = Site::new(&["--threads", "1"])?;
    let pipe = site.root().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status()?;
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(site.root().join("socket"))?;
    let mut client = site.client()?;
    for target in ["/pipe", "/socket"] {
        assert_eq!(get(&mut client, target, "")?.status, 404, "{target}");
    }
    site.stop(client)?;
    Ok(())
}

#[test]
fn a_name_that_begins_with_a_dot_is_served_only_if_that_is_asked_for() -> io::Result<()> {
    for (arguments, status) in [(&[][..], 404), (&["--hidden"], 200)] {
        let site = Site::new(arguments)?;
        fs::create_dir(site.root().join(".git"))?;
        fs::write(site.root().join(".git/config"), "private")?;
        fs::write(site.root().join(".env"), "private")?;
        let mut client = site.client()?;
        for target in [
            "/.env",
            "/.git/config",
            "/%2egit/config",
            "/below/..env/../.env",
        ] {
            let status = if target.contains("../") { 404 } else { status };
            let answer = get(&mut client, target, "")?;
            assert_eq!(answer.status, status, "{target}");
        }
        // Not even that it is there.
        let answer = get(&mut client, "/.git", "")?;
        assert_eq!(answer.status == 301, status == 200, "{answer:?}");
        site.stop(client)?;
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn no_link_leads_to_a_name_that_begins_with_a_dot() -> io::Result<()> {
    use std::os::unix::fs::symlink;

    for (arguments, status) in [(&["--listing"][..], 404), (&["--listing", "--hidden"], 200)] {
        let site = Site::new(arguments)?;
        let root = site.root();
        fs::create_dir_all(root.join(".git/below"))?;
        fs::create_dir(root.join("indexed"))?;
        fs::write(root.join(".git/config"), "private")?;
        fs::write(root.join(".git/below/index.html"), "private")?;
        symlink(".git", root.join("git"))?;
        symlink("git/config", root.join("config"))?;
        symlink("../.git/config", root.join("indexed/index.html"))?;
        symlink("below", root.join("open"))?;
        let mut client = site.client()?;
        for target in [
            "/git/config",
            "/config",
            "/indexed/",
            "/git/",
            "/git/below/",
        ] {
            // A second time it is in the kernel's memory.
            for _ in 0..2 {
                assert_eq!(get(&mut client, target, "")?.status, status, "{target}");
            }
        }
        let answer = get(&mut client, "/git", "")?;
        assert_eq!(answer.status == 301, status == 200, "{answer:?}");
        // Other links are followed.
        assert_eq!(get(&mut client, "/open/", "")?.body, "<p>below");
        assert_eq!(get(&mut client, "/open", "")?.status, 301);
        site.stop(client)?;
    }
    Ok(())
}

/// A link that leads to a public file, and then to a hidden one, and so on: no request is answered with what is hidden.
#[cfg(unix)]
#[test]
fn no_link_that_changes_leads_to_what_is_hidden() -> io::Result<()> {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    const CLIENTS: usize = 4;
    const REQUESTS: usize = 1000;
    let site = Site::new(&[])?;
    let root = site.root();
    fs::create_dir(root.join(".git"))?;
    fs::write(root.join(".git/small.txt"), "private")?;
    fs::create_dir(root.join("public"))?;
    fs::write(root.join("public/small.txt"), "public")?;
    // Whole directories, and files.
    let swap = || -> io::Result<()> {
        for (target, link) in [
            (".git", "way"),
            ("public", "way"),
            (".git/small.txt", "link"),
            ("public/small.txt", "link"),
        ] {
            symlink(target, root.join("next"))?;
            fs::rename(root.join("next"), root.join(link))?;
        }
        Ok(())
    };
    swap()?;
    let is_over = AtomicBool::new(false);
    let (found, hidden) = thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                swap()?;
            }
            io::Result::Ok(())
        });
        let asking = || -> io::Result<(usize, usize)> {
            let mut client = site.client()?;
            let (mut found, mut hidden) = (0, 0);
            for request in 0..REQUESTS {
                let target = ["/way/small.txt", "/link"][request % 2];
                let answer = get(&mut client, target, "")?;
                found += usize::from(answer.body == "public");
                hidden += usize::from(answer.body == "private");
            }
            Ok((found, hidden))
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(asking)).collect();
        let counts = clients.into_iter().map(|it| it.join().expect("no panic"));
        let counts = counts.collect::<io::Result<Vec<_>>>();
        is_over.store(true, Ordering::Relaxed);
        swapping.join().expect("no panic")?;
        counts.map(|it| {
            it.into_iter()
                .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
        })
    })?;
    assert!(found > 0);
    assert_eq!(hidden, 0, "of {}", CLIENTS * REQUESTS);
    site.server.stop()?;
    Ok(())
}

/// A process that has a lease is told that somebody wants the file. Until it gives that up, nobody knows what is in it.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_leased_is_unavailable_and_not_missing() -> io::Result<()> {
    use std::os::fd::AsRawFd;

    /// `fcntl.h`
    const F_SETSIG: i32 = 10;

    let (site, mut client) = Site::visited(&[])?;
    let file = File::options()
        .read(true)
        .write(true)
        .open(site.root().join("small.txt"))?;
    let lease = |kind: i32| {
        // SAFETY: the descriptor is open, and there are no pointers.
        unsafe {
            // In place of a signal that would end this process.
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind)
        }
    };
    if lease(libc::F_WRLCK) != 0 {
        eprintln!("skipped: no leases here: {}", io::Error::last_os_error());
        return Ok(());
    }
    let answer = get(&mut client, "/small.txt", "")?;
    assert!(
        answer.status == 503 && answer.header("retry-after").is_some(),
        "{answer:?}"
    );
    assert_eq!(lease(libc::F_UNLCK), 0);
    assert_eq!(get(&mut client, "/small.txt", "")?.body, "0123456789");
    drop(client);
    site.server.stop()?;
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_is_unavailable_and_not_missing_while_descriptors_are_used_up() -> io::Result<()> {
    let root = tempfile::tempdir()?;
    fs::write(root.path().join("small.txt"), "0123456789")?;
    let path = root.path().to_str().expect("a name");
    let server = Server::start_after("ulimit -n 40", "files", &["--root", path])?;
    let mut client = HttpClient::connect(server.address)?;
    assert_eq!(get(&mut client, "/small.txt", "")?.status, 200);
    let others = (0..60).map(|_| HttpClient::connect(server.address));
    let others = others.collect::<io::Result<Vec<_>>>()?;
    eventually("descriptors are used up", || {
        let answer = get(&mut client, "/small.txt", "")?;
        assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        Ok(answer.status == 503)
    })?;
    drop(others);
    eventually("there are some again", || {
        Ok(get(&mut client, "/small.txt", "")?.status == 200)
    })?;
    drop(client);
    server.stop()?;
    Ok(())
}

#[test]
fn a_directory_moves_to_its_slash_and_shows_its_index() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let answer = get(&mut client, "/below?a=b", "")?;
    assert_eq!(
        (answer.status, &*answer.body),
        (301, "301 Moved Permanently\n")
    );
    assert!(answer.has("Location: /below/?a=b"), "{answer:?}");
    assert_eq!(get(&mut client, "/below/?a=b", "")?.body, "<p>below");
    fs::remove_file(site.root().join("below/index.html"))?;
    assert_eq!(get(&mut client, "/below/", "")?.status, 404);
    fs::create_dir(site.root().join("below/index.html"))?;
    assert_eq!(get(&mut client, "/below/", "")?.status, 404);
    site.stop(client)?;
    Ok(())
}

#[test]
fn a_directory_is_listed_only_if_that_is_asked_for_and_it_has_no_index() -> io::Result<()> {
    let (site, mut client) = Site::visited(&["--listing"])?;
    let root = site.root();
    fs::create_dir(root.join("list"))?;
    fs::create_dir(root.join("list/sub"))?;
    fs::write(root.join("list/.hidden"), "")?;
    fs::write(root.join("list/a & b.txt"), "text")?;
    let answer = get(&mut client, "/list/", "")?;
    assert!(answer.status == 200 && answer.has("Content-Type: text/html; charset=utf-8"));
    let links: Vec<_> = answer.body.split("href=\"").skip(1).collect();
    let links: Vec<_> = links
        .iter()
        .filter_map(|link| link.split('"').next())
        .collect();
    assert_eq!(links, ["../", "a%20%26%20b.txt", "sub/"]);
    assert_eq!(get(&mut client, "/list/a%20%26%20b.txt", "")?.body, "text");
    assert_eq!(get(&mut client, "/below/", "")?.body, "<p>below");
    assert_eq!(get(&mut client, "/nothing/", "")?.status, 404);
    assert_eq!(get(&mut client, "/small.txt/", "")?.status, 404);
    site.stop(client)?;
    Ok(())
}

/// Not beneath it, nowhere, in a circle, to what is hidden, and to what is no file.
#[cfg(unix)]
#[test]
fn what_is_listed_can_be_fetched_wherever_links_lead() -> io::Result<()> {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    for (arguments, of_hidden) in [
        (&["--listing"][..], &[][..]),
        (
            &["--listing", "--hidden"],
            &[".config", "config", "git-tree/"],
        ),
    ] {
        let (site, mut client) = Site::visited(arguments)?;
        let root = site.root();
        let list = root.join("list");
        fs::create_dir_all(root.join(".git/tree"))?;
        fs::create_dir_all(root.join("other"))?;
        fs::create_dir(&list)?;
        fs::write(list.join("file"), "text")?;
        fs::write(list.join(".config"), "text")?;
        for (target, link) in [
            ("file", "beside"),
            ("../small.txt", "above"),
            ("../other", "directory"),
            ("beside", "twice"),
            (".config", "config"),
            ("../.git/tree", "git-tree"),
            ("../../secret.txt", "outside"),
            ("../../root/small.txt", "out-and-in"),
            ("/etc", "absolute"),
            ("nothing", "dead"),
            ("file/below", "below-a-file"),
            ("loop-2", "loop-1"),
            ("loop-1", "loop-2"),
            ("socket", "to-a-socket"),
        ] {
            symlink(target, list.join(link))?;
        }
        let _socket = UnixListener::bind(list.join("socket"))?;
        let page = get(&mut client, "/list/", "")?.body;
        let links = page.split("href=\"").skip(2);
        let links: Vec<_> = links.filter_map(|link| link.split('"').next()).collect();
        let always = ["above", "beside", "directory/", "file", "twice"];
        let mut expected = [&always[..], of_hidden].concat();
        expected.sort_unstable();
        assert_eq!(links, expected);
        for link in links {
            let answer = get(&mut client, &format!("/list/{link}"), "")?;
            assert_eq!(answer.status, 200, "{link}");
        }
        site.stop(client)?;
    }
    Ok(())
}

/// Its path has bytes that are no text.
#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_not_utf_8_is_served_and_listed() -> io::Result<()> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let (site, mut client) = Site::visited(&["--listing"])?;
    let directory = site.root().join(OsStr::from_bytes(b"l\xe4"));
    fs::create_dir(&directory)?;
    fs::write(directory.join(OsStr::from_bytes(b"\xff.txt")), "text")?;
    let answer = get(&mut client, "/l%E4/", "")?;
    assert!(answer.body.contains("href=\"%FF.txt\""), "{answer:?}");
    assert_eq!(get(&mut client, "/l%E4/%FF.txt", "")?.body, "text");
    let moved = get(&mut client, "/l%E4", "")?;
    assert!(moved.has("Location: /l%E4/"), "{moved:?}");
    drop(client);
    site.server.stop()?;
    Ok(())
}

/// As in reproducible images, where all files have one time.
#[cfg(unix)]
#[test]
fn another_file_of_the_same_length_and_time_is_another_one() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let path = site.root().join("small.txt");
    let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    File::options()
        .write(true)
        .open(&path)?
        .set_modified(epoch)?;
    let answer = get(&mut client, "/small.txt", "")?;
    let tag = answer.header("etag");
    let tag = tag.expect("the file has a tag").to_owned();
    let other = site.root().join("other");
    fs::write(&other, "abcdefghij")?;
    File::options()
        .write(true)
        .open(&other)?
        .set_modified(epoch)?;
    fs::rename(other, path)?;
    let known = format!("If-None-Match: {tag}\r\n");
    let answer = get(&mut client, "/small.txt", &known)?;
    assert_eq!((answer.status, &*answer.body), (200, "abcdefghij"));
    let joined = format!("Range: bytes=5-\r\nIf-Range: {tag}\r\n");
    assert_eq!(get(&mut client, "/small.txt", &joined)?.status, 200);
    drop(client);
    site.server.stop()?;
    Ok(())
}

#[test]
fn what_a_client_knows_already_counts_and_a_tag_before_a_date() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let answer = get(&mut client, "/small.txt", "")?;
    let tag = answer.header("etag");
    let tag = tag.expect("the file has a tag").to_owned();
    // Where the system tells too little of a file, its tag is weak, and does not do where a strong one is asked for.
    let weak = format!("W/{}", tag.trim_start_matches("W/"));
    let is_strong = tag != weak;
    let (past, future) = (
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9998 00:00:00 GMT",
    );
    for (headers, status) in [
        (format!("If-None-Match: {tag}\r\n"), 304),
        (
            format!("If-None-Match: {weak}\r\nIf-Modified-Since: {past}\r\n"),
            304,
        ),
        (
            format!("If-None-Match: \"other\"\r\nIf-None-Match: {tag}\r\n"),
            304,
        ),
        (
            format!("If-None-Match: \"other\"\r\nIf-Modified-Since: {future}\r\n"),
            200,
        ),
        (
            format!("If-Match: {tag}\r\n"),
            if is_strong { 200 } else { 412 },
        ),
        ("If-Match: \"other\"\r\n".to_owned(), 412),
        (format!("If-Unmodified-Since: {past}\r\n"), 412),
        (format!("If-Unmodified-Since: {future}\r\n"), 200),
        (
            format!("Range: bytes=0-1\r\nIf-Range: {tag}\r\n"),
            if is_strong { 206 } else { 200 },
        ),
        (
            "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n".to_owned(),
            200,
        ),
    ] {
        client.send(&request("GET", "/small.txt", &headers))?;
        let answer = client.head()?;
        assert_eq!(answer.status, status, "{headers}");
        assert!(answer.header("date").is_some(), "{answer:?}");
        if status != 304 {
            client.body(&answer)?;
        }
    }
    // Another file, another tag, though it be as long.
    fs::write(site.root().join("small.txt"), "9876543210")?;
    let answer = get(
        &mut client,
        "/small.txt",
        &format!("If-None-Match: {tag}\r\n"),
    )?;
    assert_eq!((answer.status, &*answer.body), (200, "9876543210"));
    site.stop(client)?;
    Ok(())
}

#[test]
fn a_date_is_no_range_condition_until_the_file_has_rested() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let path = site.root().join("small.txt");
    let now = SystemTime::now();
    for (modified, status) in [
        (now, 200),
        (now + Duration::from_secs(3600), 200),
        (now - Duration::from_secs(3600), 206),
    ] {
        let file = File::options().write(true).open(&path)?;
        file.set_modified(modified)?;
        let date = httpdate::fmt_http_date(modified);
        let headers = format!("Range: bytes=2-4\r\nIf-Range: {date}\r\n");
        let answer = get(&mut client, "/small.txt", &headers)?;
        // On a machine that is very busy it may have rested by now.
        let rests = modified
            .elapsed()
            .is_ok_and(|time| time >= Duration::from_secs(2));
        assert!(
            answer.status == status || (rests && answer.status == 206),
            "{date}: {}",
            answer.status
        );
    }
    site.stop(client)?;
    Ok(())
}

#[test]
fn each_request_is_told_to_the_access_log_if_there_is_one() -> io::Result<()> {
    let log = tempfile::tempdir()?;
    let log = log.path().join("log");
    let (site, mut client) = Site::visited(&["--access-log", log.to_str().expect("a name")])?;
    get(&mut client, "/small.txt", "")?;
    get(&mut client, "/small.txt", "Range: bytes=2-4\r\n")?;
    get(&mut client, "/not\"here", "")?;
    client.send(&request("HEAD", "/small.txt", ""))?;
    client.head()?;
    client.request(&request("POST", "/", ""))?;
    client.request("nonsense\r\n\r\n")?;
    site.stop(client)?;
    let text = fs::read_to_string(log)?;
    let lines: Vec<_> = text
        .lines()
        .map(|line| {
            let (address, rest) = line.split_once(" - - [").expect("an address and a time");
            let (time, rest) = rest.split_once("] ").expect("a time and a request");
            assert!(address == "127.0.0.1" && time.ends_with(" +0000"), "{line}");
            let (rest, took) = rest.rsplit_once(' ').expect("a time");
            assert!(took.parse::<f64>().is_ok(), "{line}");
            rest
        })
        .collect();
    let expected = [
        "\"GET /small.txt HTTP/1.1\" 200 10",
        "\"GET /small.txt HTTP/1.1\" 206 3",
        "\"GET /not\\\"here HTTP/1.1\" 404 14",
        "\"HEAD /small.txt HTTP/1.1\" 200 0",
        "\"POST / HTTP/1.1\" 405 23",
        "\"nonsense\" 400 16",
    ];
    assert_eq!(lines, expected);
    Ok(())
}

/// As a program that deploys has it: what is linked to is another directory.
#[cfg(unix)]
#[test]
fn the_root_is_opened_again_at_a_signal() -> io::Result<()> {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir()?;
    let at = |name| directory.path().join(name);
    for name in ["first", "second"] {
        fs::create_dir(at(name))?;
        fs::write(at(name).join("name"), name)?;
    }
    symlink("first", at("current"))?;
    let current = at("current");
    let server = Server::start("files", &["--root", current.to_str().expect("a name")])?;
    let mut client = HttpClient::connect(server.address)?;
    assert_eq!(get(&mut client, "/name", "")?.body, "first");
    symlink("second", at("next"))?;
    fs::rename(at("next"), &current)?;
    server.signal(rustix::process::Signal::HUP)?;
    eventually("it is the second one", || {
        Ok(get(&mut client, "/name", "")?.body == "second")
    })?;
    // What cannot be opened leaves it as it is.
    fs::remove_file(&current)?;
    server.signal(rustix::process::Signal::HUP)?;
    assert_eq!(get(&mut client, "/name", "")?.body, "second");
    drop(client);
    server.stop()?;
    Ok(())
}

/// As a program that rotates logs has it.
#[cfg(unix)]
#[test]
fn the_access_log_is_opened_again_at_a_signal() -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let (log, old) = (directory.path().join("log"), directory.path().join("old"));
    let (site, mut client) = Site::visited(&["--access-log", log.to_str().expect("a name")])?;
    get(&mut client, "/first", "")?;
    // An answer can be there before its line.
    eventually("it is logged", || {
        Ok(fs::read_to_string(&log)?.contains("/first "))
    })?;
    fs::rename(&log, &old)?;
    site.server.signal(rustix::process::Signal::HUP)?;
    eventually("there is a new one", || Ok(log.exists()))?;
    get(&mut client, "/second", "")?;
    drop(client);
    site.server.stop()?;
    assert!(fs::read_to_string(old)?.contains("/first "));
    let new = fs::read_to_string(log)?;
    assert!(
        new.contains("/second ") && !new.contains("/first "),
        "{new}"
    );
    Ok(())
}

#[test]
fn an_answer_gets_there_though_the_client_sends_more() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    client.send(&request("GET", "/large.css", "Connection: close\r\n"))?;
    let head = client.head()?;
    // Now it is being sent.
    client.send("\r\n")?;
    assert_eq!(client.body(&head)?.body.len(), LARGE);
    assert!(client.is_at_end()?);
    drop(client);
    site.server.stop()?;
    Ok(())
}

/// The system has no memory for a thread more.
#[cfg(target_os = "linux")]
#[test]
fn a_file_is_served_where_no_thread_can_be_started() -> io::Result<()> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let (site, mut client) = Site::visited(&["--listing", "--hidden", "--threads", "1"])?;
    fs::create_dir(site.root().join("list"))?;
    get(&mut client, "/small.txt", "")?;
    let id = site.server.process.id();
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.trim().split(' ').next()?.parse::<u64>().ok());
    let limit = Rlimit {
        current: size.map(|size| (size + 1024) * 1024),
        maximum: None,
    };
    // A helper thread would end after a second without work: there is none yet, or that one does it.
    prlimit(Pid::from_raw(id as i32), Resource::As, limit)?;
    assert_eq!(get(&mut client, "/list/", "")?.status, 200);
    assert_eq!(get(&mut client, "/small.txt", "")?.body, "0123456789");
    drop(client);
    site.server.stop()?;
    Ok(())
}

/// As a sandbox that knows no `sendfile` has it.
#[cfg(target_os = "linux")]
#[test]
fn a_file_is_sent_where_sendfile_is_forbidden() -> io::Result<()> {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The number of the call is what comes first.
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, libc::SYS_sendfile as u32),
        step(
            BPF_RET | BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(BPF_RET | BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let root = tempfile::tempdir()?;
    fs::write(root.path().join("large.css"), large())?;
    let mut command = Command::new(PROGRAM);
    let forbid = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the filter is there for the call, which copies it.
        let status = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
        };
        match status {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(forbid) };
    let root = root.path().to_str().expect("a name");
    let server = Server::spawn(command, "files", &["--root", root])?;
    let mut client = HttpClient::connect(server.address)?;
    assert!(get(&mut client, "/large.css", "")?.body == large());
    drop(client);
    server.stop()?;
    Ok(())
}

#[test]
fn requests_that_follow_each_other_are_answered_in_order() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    let targets = [
        "/small.txt",
        "/nothing",
        "/large.css",
        "/",
        "/empty",
        "/below/",
    ];
    let mut requests: String = targets.map(|target| request("GET", target, "")).concat();
    requests.push_str(&request("POST", "/", "Content-Length: 3\r\n"));
    requests.push_str("abc");
    requests.push_str(&request("GET", "/small.txt", "Connection: close\r\n"));
    client.send(&requests)?;
    let large = large();
    for (status, body) in [
        (200, "0123456789"),
        (404, "404 Not Found\n"),
        (200, &*large),
        (200, "<p>root"),
        (200, ""),
        (200, "<p>below"),
        (405, "405 Method Not Allowed\n"),
    ] {
        let answer = client.answer()?;
        assert!(answer.status == status && answer.body == body, "{status}");
    }
    let answer = client.answer()?;
    assert!(answer.body == "0123456789" && answer.has("Connection: close"));
    assert!(client.is_at_end()?);
    site.stop(client)?;
    Ok(())
}

#[test]
fn many_clients_get_what_each_asked_for() -> io::Result<()> {
    let site = Site::new(&[])?;
    let large = large();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..50)
            .map(|index| {
                let (site, large) = (&site, &large);
                scope.spawn(move || -> io::Result<()> {
                    let mut client = site.client()?;
                    for round in 0..20 {
                        let first = index * 1000 + round;
                        let last = first + 150_000 * (round % 3);
                        let range = format!("Range: bytes={first}-{last}\r\n");
                        let answer = get(&mut client, "/large.css", &range)?;
                        assert!(answer.status == 206 && answer.body == large[first..=last]);
                        assert_eq!(get(&mut client, "/small.txt", "")?.body, "0123456789");
                    }
                    Ok(())
                })
            })
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().expect("no panic"))
    })?;
    let summary = site.server.stop()?;
    assert!(summary.contains("requests               2000"), "{summary}");
    Ok(())
}

/// Reads the head of an answer, and leaves the rest.
fn begin(site: &Site, target: &str) -> io::Result<HttpClient> {
    let mut client = site.client()?;
    client.send(&request("GET", target, ""))?;
    assert!(client.head()?.has(&format!("Content-Length: {HUGE}")));
    Ok(client)
}

/// A site whose huge file a client has begun to read.
fn begin_huge(arguments: &[&str]) -> io::Result<(Site, HttpClient)> {
    let site = Site::new(arguments)?;
    site.huge()?;
    let client = begin(&site, "/huge")?;
    Ok((site, client))
}

#[test]
fn a_client_that_takes_its_time_keeps_nobody_and_gets_everything() -> io::Result<()> {
    let (site, mut slow) = begin_huge(&[])?;
    let mut other = site.client()?;
    for _ in 0..100 {
        assert_eq!(get(&mut other, "/small.txt", "")?.body, "0123456789");
        slow.stream.read_exact(&mut [1; 100])?;
    }
    let rest = io::copy(
        &mut slow.stream.by_ref().take(HUGE - 10_000),
        &mut io::sink(),
    )?;
    assert_eq!(rest, HUGE - 10_000);
    assert_eq!(get(&mut slow, "/small.txt", "")?.body, "0123456789");
    site.server.stop()?;
    Ok(())
}

#[test]
fn a_client_that_takes_nothing_is_let_go() -> io::Result<()> {
    let (site, mut deaf) = begin_huge(&["--idle-timeout", "1"])?;
    // What is sent to a connection that was closed ends it for the sender, too.
    eventually("it is closed", || Ok(deaf.send("x").is_err()))?;
    assert!(end(&mut deaf)? < HUGE);
    site.server.stop()?;
    Ok(())
}

/// Much slower than what the kernel takes at once, so that the server hears nothing of it for longer than the time that
/// a client has; but never still for that long.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_reads_slowly_but_steadily_stays() -> io::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let site = Site::new(&["--idle-timeout", "1"])?;
    site.huge()?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // So that it takes little at a time, and says so often.
    socket.set_recv_buffer_size(16 * 1024)?;
    socket.connect(&site.server.address.into())?;
    let mut slow = HttpClient::on(socket.into())?;
    slow.send(&request("GET", "/huge", ""))?;
    assert!(slow.head()?.has(&format!("Content-Length: {HUGE}")));
    let start = Instant::now();
    let mut taken = vec![start];
    let mut read = Ok(());
    while read.is_ok() && start.elapsed() < 3 * TIMEOUT {
        read = slow.stream.read_exact(&mut [1; 4000]);
        taken.push(Instant::now());
        thread::sleep(TIMEOUT / 20);
    }
    taken.push(Instant::now());
    // And is still being sent to.
    let read = read.and_then(|()| slow.stream.read_exact(&mut vec![1; 16 << 20]));
    // Its system says after some reads that there is room again. If they took long, it has stood still.
    let mut some = taken.windows(taken.len().min(6));
    if !some.any(|it| it[it.len() - 1] - it[0] > TIMEOUT / 2) {
        read?;
    }
    drop(slow);
    site.server.stop()?;
    Ok(())
}

/// How many bytes come until the server closes the connection.
fn end(client: &mut HttpClient) -> io::Result<u64> {
    let mut total = 0;
    let mut room = vec![0; 1 << 20];
    loop {
        match client.stream.read(&mut room) {
            Ok(0) => return Ok(total),
            Ok(count) => total += count as u64,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(total),
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_ends_the_connection() -> io::Result<()> {
    let site = Site::new(&[])?;
    let file = site.huge()?;
    let mut client = begin(&site, "/huge")?;
    // What was sent before comes, whatever the client has sent meanwhile: the connection is not reset.
    client.send(&request("GET", "/small.txt", ""))?;
    file.set_len(1000)?;
    assert!(io::copy(&mut client.stream, &mut io::sink())? < HUGE);
    // The server goes on, and the file is as long as it is.
    assert!(get(&mut site.client()?, "/huge", "")?.has("Content-Length: 1000"));
    let summary = site.stop(client)?;
    assert!(summary.contains("failed bodies             1"), "{summary}");
    Ok(())
}

#[test]
fn a_file_that_grows_comes_as_long_as_it_was_and_another_in_its_place_as_it_was() -> io::Result<()>
{
    let site = Site::new(&[])?;
    let path = site.root().join("huge");
    let mut file = site.huge()?;
    let mut client = begin(&site, "/huge")?;
    io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
    file.write_all(b"more")?;
    // On Windows nobody can take the place of an open file.
    if cfg!(unix) {
        replace(&path)?;
    }
    let copied = io::copy(&mut client.stream.by_ref().take(HUGE), &mut io::sink())?;
    assert_eq!(copied, HUGE);
    assert_eq!(get(&mut client, "/small.txt", "")?.body, "0123456789");
    site.stop(client)?;
    Ok(())
}

fn replace(path: &Path) -> io::Result<()> {
    let other = path.with_extension("new");
    fs::write(&other, "another")?;
    fs::rename(other, path)
}

#[test]
fn what_is_being_sent_at_the_end_is_finished() -> io::Result<()> {
    // More than the kernel keeps.
    const PART: u64 = 32 << 20;
    let site = Site::new(&["--grace", "60"])?;
    site.huge()?;
    let mut client = site.client()?;
    let range = format!("Range: bytes=0-{}\r\n", PART - 1);
    client.send(&request("GET", "/huge", &range))?;
    assert_eq!(client.head()?.status, 206);
    let mut idle = site.client()?;
    get(&mut idle, "/small.txt", "")?;
    site.server.interrupt()?;
    assert!(idle.is_at_end()?);
    let copied = io::copy(&mut client.stream, &mut io::sink())?;
    assert_eq!(copied, PART);
    let (status, summary) = site.server.ended()?;
    assert_eq!(status.code(), Some(0), "{summary}");
    Ok(())
}

#[test]
fn what_nobody_takes_is_cut_off_at_the_end() -> io::Result<()> {
    let (site, mut client) = begin_huge(&[])?;
    let summary = site.server.stop()?;
    assert!(end(&mut client)? < HUGE, "{summary}");
    Ok(())
}

/// `/proc` tells of its descriptors.
#[cfg(target_os = "linux")]
#[test]
fn no_file_stays_open() -> io::Result<()> {
    let (site, mut client) = Site::visited(&[])?;
    get(&mut client, "/large.css", "")?;
    let before = site.server.own_descriptors()?;
    for _ in 0..50 {
        get(&mut client, "/large.css", "")?;
        get(&mut client, "/small.txt", "")?;
        client.send(&request("HEAD", "/small.txt", ""))?;
        client.head()?;
    }
    site.huge()?;
    drop(begin(&site, "/huge")?);
    eventually("its files are closed", || {
        Ok(site.server.own_descriptors()? <= before)
    })?;
    site.stop(client)?;
    Ok(())
}

#[test]
fn there_has_to_be_a_root() -> io::Result<()> {
    let program = || {
        let mut command = std::process::Command::new(PROGRAM);
        command.args(["serve", "--mode", "files"]);
        command
    };
    let output = started(|| program().output())?;
    assert_eq!(output.status.code(), Some(2));
    let nowhere = tempfile::tempdir()?.path().join("nowhere");
    let output = started(|| program().arg("--root").arg(&nowhere).output())?;
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("nowhere"), "{message}");
    Ok(())
}
