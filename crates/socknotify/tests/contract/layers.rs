//! The rooms of the library stand one above the other, and none uses what is above it.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

/// From the top down. `interface.rs`, above them, may use all.
const ROOMS: [&str; 8] = [
    "owned", "port", "files", "backend", "engine", "os", "values", "support",
];

/// The paths below `crate` in this folder, but for comments and tests, and the files that have them.
fn paths(folder: &Path, found: &mut Vec<(String, String)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default();
        if name == "tests" || name == "interleavings" {
            continue;
        }
        if path.is_dir() {
            paths(&path, found)?;
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let code = text.split("mod tests {").next().unwrap_or_default();
        let lines = code.lines().filter_map(|line| line.split("//").next());
        let code: String = lines.collect();
        for used in code.split("crate::").skip(1) {
            let used = used.split(';').next().unwrap_or_default();
            let list = used
                .strip_prefix('{')
                .unwrap_or(used.split(',').next().unwrap_or_default());
            let each = list
                .split(',')
                .map(|it| (path.display().to_string(), it.trim().to_owned()));
            found.extend(each);
        }
    }
    Ok(())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !it.is_alphanumeric() && it != '_')
}

#[test]
fn no_room_uses_one_above_it() -> io::Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = fs::read_to_string(source.join("lib.rs"))?;
    // What is found at the top comes from a room.
    let mut room_of: HashMap<_, _> = ROOMS.iter().map(|&room| (room, room)).collect();
    for item in lib.split("pub use ").skip(1) {
        let mut item = words(item.split(';').next().unwrap_or_default());
        let room = item.next().unwrap_or_default();
        room_of.extend(item.map(|name| (name, room)));
    }
    let mut arrows = 0;
    for (height, room) in ROOMS.iter().enumerate() {
        let mut found = Vec::new();
        paths(&source.join(room), &mut found)?;
        for (path, used) in found {
            let Some(other) = words(&used).next().and_then(|it| room_of.get(it)) else {
                continue;
            };
            arrows += 1;
            assert!(!ROOMS[..height].contains(other), "{path}: {used}");
            let is_door =
                *room != "owned" || *other != "engine" || used.starts_with("engine::owned::");
            assert!(
                is_door,
                "{path}: {used} is not the engine's door for owned connections"
            );
        }
    }
    assert!(arrows > 300, "{arrows}");
    Ok(())
}

/// Where connections wait knows nothing of what a thread has that holds one.
#[test]
fn slots_use_nothing_of_held_connections() -> io::Result<()> {
    let owned = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/owned");
    let module = fs::read_to_string(owned.join("mod.rs"))?;
    let exported = module.split("pub use held::").skip(1);
    let exported = exported.flat_map(|it| words(it.split(';').next().unwrap_or_default()));
    let mut names: Vec<_> = exported.filter(|it| !it.is_empty()).collect();
    names.push("held");
    assert!(names.contains(&"Held") && names.contains(&"Outbox"));
    for entry in fs::read_dir(owned.join("slot"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().filter_map(|line| line.split("//").next());
        for used in lines.flat_map(words) {
            assert!(!names.contains(&used), "{}: {used}", path.display());
        }
    }
    Ok(())
}
