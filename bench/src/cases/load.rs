//! A server under load: the client is a process of its own.

use std::io;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};

use crate::client::{self, Load};
use crate::exchange::Found;
use crate::figure::{Figure, Sample};
use crate::implementation::Implementation;
use crate::processors::Apart;
use crate::servers::{self, Protocol, Shape, Until};
use crate::stopwatch::Stopwatch;

/// What the client finds; for each answer, the CPU time of this process, and how often a thread had to wait.
pub(super) fn measure<P: Protocol>(
    implementation: Implementation,
    shape: Shape,
    protocol: &P,
    load: Load,
) -> io::Result<Sample> {
    measure_server(load, |connections, until| {
        servers::serve(implementation, shape, protocol, connections, until)
    })
}

/// The same of any server.
pub(super) fn measure_server(
    load: Load,
    serve: impl FnOnce(Vec<TcpStream>, Until<'_>) -> io::Result<()>,
) -> io::Result<Sample> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // As many as may wait; who finds no room tries again a second later.
    rustix::net::listen(&listener, i32::MAX)?;
    let apart = load.is_apart.then(Apart::new).transpose()?;
    let mut client = client::start(listener.local_addr()?, load)?;
    if let Some(apart) = &apart {
        apart.serve()?;
    }
    let connections = client::accept(&listener, load.connections)?;
    let (stopwatch, before) = (Stopwatch::of_process(), waits()?);
    serve(connections, &mut || client.wait().map(drop))?;
    let (cpu, waits) = (stopwatch.cpu(), waits()? - before);
    let Found { answers, figures } = client::found(client)?;
    let mut sample = figures;
    sample.insert(Figure::ServerCpu, cpu.as_secs_f64() * 1e6 / answers);
    sample.insert(Figure::Switches, waits / answers);
    Ok(sample)
}

/// How often the threads of this process have given a processor up of their own accord.
pub(super) fn waits() -> io::Result<f64> {
    let mut usage = MaybeUninit::uninit();
    // SAFETY: there is room for what it writes.
    match unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } {
        // SAFETY: it has written it.
        0 => Ok(unsafe { usage.assume_init() }.ru_nvcsw as f64),
        _ => Err(io::Error::last_os_error()),
    }
}
