//! A table of SQLite, and looking a row of it up: what a handler does that needs a little of a database.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::random::Random;

const ROWS: u64 = 10_000;

pub(super) struct Rows {
    /// It is removed in the end.
    _directory: TempDir,
    path: PathBuf,
    next: AtomicU64,
}

impl Rows {
    pub(super) fn new() -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let rows = Rows {
            path: directory.path().join("people.sqlite"),
            _directory: directory,
            next: AtomicU64::new(1),
        };
        let fill = || -> rusqlite::Result<()> {
            let mut connection = Connection::open(&rows.path)?;
            connection.execute_batch("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT)")?;
            let transaction = connection.transaction()?;
            for id in 0..ROWS {
                let row = (id, format!("the person with the number {id}"));
                transaction.execute("INSERT INTO person VALUES (?, ?)", row)?;
            }
            transaction.commit()
        };
        fill().map_err(io::Error::other)?;
        Ok(rows)
    }

    /// Each thread has a connection of its own, as with a pool that is large enough.
    pub(super) fn look_up(&self) {
        thread_local! {
            static CONNECTION: RefCell<Option<(PathBuf, Connection)>> = const { RefCell::new(None) };
        }
        CONNECTION.with_borrow_mut(|connection| {
            // A thread may be older than the table.
            if connection.as_ref().is_none_or(|(it, _)| *it != self.path) {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let opened = Connection::open_with_flags(&self.path, flags).expect("it is there");
                *connection = Some((self.path.clone(), opened));
            }
            let (_, connection) = connection.as_ref().expect("it is open");
            let mut random = Random::new(self.next.fetch_add(1, Ordering::Relaxed));
            let id = random.next() % ROWS;
            let mut query = connection
                .prepare_cached("SELECT name FROM person WHERE id = ?")
                .expect("it is right");
            let name: String = query
                .query_row([id], |row| row.get(0))
                .expect("it is there");
            assert!(name.ends_with(&id.to_string()));
        });
    }
}
