//! With socknotify: reads and writes that wait; a slow reader holds a thread, and `serve` starts another.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use socknotify::owned::{Event, Interest, Limited, Port, Serving};

pub(crate) fn serve(listener: TcpListener) -> io::Result<()> {
    let port = Port::new()?;
    port.listen(listener, Interest::IN, |client, _| client)?;
    port.serve(Serving::default(), |worker, event| {
        let Event::Ready(client, _) = event else {
            return;
        };
        let mut stream = Limited::within(&*client, Duration::from_secs(30));
        let mut buffer = [0; 4096];
        if let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_ok() {
                worker.arm(client, Interest::IN);
            }
        }
    })?;
    Ok(())
}
