//! `socknotify generate`: manual pages and shell completions, for packages.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

/// Write manual pages and shell completions into a directory
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write; made if it does not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes a page for each command and a file for each shell. True if all is written.
pub(crate) fn run(arguments: &Arguments, mut command: Command) -> Result<bool, Box<dyn Error>> {
    let directory = &arguments.directory;
    let failed = |error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    // Each page is there once, without those of `help`. The completions add that command, so they come behind.
    let pages = command.clone().disable_help_subcommand(true);
    clap_mangen::generate_to(pages, directory).map_err(failed)?;
    let name = command.get_name().to_owned();
    for &shell in Shell::value_variants() {
        clap_complete::generate_to(shell, &mut command, &name, directory).map_err(failed)?;
    }
    Ok(true)
}
