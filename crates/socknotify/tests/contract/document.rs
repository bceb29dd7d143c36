//! What the documents name exists: `docs/CONTRACT.md` the tests of each clause, all of them the files and headings
//! that they link to, and the design the files that it names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The words of all sources that can be names of tests.
fn names_in(folder: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            names_in(&path, names)?;
        } else if path
            .extension()
            .is_some_and(|it| ["rs", "c", "cpp"].contains(&it.to_string_lossy().as_ref()))
        {
            let text = fs::read_to_string(&path)?;
            let words = text.split(|it: char| !it.is_alphanumeric() && it != '_');
            names.extend(words.filter(|word| word.contains('_')).map(str::to_owned));
        }
    }
    Ok(())
}

#[test]
fn what_is_tested_where_names_tests_that_exist() -> io::Result<()> {
    let mut names = BTreeSet::new();
    names_in(&package().join(".."), &mut names)?;

    let document = fs::read_to_string(package().join("../../docs/TESTED.md"))?;
    let is_name = |word: &&str| {
        word.contains('_')
            && word
                .chars()
                .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
    };
    let named: Vec<_> = document.split('`').filter(is_name).collect();
    assert!(!named.is_empty());
    let gone: Vec<_> = named
        .iter()
        .filter(|name| !names.contains(**name))
        .collect();
    assert!(gone.is_empty(), "only in the document: {gone:?}");

    let left_out = fs::read_to_string(package().join("tests/without-on-wine.txt"))?;
    let prefixes = left_out.lines().filter(|line| !line.starts_with('#'));
    let gone: Vec<_> = prefixes
        .filter_map(|line| line.split_whitespace().next())
        .filter(|prefix| !names.iter().any(|name| name.starts_with(prefix)))
        .collect();
    assert!(
        gone.is_empty(),
        "left out under Wine, but not there: {gone:?}"
    );
    Ok(())
}

/// The documents for readers.
fn documents() -> io::Result<Vec<PathBuf>> {
    let root = package().join("../..");
    let mut documents = vec![
        root.join("README.md"),
        root.join("CHANGELOG.md"),
        root.join("bench/README.md"),
    ];
    for folder in ["docs", "docs/design"] {
        for file in fs::read_dir(root.join(folder))? {
            documents.push(file?.path());
        }
    }
    documents.retain(|path| path.extension().is_some_and(|it| it == "md"));
    Ok(documents)
}

/// The text outside of blocks of code.
fn prose(document: &Path) -> io::Result<String> {
    let text = fs::read_to_string(document)?;
    Ok(text.split("```").step_by(2).collect())
}

/// The name by which a link can refer to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_link_in_the_documents_leads_somewhere() -> io::Result<()> {
    let mut links = 0;
    for document in documents()? {
        let text = prose(&document)?;
        let inline = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        let defined = text
            .lines()
            .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
        for link in inline.chain(defined.map(|(_, link)| link)) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.with_file_name(file),
            };
            assert!(target.exists(), "{}: {link}", document.display());
            if !heading.is_empty() {
                let headings = prose(&target)?;
                let headings = headings.lines().filter(|line| line.starts_with('#'));
                let mut anchors =
                    headings.map(|line| anchor(line.trim_start_matches('#').trim_start()));
                assert!(
                    anchors.any(|it| it == heading),
                    "{}: {link}",
                    document.display()
                );
            }
        }
    }
    assert!(links > 50, "{links}");
    Ok(())
}

/// All files and folders below this one, by their paths from it.
fn tree(folder: &Path, below: &str, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let here = format!("{below}/{name}");
        if path.is_dir() {
            tree(&path, &here, found)?;
        }
        found.push(here);
    }
    Ok(())
}

#[test]
fn every_file_that_the_design_names_exists() -> io::Result<()> {
    let mut files = Vec::new();
    for folder in ["src", "tests"] {
        tree(
            &package().join(folder),
            &format!("crates/socknotify/{folder}"),
            &mut files,
        )?;
    }
    let is_there = |name: &str| files.iter().any(|file| file.ends_with(&format!("/{name}")));

    let design = package().join("../../docs/DESIGN.md");
    let mut named = Vec::new();
    for document in documents()? {
        if document == design || document.parent().is_some_and(|it| it.ends_with("design")) {
            let text = prose(&document)?;
            let words = text.split('`').skip(1).step_by(2);
            let files = words.filter(|it| it.ends_with(".rs") && !it.starts_with("crates/"));
            named.extend(files.map(str::to_owned));
        }
    }
    // The tree, whose inner lines go with the last outer one.
    let mut room = "";
    let design = fs::read_to_string(design)?;
    let tree = design.split("crates/socknotify/src/\n").nth(1);
    for line in tree
        .unwrap_or_default()
        .lines()
        .take_while(|line| line.starts_with("  "))
    {
        let name = line.split_whitespace().next().unwrap_or_default();
        let outer = if line.starts_with("    ") {
            room
        } else {
            "src/"
        };
        named.push(format!("{outer}{}", name.trim_end_matches('/')));
        room = if line.starts_with("    ") { room } else { name };
    }
    assert!(named.len() > 30, "{named:?}");
    named.retain(|name| !is_there(name));
    assert!(named.is_empty(), "only in the documents: {named:?}");
    Ok(())
}
