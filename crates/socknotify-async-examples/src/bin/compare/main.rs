//! Compares socknotify-async with tokio: the same hyper service, the same client, one after the other.
//!
//! The server is a process of its own, so that its processor time can be told.

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod micro;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod tokio_io;

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    use clap::Parser;

    #[derive(Parser)]
    enum Command {
        /// Serve until standard input ends. (For the others.)
        Serve {
            runtime: server::Runtime,
            protocol: server::Protocol,
            /// How many of a thousand requests sleep.
            #[arg(long, default_value_t = 0)]
            sleep: u64,
        },
        /// Requests per second and processor time per request.
        Http {
            #[arg(long, default_value = "http1")]
            protocol: server::Protocol,
            #[arg(long, default_value = "small")]
            kind: client::Kind,
            #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1000])]
            connections: Vec<usize>,
            /// How long each measurement takes, in milliseconds.
            #[arg(long, default_value_t = 2000)]
            time: u64,
            /// How often each is repeated; the median counts.
            #[arg(long, default_value_t = 3)]
            rounds: usize,
        },
        /// The same while some requests sleep for 50 ms.
        Blocking {
            #[arg(long, default_value_t = 100)]
            connections: usize,
            #[arg(long, default_value_t = 2000)]
            time: u64,
            #[arg(long, default_value_t = 3)]
            rounds: usize,
        },
        /// Spawning, waking, timers, and memory.
        Tasks {
            /// Only this runtime, in this process. (For the others.)
            #[arg(long)]
            only: Option<server::Runtime>,
        },
    }
    match Command::parse() {
        Command::Serve {
            runtime,
            protocol,
            sleep,
        } => server::serve(runtime, protocol, sleep),
        Command::Http {
            protocol,
            kind,
            connections,
            time,
            rounds,
        } => client::http(kind, protocol, &connections, time, rounds),
        Command::Blocking {
            connections,
            time,
            rounds,
        } => client::blocking(connections, time, rounds),
        Command::Tasks { only: None } => micro::compare(),
        Command::Tasks {
            only: Some(runtime),
        } => micro::measure(runtime),
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this compares on Linux only");
}
