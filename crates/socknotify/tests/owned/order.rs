//! E1: wake-ups and messages share the room. Events are counted, not time.

use std::io;

use socknotify::Backend;
use socknotify::owned::{Event, Interest};

use crate::support::PATIENCE;
use crate::{connect, owning_port};

/// (b) Connections that are woken as soon as they are armed take no more than their half from messages.
#[for_every_backend]
fn e1_wake_ups_do_not_starve_messages(backend: Backend) -> io::Result<()> {
    const WOKEN: usize = 200;
    const MESSAGES: usize = 1000;
    for room in [1, 64] {
        let port = owning_port(backend, 1)?;
        let mut peers = Vec::new();
        for _ in 0..WOKEN {
            let (connection, theirs) = connect(&port)?;
            let id = connection.id();
            port.arm(connection, Interest::NOTHING);
            assert!(port.cancel(id));
            peers.push(theirs);
        }
        for message in 0..MESSAGES as u64 {
            port.send(message).expect("it is open");
        }
        let mut worker = port.worker(room);
        let (mut woken, mut messages) = (0, 0);
        while messages < MESSAGES {
            worker.process(Some(PATIENCE))?;
            while let Some(event) = worker.take() {
                match event {
                    Event::Cancelled(connection) => {
                        woken += 1;
                        let id = connection.id();
                        worker.arm(connection, Interest::NOTHING);
                        assert!(port.cancel(id));
                    }
                    Event::Message(message) => {
                        assert_eq!(message, messages as u64, "they come in order");
                        messages += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        // What the kernel's own port has as one queue is not shared by halves: there, what is queued comes in order.
        assert!(
            woken <= 2 * MESSAGES + WOKEN,
            "{woken} beside {MESSAGES} with room {room}"
        );
    }
    Ok(())
}
