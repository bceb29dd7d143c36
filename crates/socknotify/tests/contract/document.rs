//! `docs/CONTRACT.md` names the tests of each clause. It has to be true.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether a word begins with the number of a clause, as in `c5_`.
fn is_test_name(word: &str) -> bool {
    let Some((clause, _)) = word.split_once('_') else {
        return false;
    };
    let mut letters = clause.chars();
    letters
        .next()
        .is_some_and(|first| ('a'..='g').contains(&first) || ['o', 'x'].contains(&first))
        && !letters.as_str().is_empty()
        && letters.all(|digit| digit.is_ascii_digit())
}

/// The tests that the sources have.
fn tests_in(files: &[PathBuf]) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for file in files {
        for line in fs::read_to_string(file)?.lines() {
            let Some((_, rest)) = line.split_once("fn ") else {
                continue;
            };
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if is_test_name(name) {
                names.insert(name.to_owned());
            }
        }
    }
    Ok(names)
}

#[test]
fn names_every_test_and_no_other() -> io::Result<()> {
    let mut files = vec![package().join("src/engine/interleavings.rs")];
    for suite in ["tests/contract", "tests/operations"] {
        for file in fs::read_dir(package().join(suite))? {
            files.push(file?.path());
        }
    }
    let tests = tests_in(&files)?;
    assert!(tests.len() > 100, "{tests:?}");

    let document = fs::read_to_string(package().join("../../docs/CONTRACT.md"))?;
    let named: BTreeSet<_> = document
        .split('`')
        // Other suites are named with the beginning of their tests.
        .filter(|word| is_test_name(word) && !word.ends_with('*'))
        .map(str::to_owned)
        .collect();
    let missing: Vec<_> = tests.difference(&named).collect();
    assert!(missing.is_empty(), "not in the document: {missing:?}");
    let gone: Vec<_> = named.difference(&tests).collect();
    assert!(gone.is_empty(), "only in the document: {gone:?}");
    Ok(())
}
