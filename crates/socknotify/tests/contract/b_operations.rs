//! B. Operations: what an entry may ask for, and what becomes of it.

use std::io;
use std::time::Duration;

use socknotify::{
    Backend, CompletionPort, Entry, Error, EventFilter, Events, Operation, RegisterError,
    Registration, RegistrationError, Trigger,
};

use crate::support::trigger::{EVERY, LEVEL, ONCE};
use crate::support::{
    ERRORS_END, Kind, Pair, PollFlags, PortExt, RawSocket, as_told_by, counted, drain_port,
    end_shows_behind_data, expect, expect_nothing, expect_removed, no_sockets, pairs, port, raw,
    reset, to_lonely_number, wait_readiness,
};

const KEY: usize = 21;
const OTHER_KEY: usize = 22;
const OPERATIONS: [Operation; 3] = [Operation::ENABLE, Operation::DISABLE, Operation::REMOVE];

#[for_every_backend]
fn b1_two_operations_or_an_unknown_one_change_nothing(port: CompletionPort) -> io::Result<()> {
    let (known, unknown) = (Pair::unix()?, Pair::unix()?);
    port.enable(&known.ours, KEY, EventFilter::IN, ONCE)?;
    for bits in 0..=u8::MAX {
        if [0, 1, 2, 4].contains(&bits) {
            continue;
        }
        for pair in [&known, &unknown] {
            let mut entry = Registration::enable(&pair.ours, KEY, EventFilter::ALL, LEVEL);
            entry.operation = Operation::from_bits_retain(bits);
            let result = port.register(entry);
            assert_eq!(
                result,
                Err(RegistrationError::InvalidOperation.into()),
                "{bits:#x}"
            );
            assert_eq!(result.map_err(RegisterError::code), Err(87));
        }
    }
    assert_eq!(counted(port.snapshot().registrations), 1);
    expect_nothing(&port);
    unknown.send()?;
    expect_nothing(&port);
    known.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

/// The document's server asks for both, and counts on the failure.
#[for_every_backend]
fn b1_remove_together_with_enable_is_refused(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    let mut both = Registration::enable(&pair.ours, KEY, EventFilter::ALL, ONCE);
    both.operation = Operation::REMOVE | Operation::ENABLE;

    let result = port.register(both.clone());
    assert_eq!(result, Err(RegistrationError::InvalidOperation.into()));
    assert_eq!(counted(port.snapshot().registrations), 0);

    port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
    let result = port.register(both);
    assert_eq!(result, Err(RegistrationError::InvalidOperation.into()));
    expect_nothing(&port);
    pair.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    expect_removed(&port, &pair.ours, KEY)
}

#[for_every_backend]
fn b2_none_applies_nothing_and_succeeds(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    let none = || {
        // What the other fields say does not count.
        let mut entry = Registration::new(&pair.ours);
        entry.completion_key = OTHER_KEY;
        entry.event_filter = EventFilter::from_bits_retain(0xffff);
        entry.trigger = Trigger::from_bits_retain(0xff);
        assert_eq!(entry.operation, Operation::NONE);
        port.register(entry)
    };
    none()?;
    assert_eq!(counted(port.snapshot().registrations), 0);

    // While it is enabled, after it has fired, while it is disabled, while it is being removed.
    port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
    none()?;
    pair.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    none()?;
    expect_nothing(&port);
    port.register(Registration::disable(&pair.ours))?;
    none()?;
    expect_nothing(&port);
    port.register(Registration::remove(&pair.ours))?;
    none()?;
    expect(&port, &[(KEY, Events::REMOVE)]);
    none()?;
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn b3_disable_stops_notifications_and_keeps_the_key(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        let enable = |key| Registration::enable(&pair.ours, key, EventFilter::IN, trigger);
        port.register(enable(KEY))?;
        port.register(Registration::disable(&pair.ours))?;
        pair.send()?;
        expect_nothing(&port);
        pair.drain()?;
        assert_eq!(counted(port.snapshot().registrations), 1);
        let other = port.register(enable(OTHER_KEY));
        assert_eq!(other, as_told_by(&port, Err(RegistrationError::OtherKey)));
        port.register(enable(KEY))?;
        expect_nothing(&port);
        pair.send()?;
        expect(&port, &[(KEY, Events::IN)]);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

#[for_every_backend]
fn b3_what_was_queued_before_disable_comes_at_most_once(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        pair.send()?;
        // A call in which the port may find out, and queue what it found.
        port.post(Entry::new(0, 0, 0))?;
        port.register(Registration::disable(&pair.ours))?;
        let found = drain_port(&port);
        let notifications = found.iter().filter(|&&found| found != (0, Events::empty()));
        assert!(notifications.clone().count() <= 1, "{found:?}");
        assert!(
            notifications
                .clone()
                .all(|&found| found == (KEY, Events::IN))
        );
        pair.drain()?;
        pair.send()?;
        expect_nothing(&port);
        // And nothing of it is left over for later.
        pair.drain()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn b3_disable_may_be_asked_for_again(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        let enable = || Registration::enable(&pair.ours, KEY, EventFilter::IN, trigger);
        port.register(enable())?;
        for _ in 0..3 {
            port.register(Registration::disable(&pair.ours))?;
        }
        port.register(enable())?;
        pair.send()?;
        expect(&port, &[(KEY, Events::IN)]);
        // One that has fired is disabled already.
        for _ in 0..3 {
            port.register(Registration::disable(&pair.ours))?;
        }
        assert!(drain_port(&port).len() <= 1);
    }
    Ok(())
}

#[for_every_backend]
fn b4_remove_gives_one_last_notification(port: CompletionPort) -> io::Result<()> {
    for case in pairs(Kind::all()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        // Its other fields do not count.
        let mut remove = Registration::remove(&pair.ours);
        remove.completion_key = OTHER_KEY;
        remove.event_filter = EventFilter::from_bits_retain(0xffff);
        remove.trigger = Trigger::from_bits_retain(0xff);
        port.register(remove)?;
        // Asking again does not help, and does not hurt.
        for _ in 0..3 {
            let again = port.register(Registration::remove(&pair.ours));
            assert_eq!(again, Err(RegistrationError::NotFound.into()));
            let disable = port.register(Registration::disable(&pair.ours));
            assert_eq!(disable, Ok(()));
        }
        expect(&port, &[(KEY, Events::REMOVE)]);
        expect_nothing(&port);
        assert_eq!(counted(port.snapshot().registrations), 0);
        pair.send()?;
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn b4_remove_works_on_a_disabled_registration(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        let pair = Pair::unix()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        port.register(Registration::disable(&pair.ours))?;
        pair.send()?;
        expect_removed(&port, &pair.ours, KEY)?;
        pair.drain()?;

        port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
        pair.send()?;
        expect(&port, &[(KEY, Events::IN)]);
        pair.drain()?;
        // One-shots are disabled by that.
        port.register(Registration::remove(&pair.ours))?;
        expect(&port, &[(KEY, Events::REMOVE)]);
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn b4_what_was_queued_comes_before_remove_or_with_it(port: CompletionPort) -> io::Result<()> {
    for trigger in EVERY {
        for posting in [false, true] {
            let pair = Pair::unix()?;
            port.enable(&pair.ours, KEY, EventFilter::IN, trigger)?;
            pair.send()?;
            if posting {
                // A call in which the port may find out, and queue what it found.
                port.post(Entry::new(0, 0, 0))?;
            }
            port.register(Registration::remove(&pair.ours))?;
            let mut found = drain_port(&port);
            found.retain(|&found| found != (0, Events::empty()));
            let separate = [(KEY, Events::IN), (KEY, Events::REMOVE)];
            let merged = [(KEY, Events::IN | Events::REMOVE)];
            // Open in the contract: whether IN still shows once REMOVE is asked for.
            assert!(
                found == separate || found == merged || found == [(KEY, Events::REMOVE)],
                "{found:?}"
            );
            pair.send()?;
            expect_nothing(&port);
        }
    }
    Ok(())
}

#[for_every_backend]
fn b4_nothing_comes_after_remove_however_ready_the_socket_is(
    port: CompletionPort,
) -> io::Result<()> {
    for case in pairs(Kind::tcp()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::ALL, trigger)?;
        drain_port_of(&port, trigger);
        port.register(Registration::remove(&pair.ours))?;
        let last = drain_port(&port);
        let position = last
            .iter()
            .position(|(_, events)| events.contains(Events::REMOVE));
        assert_eq!(position, Some(last.len() - 1), "{last:?}");
        pair.send()?;
        expect_nothing(&port);
        reset(pair.theirs)?;
        wait_readiness(&pair.ours, PollFlags::ERR | PollFlags::HUP);
        expect_nothing(&port);
    }
    Ok(())
}

/// Takes what a writable socket has to say; a persistent level never ends, and an edge need not tell of it (C5).
fn drain_port_of(port: &CompletionPort, trigger: Trigger) {
    if trigger == LEVEL || trigger == ONCE {
        expect(port, &[(KEY, Events::OUT)]);
    } else {
        let found = drain_port(port);
        assert!(
            found.is_empty() || found == [(KEY, Events::OUT)],
            "{found:?}"
        );
    }
}

#[for_every_backend]
fn b5_remove_of_what_is_not_registered_is_not_found(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        let not_found = || -> io::Result<()> {
            let result = port.register(Registration::remove(&pair.ours));
            assert_eq!(result, Err(RegistrationError::NotFound.into()), "{kind}");
            assert_eq!(result.map_err(RegisterError::code), Err(1168));
            expect_nothing(&port);
            Ok(())
        };
        not_found()?;
        port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
        expect_removed(&port, &pair.ours, KEY)?;
        not_found()?;
    }
    Ok(())
}

#[for_every_backend]
fn b5_disable_of_what_is_not_registered_does_nothing(port: CompletionPort) -> io::Result<()> {
    for kind in Kind::all() {
        let pair = kind.pair()?;
        pair.send()?;
        wait_readiness(&pair.ours, PollFlags::IN);
        let disable = || port.register(Registration::disable(&pair.ours));
        assert_eq!(disable(), Ok(()), "{kind}");
        expect_nothing(&port);
        assert_eq!(counted(port.snapshot().registrations), 0, "{kind}");
        // It is registered with any key afterwards, and enabled.
        port.enable(&pair.ours, KEY, EventFilter::IN, ONCE)?;
        expect(&port, &[(KEY, Events::IN)]);
        port.register(Registration::remove(&pair.ours))?;
        assert_eq!(disable(), Ok(()), "{kind}");
        expect(&port, &[(KEY, Events::REMOVE)]);
        assert_eq!(disable(), Ok(()), "{kind}");
        expect_nothing(&port);
    }
    Ok(())
}

#[for_every_backend]
fn b6_filter_none_lets_errors_and_the_removal_through_and_nothing_else(
    backend: Backend,
) -> io::Result<()> {
    let port = port(backend)?;
    for case in pairs(Kind::tcp()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
        pair.send()?;
        expect_nothing(&port);
        reset(pair.theirs)?;
        expect(&port, &[(KEY, Events::ERR)]);
        if ERRORS_END {
            assert!(pair.ours.take_error()?.is_some());
            if trigger == LEVEL {
                // One more may have been queued before the error was taken.
                assert!(drain_port(&port).len() <= 1);
            }
            expect_removed(&port, &pair.ours, KEY)?;
        }
    }
    for case in pairs(Kind::streams()) {
        let (pair, trigger) = case?;
        port.enable(&pair.ours, KEY, EventFilter::NONE, trigger)?;
        if end_shows_behind_data() {
            pair.send()?;
        }
        drop(pair.theirs);
        wait_readiness(&pair.ours, PollFlags::RDHUP);
        expect_nothing(&port);
        expect_removed(&port, &pair.ours, KEY)?;
    }
    Ok(())
}

#[for_every_backend]
fn b6_an_unknown_filter_bit_is_refused(port: CompletionPort) -> io::Result<()> {
    let (known, unknown) = (Pair::unix()?, Pair::unix()?);
    port.enable(&known.ours, KEY, EventFilter::IN, ONCE)?;
    // The two above are extensions, which some systems have.
    let bad = (3..14)
        .map(|bit| 1_u16 << bit)
        .flat_map(|bit| [bit, bit | 0x07])
        .chain([0xff, 0xffff]);
    for bits in bad {
        for pair in [&known, &unknown] {
            let filter = EventFilter::from_bits_retain(bits);
            let result = port.enable(&pair.ours, KEY, filter, LEVEL);
            assert_eq!(
                result,
                Err(RegistrationError::InvalidFilter.into()),
                "{bits:#x}"
            );
            assert_eq!(result.map_err(RegisterError::code), Err(87));
        }
    }
    assert_eq!(counted(port.snapshot().registrations), 1);
    expect_nothing(&port);
    known.send()?;
    expect(&port, &[(KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn b7_a_failing_entry_does_not_stop_the_others(backend: Backend) -> io::Result<()> {
    let (port, elsewhere) = (port(backend)?, port(backend)?);
    let pairs = (0..4)
        .map(|_| Pair::unix())
        .collect::<io::Result<Vec<_>>>()?;
    let foreign = Pair::unix()?;
    elsewhere.enable(&foreign.ours, KEY, EventFilter::IN, ONCE)?;
    let (_, file) = no_sockets()?.swap_remove(0);

    let sockets: Vec<_> = pairs.iter().map(|pair| &pair.ours).collect();
    let enable = |socket, key| Registration::enable(socket, key, EventFilter::IN, ONCE);
    let mut twice = enable(sockets[1], 1);
    twice.operation = Operation::ENABLE | Operation::DISABLE;
    // SAFETY: the file is this test's.
    let mut no_socket = unsafe { Registration::from_raw(file.raw()) };
    no_socket.completion_key = 3;
    no_socket.event_filter = EventFilter::IN;
    no_socket.operation = Operation::ENABLE;
    no_socket.trigger = ONCE;
    let mut batch = [
        enable(sockets[0], 0),
        Registration::remove(sockets[1]),
        enable(sockets[1], 1),
        twice,
        enable(&foreign.ours, 9),
        enable(sockets[2], 2),
        no_socket,
        enable(sockets[2], 3),
        Registration::enable(sockets[3], 3, EventFilter::IN, Trigger::empty()),
        Registration::disable(sockets[0]),
        enable(sockets[3], 3),
    ];
    let wanted = [
        Ok(()),
        Err(RegistrationError::NotFound),
        Ok(()),
        Err(RegistrationError::InvalidOperation),
        Err(RegistrationError::OtherPort),
        Ok(()),
        Err(RegistrationError::NotASocket),
        Err(RegistrationError::OtherKey),
        Err(RegistrationError::InvalidTrigger),
        Ok(()),
        Ok(()),
    ]
    .map(|result| as_told_by(&port, result));
    assert_eq!(
        port.process(&mut batch, &mut [], Some(Duration::ZERO))?,
        &[]
    );
    let results: Vec<_> = batch.iter().map(Registration::result).collect();
    assert_eq!(results, wanted);
    assert_eq!(counted(port.snapshot().registrations), 4);

    for pair in &pairs {
        pair.send()?;
    }
    expect(&port, &[(1, Events::IN), (2, Events::IN), (3, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

/// What [`b7_entries_for_one_socket_apply_in_order`] does to the one socket.
#[derive(Clone, Copy, Debug)]
enum Step {
    EnableIn,
    EnableOut,
    EnableEdge,
    EnableWithOtherKey,
    EnableWrongly,
    Disable,
    Remove,
    Nothing,
}

const STEPS: [Step; 8] = [
    Step::EnableIn,
    Step::EnableOut,
    Step::EnableEdge,
    Step::EnableWithOtherKey,
    Step::EnableWrongly,
    Step::Disable,
    Step::Remove,
    Step::Nothing,
];

/// What the contract makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Absent,
    Enabled { key: usize, events: Events },
    Disabled { key: usize },
    Removing { key: usize },
}

impl Model {
    fn apply(&mut self, step: Step) -> Result<(), RegistrationError> {
        match (step, *self) {
            (Step::Nothing, _) => {}
            (Step::EnableWrongly, _) => return Err(RegistrationError::InvalidTrigger),
            (Step::Disable, Model::Absent | Model::Removing { .. }) => {}
            (Step::Remove, Model::Absent | Model::Removing { .. }) => {
                return Err(RegistrationError::NotFound);
            }
            (Step::Disable, Model::Enabled { key, .. } | Model::Disabled { key }) => {
                *self = Model::Disabled { key };
            }
            (Step::Remove, Model::Enabled { key, .. } | Model::Disabled { key }) => {
                *self = Model::Removing { key };
            }
            (_, Model::Removing { .. }) => return Err(RegistrationError::RemovePending),
            (_, model) => {
                let wanted = match step {
                    Step::EnableWithOtherKey => OTHER_KEY,
                    _ => KEY,
                };
                match model {
                    Model::Enabled { key, .. } | Model::Disabled { key } if key != wanted => {
                        return Err(RegistrationError::OtherKey);
                    }
                    _ => {}
                }
                *self = Model::Enabled {
                    key: wanted,
                    events: match step {
                        Step::EnableOut => Events::OUT,
                        _ => Events::IN,
                    },
                };
            }
        }
        Ok(())
    }
}

fn registration(step: Step, pair: &Pair) -> Registration<'_> {
    let socket = &pair.ours;
    let edge = Trigger::ONESHOT | Trigger::EDGE;
    match step {
        Step::EnableIn => Registration::enable(socket, KEY, EventFilter::IN, ONCE),
        Step::EnableOut => Registration::enable(socket, KEY, EventFilter::OUT, ONCE),
        Step::EnableEdge => Registration::enable(socket, KEY, EventFilter::IN, edge),
        Step::EnableWithOtherKey => Registration::enable(socket, OTHER_KEY, EventFilter::IN, ONCE),
        Step::EnableWrongly => Registration::enable(socket, KEY, EventFilter::IN, Trigger::ONESHOT),
        Step::Disable => Registration::disable(socket),
        Step::Remove => Registration::remove(socket),
        Step::Nothing => Registration::new(socket),
    }
}

/// Every batch of three steps for one socket, from every state, comes to what the model says.
#[for_every_backend]
fn b7_entries_for_one_socket_apply_in_order(backend: Backend) -> io::Result<()> {
    let starts: [&[Step]; 4] = [
        &[],
        &[Step::EnableIn],
        &[Step::EnableIn, Step::Disable],
        &[Step::EnableIn, Step::Remove],
    ];
    let mut batches = 0;
    for start in starts {
        for first in STEPS {
            for second in STEPS {
                for third in STEPS {
                    batches += 1;
                    // To fill a socket's buffer takes long where it is TCP's.
                    if cfg!(unix) || batches % 31 == 0 {
                        assert_model(backend, start, [first, second, third])?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn assert_model(backend: Backend, start: &[Step], batch: [Step; 3]) -> io::Result<()> {
    let port = port(backend)?;
    let pair = Pair::unix()?;
    // The smallest buffers that TCP, where it is that, fills without delay.
    pair.ours.set_send_buffer_size(1 << 17)?;
    pair.theirs.set_recv_buffer_size(1 << 17)?;
    // No condition holds while the steps are taken. Afterwards all do.
    let sent = pair.fill()?;
    let mut model = Model::Absent;
    for &step in start {
        let wanted = as_told_by(&port, model.apply(step));
        assert_eq!(port.register(registration(step, &pair)), wanted);
    }
    let mut entries = batch.map(|step| registration(step, &pair));
    port.process(&mut entries, &mut [], Some(Duration::ZERO))?;
    for (step, entry) in batch.into_iter().zip(&entries) {
        let wanted = as_told_by(&port, model.apply(step));
        assert_eq!(
            entry.result(),
            wanted,
            "{step:?} of {batch:?} from {start:?}"
        );
    }
    pair.make_room(sent)?;
    pair.send()?;
    let found = drain_port(&port);
    match model {
        Model::Absent | Model::Disabled { .. } => {
            assert_eq!(found, [], "{batch:?} from {start:?}");
        }
        Model::Enabled { key, events } => {
            assert_eq!(found, [(key, events)], "{batch:?} from {start:?}");
        }
        Model::Removing { key } => {
            assert_eq!(found, [(key, Events::REMOVE)], "{batch:?} from {start:?}");
        }
    }
    Ok(())
}

#[for_every_backend]
fn b7_results_of_an_earlier_call_are_overwritten(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    let mut batch = [
        Registration::remove(&pair.ours),
        Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE),
    ];
    port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    assert_eq!(batch[0].result(), Err(RegistrationError::NotFound));
    assert_eq!(batch[1].result(), Ok(()));
    batch[0].operation = Operation::DISABLE;
    batch[1].completion_key = OTHER_KEY;
    port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    assert_eq!(batch[0].result(), Ok(()));
    let refused = as_told_by(&port, Err(RegistrationError::OtherKey));
    assert_eq!(batch[1].result(), refused);
    Ok(())
}

#[for_every_backend]
fn b8_a_call_that_fails_applies_nothing(backend: Backend) -> io::Result<()> {
    let port = port(backend)?;
    let (known, unknown) = (Pair::unix()?, Pair::unix()?);
    port.enable(&known.ours, KEY, EventFilter::IN, LEVEL)?;
    known.send()?;
    let batch = || {
        [
            Registration::enable(&unknown.ours, KEY, EventFilter::IN, LEVEL),
            Registration::remove(&known.ours),
        ]
    };
    for timeout in [None, Some(Duration::from_secs(1))] {
        let result = port.process(&mut batch(), &mut [], timeout);
        assert_eq!(result, Err(Error::InvalidParameter));
    }
    assert_eq!(counted(port.snapshot().registrations), 1);
    unknown.send()?;
    expect(&port, &[(KEY, Events::IN), (KEY, Events::IN)]);
    let result = port.register(Registration::remove(&unknown.ours));
    assert_eq!(result, Err(RegistrationError::NotFound.into()));

    // So does a call on a closed port.
    port.close();
    let mut entries = [Entry::default(); 4];
    for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(1))] {
        let result = port.process(&mut batch(), &mut entries, timeout);
        assert_eq!(result, Err(Error::Closed));
    }
    let other = crate::support::port(backend)?;
    other.enable(&unknown.ours, KEY, EventFilter::IN, LEVEL)?;
    expect(&other, &[(KEY, Events::IN)]);
    Ok(())
}

#[for_every_backend]
fn b7_a_batch_has_one_result_where_that_is_asked_for(port: CompletionPort) -> io::Result<()> {
    let [one, two] = [Pair::unix()?, Pair::unix()?];
    let both =
        || [&one, &two].map(|pair| Registration::enable(&pair.ours, KEY, EventFilter::IN, LEVEL));
    port.register_all(&mut both())?;
    let mut batch = [
        Registration::remove(&one.ours),
        Registration::new(&two.ours),
        Registration::enable(&two.ours, KEY, EventFilter::IN, Trigger::empty()),
        Registration::disable(&two.ours),
    ];
    batch[1].operation = Operation::ENABLE | Operation::REMOVE;
    let first = RegisterError::Entry(RegistrationError::InvalidOperation);
    assert_eq!(port.register_all(&mut batch), Err(first));
    assert_eq!(batch[2].result(), Err(RegistrationError::InvalidTrigger));
    assert_eq!([batch[0].result(), batch[3].result()], [Ok(()); 2]);
    port.close();
    let closed = port.register_all(&mut both());
    assert_eq!(closed, Err(RegisterError::Call(Error::Closed)));
    Ok(())
}

#[for_every_backend]
fn b8_failures_of_the_call_and_of_an_entry_are_of_two_types(
    port: CompletionPort,
) -> io::Result<()> {
    let pair = Pair::unix()?;
    let mut batch = [Registration::remove(&pair.ours)];
    let call: Result<_, Error> = port.process(&mut batch, &mut [], Some(Duration::ZERO));
    assert!(call.is_ok());
    let entry: Result<(), RegistrationError> = batch[0].result();
    assert_eq!(entry, Err(RegistrationError::NotFound));
    // Where one result is that of both, it says whose it is.
    let entry = port.register(Registration::remove(&pair.ours));
    let not_found = RegisterError::Entry(RegistrationError::NotFound);
    assert_eq!(entry, Err(not_found));
    port.close();
    let call = port.register(Registration::remove(&pair.ours));
    assert_eq!(call, Err(RegisterError::Call(Error::Closed)));

    assert_eq!(Error::TimedOut.code(), 258);
    assert_eq!(Error::Closed.code(), 735);
    assert_eq!(Error::InvalidParameter.code(), 87);
    // Both say what they are in a sentence, and keep it as io::Error.
    let texts = [
        io::Error::from(Error::Closed).to_string(),
        io::Error::from(RegistrationError::NotFound).to_string(),
    ];
    assert_eq!(texts[0], Error::Closed.to_string());
    assert_eq!(texts[1], RegistrationError::NotFound.to_string());
    let kind = io::Error::from(Error::TimedOut).kind();
    assert_eq!(kind, io::ErrorKind::TimedOut);
    Ok(())
}

#[for_every_backend]
fn b9_no_room_and_a_timeout_contradict_each_other(backend: Backend) -> io::Result<()> {
    const TIMEOUTS: [Option<Duration>; 4] = [
        None,
        Some(Duration::from_nanos(1)),
        Some(Duration::from_millis(1)),
        Some(Duration::MAX),
    ];
    let port = port(backend)?;
    let pair = Pair::unix()?;
    // Whether there is something to dequeue or not.
    for posted in [false, true] {
        if posted {
            port.post(Entry::new(1, 2, 3))?;
        }
        for timeout in TIMEOUTS {
            let mut batch = [Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE)];
            let result = port.process(&mut batch, &mut [], timeout);
            assert_eq!(result, Err(Error::InvalidParameter), "{timeout:?}");
            let result = port.process(&mut [], &mut [], timeout);
            assert_eq!(result, Err(Error::InvalidParameter), "{timeout:?}");
            let result = port.dequeue(&mut [], timeout);
            assert_eq!(result, Err(Error::InvalidParameter), "{timeout:?}");
        }
        let result = port.dequeue(&mut [], Some(Duration::ZERO));
        assert_eq!(result, Err(Error::InvalidParameter));
    }
    assert_eq!(counted(port.snapshot().registrations), 0);
    assert_eq!(port.dequeue_one(None)?, Entry::new(1, 2, 3));
    expect_nothing(&port);
    Ok(())
}

#[for_every_backend]
fn b9_no_registrations_make_a_plain_dequeue(port: CompletionPort) -> io::Result<()> {
    let mut entries = [Entry::default(); 2];
    for timeout in [Some(Duration::ZERO), Some(Duration::from_millis(1))] {
        let result = port.process(&mut [], &mut entries, timeout);
        assert_eq!(result, Err(Error::TimedOut));
    }
    for timeout in [None, Some(Duration::ZERO), Some(Duration::from_millis(1))] {
        port.post(Entry::new(1, 2, 3))?;
        let found = port.process(&mut [], &mut entries, timeout)?;
        assert_eq!(found, [Entry::new(1, 2, 3)]);
    }
    Ok(())
}

#[for_every_backend]
fn b9_no_room_only_registers(port: CompletionPort) -> io::Result<()> {
    let pair = Pair::unix()?;
    pair.send()?;
    port.post(Entry::new(1, 2, 3))?;
    let mut batch = [Registration::enable(&pair.ours, KEY, EventFilter::IN, ONCE)];
    let found = port.process(&mut batch, &mut [], Some(Duration::ZERO))?;
    assert_eq!(found, []);
    assert_eq!(batch[0].result(), Ok(()));
    // Neither registrations nor room: nothing to do, and nothing wrong.
    assert_eq!(port.process(&mut [], &mut [], Some(Duration::ZERO))?, []);
    assert_eq!(port.dequeue_one(None)?, Entry::new(1, 2, 3));
    expect(&port, &[(KEY, Events::IN)]);
    expect_nothing(&port);
    Ok(())
}

/// All operations on this fail, and change nothing.
#[track_caller]
fn assert_no_socket(
    port: &CompletionPort,
    what: &str,
    number: RawSocket,
    refusal: RegistrationError,
) -> io::Result<()> {
    for operation in OPERATIONS {
        // SAFETY: the number is a descriptor of this test, or none at all.
        let mut entry = unsafe { Registration::from_raw(number) };
        assert_eq!(entry.raw_socket(), number);
        entry.operation = operation;
        entry.completion_key = KEY;
        entry.event_filter = EventFilter::ALL;
        entry.trigger = ONCE;
        let result = port.register(entry);
        assert_eq!(result, Err(refusal.into()), "{what}, {operation:?}");
        assert_eq!(result.map_err(RegisterError::code), Err(10038));
    }
    assert_eq!(counted(port.snapshot().registrations), 0, "{what}");
    expect_nothing(port);
    Ok(())
}

#[for_every_backend]
fn b10_what_is_no_socket_is_refused(port: CompletionPort) -> io::Result<()> {
    for (what, other) in no_sockets()? {
        assert_no_socket(&port, what, other.raw(), RegistrationError::NotASocket)?;
    }
    Ok(())
}

#[for_every_backend]
fn b10_a_number_that_is_not_open_is_refused(port: CompletionPort) -> io::Result<()> {
    // Windows has one code for both.
    let refusal = match cfg!(windows) {
        true => RegistrationError::NotASocket,
        false => RegistrationError::NotOpen,
    };
    for number in [RawSocket::MIN, RawSocket::MAX, RawSocket::MAX - 1, 1 << 24] {
        assert_no_socket(&port, &format!("number {number}"), number, refusal)?;
    }
    // One that was open a moment ago, and was registered even.
    for trigger in EVERY {
        let pair = Pair::unix()?;
        let ours = to_lonely_number(pair.ours)?;
        let number = raw(&ours);
        port.enable(&ours, KEY, EventFilter::IN, trigger)?;
        drop(ours);
        assert_no_socket(&port, "a closed socket", number, refusal)?;
    }
    Ok(())
}

/// The port knows the number, and finds out with each entry that it is closed now.
#[for_every_backend]
fn b7_two_enables_of_a_number_that_was_closed_fail_both(backend: Backend) -> io::Result<()> {
    for trigger in EVERY {
        let port = port(backend)?;
        let pair = Pair::unix()?;
        let closed = crate::support::to_lonely_number(pair.ours)?;
        port.enable(&closed, KEY, EventFilter::IN, trigger)?;
        let number = crate::support::raw(&closed);
        drop(closed);
        let enable = || {
            // SAFETY: nothing relies on what the number refers to.
            let mut entry = unsafe { Registration::from_raw(number) };
            entry.operation = Operation::ENABLE;
            entry.event_filter = EventFilter::IN;
            entry.trigger = trigger;
            entry.completion_key = KEY;
            entry
        };
        let mut batch = [enable(), enable()];
        port.register_all(&mut batch).expect_err("both fail");
        for entry in &batch {
            let error = entry.result().expect_err("it is closed");
            assert_eq!(error.code(), 10038, "{trigger:?}: {error}");
        }
        expect_nothing(&port);
    }
    Ok(())
}
