//! Two servers of files that do the same: over the port, and over tokio.
//!
//! Each request opens a file, asks for its length, and gets a head and the file. A client's requests have a file of their
//! own, so that none profits from another. The port's server sends what is larger than [`CHUNK`] by `sendfile` in the
//! handler, as `serve --mode files` does. All else is read in parts of [`CHUNK`], and one part is sent before the next is
//! read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Advice, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use socknotify::owned::{
    BorrowedSocket, Buffer, Event, FileDriver, FileOperation, Held, Interest, Port, PortFile,
    Source, Worker,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::file_head;
use crate::servers::{MOST, Until, is_end, on_threads, take_events, tokio::finish};

/// How much of a file is read at once.
const CHUNK: u64 = 128 * 1024;

/// How much the system sends at once, where it sends the file itself. Then others have their turn.
const DIRECT: u64 = 1024 * 1024;

/// The files.
#[derive(Clone)]
pub(crate) struct Site {
    path: PathBuf,
    root: Arc<File>,
    is_cached: bool,
}

impl Site {
    pub(crate) fn open(path: &Path, is_cached: bool) -> io::Result<Self> {
        Ok(Site {
            path: path.to_owned(),
            root: Arc::new(File::open(path)?),
            is_cached,
        })
    }

    /// The file of this client.
    pub(crate) fn name(client: usize) -> String {
        format!("file-{client}")
    }

