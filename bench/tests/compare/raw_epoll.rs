//! With raw `epoll`: four threads on one set, one-shot. A slow reader holds one of them, and nobody takes its place.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn serve(listener: TcpListener) -> io::Result<()> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    let clients = Mutex::new(HashMap::<u64, Arc<TcpStream>>::new());
    let once = EventFlags::IN | EventFlags::ONESHOT;
    let of = |number: u64| EventData::new_u64(number);
    let listening = listener.as_raw_fd() as u64;
    epoll::add(&set, &listener, of(listening), once)?;
    let work = || -> io::Result<()> {
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: of(0),
        }; 64];
        loop {
            let count = match epoll::wait(&set, &mut events, None) {
                Err(rustix::io::Errno::INTR) => continue,
                count => count?,
            };
            for number in events[..count].iter().map(|event| event.data.u64()) {
                if number == listening {
                    let (client, _) = listener.accept()?;
                    client.set_read_timeout(Some(LIMIT))?;
                    client.set_write_timeout(Some(LIMIT))?;
                    let client = Arc::new(client);
                    let number = client.as_raw_fd() as u64;
                    clients.lock().unwrap().insert(number, Arc::clone(&client));
                    epoll::add(&set, &*client, of(number), once)?;
                    epoll::modify(&set, &listener, of(listening), once)?;
                    continue;
                }
                let Some(client) = clients.lock().unwrap().get(&number).cloned() else {
                    continue;
                };
                let mut buffer = [0; 4096];
                let length = (&*client).read(&mut buffer).unwrap_or(0);
                if length > 0 && (&*client).write_all(&buffer[..length]).is_ok() {
                    epoll::modify(&set, &*client, of(number), once)?;
                } else {
                    clients.lock().unwrap().remove(&number);
                }
            }
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    Ok(())
}
