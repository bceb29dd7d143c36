//! What a run has found, in files: `rows.json`, and `run.json` with when, where and how.

use std::fs;
use std::io;
use std::path::Path;

use crate::environment::Environment;
use crate::row::Row;

pub(crate) fn write(directory: &Path, environment: &Environment, rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(
        directory.join("run.json"),
        format!("{}\n", environment.json()),
    )?;
    // The rows come last: what is not complete is not there.
    let lines: String = rows.iter().map(|row| format!("{}\n", row.json())).collect();
    fs::write(directory.join("rows.json"), lines)
}