    /// Opens a file, if that does not block.
    fn open_at_once(&self, client: usize) -> Option<io::Result<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::CACHED;
        match rustix::fs::openat2(
            &self.root,
            Self::name(client),
            flags,
            Mode::empty(),
            resolve,
        ) {
            Err(Errno::AGAIN) => None,
            opened => Some(opened.map(File::from).map_err(Into::into)),
        }
    }

    fn path(&self, client: usize) -> PathBuf {
        self.path.join(Self::name(client))
    }

    /// The whole of a file was read. If it has to come from the disk, it has to the next time, too.
    fn have_read(&self, file: &File) -> io::Result<()> {
        if !self.is_cached {
            rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// Whether there is a whole request for a file. A client sends one at a time.
fn is_request(received: &[u8]) -> io::Result<bool> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let outcome = request.parse(received).map_err(io::Error::other)?;
    Ok(outcome.is_complete() && request.method == Some("GET"))
}

/// What was received, if it is a request. False at the end.
fn heard(received: io::Result<usize>, room: &[u8]) -> io::Result<Option<bool>> {
    match received {
        Ok(0) => Ok(None),
        Ok(length) => is_request(&room[..length]).map(Some),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(false)),
        Err(error) if is_end(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

struct Client {
    stream: TcpStream,
    number: usize,
    answer: Option<Answer>,
}

impl Source for Client {
    fn socket(&self) -> BorrowedSocket<'_> {
        self.stream.socket()
    }
}

/// A file on its way.
struct Answer {
    file: PortFile,
    rest: Range<u64>,
    chunk: Vec<u8>,
    /// Where in the chunk the file's next bytes go: at first, behind the head.
    room: usize,
    unsent: Range<usize>,
    is_direct: bool,
}

impl Answer {
    /// Sends what was read, or what the system sends itself, as far as it fits.
    fn send(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        if !self.unsent.is_empty() {
            self.unsent.start += stream.write(&self.chunk[self.unsent.clone()])?;
        }
        if self.is_direct && self.unsent.is_empty() && !self.rest.is_empty() {
            let count = DIRECT.min(self.rest.end - self.rest.start) as usize;
            let from = Some(&mut self.rest.start);
            if rustix::fs::sendfile(stream, &*self.file, from, count)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    fn waits_for_room(&self) -> bool {
        !self.unsent.is_empty() || (self.is_direct && !self.rest.is_empty())
    }
}

struct Opened(Held<Client>, io::Result<File>);

/// Memory that is read into, with the client that waits for it.
struct Reading(Held<Client>, Vec<u8>);

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl AsMut<[u8]> for Reading {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.1
    }
}

struct Server {
    port: Port<Client, Opened>,
    site: Site,
}

pub(crate) fn serve(
    driver: FileDriver,
    site: Site,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let port = Port::builder().file_driver(driver).build()?;
    for (number, stream) in streams.into_iter().enumerate() {
        let client = port.adopt(Client {
            stream,
            number,
            answer: None,
        })?;
        port.arm(client, Interest::IN);
    }
    let server = Server { port, site };
    let threads = std::iter::repeat_n(|| server.run(), 4);
    on_threads(threads, until, || {
        server.port.close();
        Ok(())
    })
}

impl Server {
    fn run(&self) -> io::Result<()> {
        take_events(&self.port, 64, |event, worker| match event {
            Event::Ready(held, _) if held.answer.is_some() => self.send(held, worker),
            Event::Ready(held, _) => self.hear(held, worker),
            Event::Message(Opened(held, file)) => self.begin(held, file?, worker),
            Event::Completed(done) => {
                let Ok(reading) = done.buffer.into_owner::<Reading>() else {
                    return Ok(());
                };
                let Reading(mut held, chunk) = *reading;
                if let Some(answer) = &mut held.answer {
                    let count = done.result?;
                    answer.chunk = chunk;
                    answer.unsent = 0..answer.room + count;
                    answer.rest.start += count as u64;
                    answer.room = 0;
                }
                self.send(held, worker)
            }
            _ => Ok(()),
        })
    }

    fn hear(&self, mut held: Held<Client>, worker: &mut Worker<Client, Opened>) -> io::Result<()> {
        let mut room = [0; MOST];
        let (client, readiness) = held.split();
        let received = readiness.io(&client.stream).read(&mut room);
        match heard(received, &room)? {
            None => {}
            Some(false) => worker.arm(held, Interest::IN),
            Some(true) => match self.site.open_at_once(held.number) {
                Some(file) => self.begin(held, file?, worker)?,
                None => {
                    let path = self.site.path(held.number);
                    // At the end of the run the port is closed.
                    let _ = self.port.offload(move || Opened(held, File::open(path)));
                }
            },
        }
        Ok(())
    }

    fn begin(
        &self,
        mut held: Held<Client>,
        file: File,
        worker: &mut Worker<Client, Opened>,
    ) -> io::Result<()> {
        let length = file.metadata()?.len();
        let mut chunk = file_head(length).into_bytes();
        let head = chunk.len();
        let is_direct = length > CHUNK;
        if !is_direct {
            chunk.resize(head + length as usize, 0);
        }
        held.answer = Some(Answer {
            file: self.port.adopt_file(file)?,
            rest: 0..length,
            chunk,
            room: head,
            unsent: if is_direct { 0..head } else { 0..0 },
            is_direct,
        });
        match is_direct {
            true => self.send(held, worker),
            false => {
                read(held, worker);
                Ok(())
            }
        }
    }

    fn send(&self, mut held: Held<Client>, worker: &mut Worker<Client, Opened>) -> io::Result<()> {
        let client = &mut *held;
        let Some(answer) = &mut client.answer else {
            return Ok(());
        };
        match answer.send(&client.stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if is_end(&error) => return Ok(()),
            outcome => outcome?,
        }
        match (answer.waits_for_room(), answer.rest.is_empty()) {
            (true, _) => worker.arm(held, Interest::OUT),
            (false, false) => read(held, worker),
            (false, true) => {
                self.site.have_read(&answer.file)?;
                client.answer = None;
                worker.arm(held, Interest::IN);
            }
        }
        Ok(())
    }
}

fn read(mut held: Held<Client>, worker: &mut Worker<Client, Opened>) {
    let Some(answer) = &mut held.answer else {
        return;
    };
    let (file, offset) = (answer.file.clone(), answer.rest.start);
    let space = answer.chunk.len() - answer.room;
    let count = space.min((answer.rest.end - offset) as usize);
    let range = answer.room..answer.room + count;
    let chunk = std::mem::take(&mut answer.chunk);
    let buffer = Buffer::from_owner(Box::new(Reading(held, chunk)));
    // At the end of the run the port is closed.
    let _ = worker.begin(FileOperation::read_at(&file, buffer, offset).range(range));
}

/// Over `tokio::fs`; or with files opened by the task itself, if that does not block, and read by `tokio::fs`.
pub(crate) fn serve_tokio(
    site: Site,
    opens_at_once: bool,
    streams: Vec<TcpStream>,
    until: Until<'_>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .build()?;
    let tasks: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(number, stream)| {
            runtime.spawn(converse(site.clone(), opens_at_once, number, stream))
        })
        .collect();
    finish(&runtime, tasks, until)
}

async fn converse(
    site: Site,
    opens_at_once: bool,
    number: usize,
    stream: TcpStream,
) -> io::Result<()> {
    let mut stream = tokio::net::TcpStream::from_std(stream)?;
    let mut room = [0; MOST];
    loop {
        let received = stream.read(&mut room).await;
        match heard(received, &room)? {
            None => return Ok(()),
            Some(false) => continue,
            Some(true) => {}
        }
        let opened = match opens_at_once {
            true => site.open_at_once(number),
            false => None,
        };
        let (mut file, length) = match opened {
            Some(file) => {
                let file = file?;
                let length = file.metadata()?.len();
                (tokio::fs::File::from_std(file), length)
            }
            None => {
                let file = tokio::fs::File::open(site.path(number)).await?;
                let length = file.metadata().await?.len();
                (file, length)
            }
        };
        match send(&mut stream, &mut file, length).await {
            Err(error) if is_end(&error) => return Ok(()),
            outcome => outcome?,
        }
        site.have_read(&file.into_std().await)?;
    }
}

async fn send(
    stream: &mut tokio::net::TcpStream,
    file: &mut tokio::fs::File,
    length: u64,
) -> io::Result<()> {
    let mut chunk = file_head(length).into_bytes();
    let mut from = chunk.len();
    chunk.resize(from + length.min(CHUNK) as usize, 0);
    let mut rest = length;
    while rest > 0 {
        let count = file.read(&mut chunk[from..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        stream.write_all(&chunk[..from + count]).await?;
        rest -= count as u64;
        from = 0;
    }
    Ok(())
}
