//! With socknotify: blocking connections; a slow reader holds a thread, and `serve` starts another.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use socknotify::owned::{Event, Interest, Listening, Port, Serving};

pub(crate) fn serve(listener: TcpListener) -> io::Result<()> {
    let port = Port::new()?;
    let listening = Listening::arming(Interest::IN).blocking_mode(Duration::from_secs(30));
    port.listen(listener, listening, |client, _| client)?;
    port.serve(Serving::default(), |worker, event| {
        let Event::Ready(mut client, _) = event else {
            return;
        };
        let mut buffer = [0; 4096];
        if let Ok(length @ 1..) = client.read(&mut buffer) {
            if client.write_all(&buffer[..length]).is_ok() {
                worker.arm(client, Interest::IN);
            }
        }
    })?;
    Ok(())
}
