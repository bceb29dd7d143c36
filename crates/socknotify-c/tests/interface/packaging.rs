//! What is installed, and how others find it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::install::{EXAMPLES, has, make, prefix, run, scratch, with_library};

#[test]
fn the_exported_symbols_are_those_of_the_list() {
    let library = prefix().join("lib/libsocknotify.so");
    let table = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library));
    let exported: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let listed: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(exported, listed);
}

#[test]
fn the_static_library_has_the_symbols_too() {
    let library = prefix().join("lib/libsocknotify.a");
    let table = run(Command::new("nm")
        .args(["-g", "--defined-only"])
        .arg(library));
    for symbol in include_str!("../../symbols.txt").lines() {
        let defined = format!(" T {symbol}");
        assert!(
            table.lines().any(|line| line.ends_with(&defined)),
            "{symbol}"
        );
    }
}

#[test]
fn the_shared_library_has_a_soname_and_links_to_it() {
    let directory = prefix().join("lib");
    let link = |name| fs::read_link(directory.join(name)).expect("a link");
    let file = concat!("libsocknotify.so.", env!("CARGO_PKG_VERSION"));
    assert_eq!(link("libsocknotify.so"), Path::new("libsocknotify.so.0"));
    assert_eq!(link("libsocknotify.so.0"), Path::new(file));
    let dynamic = run(Command::new("readelf").arg("-d").arg(directory.join(file)));
    assert!(
        dynamic.contains("soname: [libsocknotify.so.0]"),
        "{dynamic}"
    );
}

#[test]
fn pkg_config_finds_the_library() {
    if !has("pkg-config") {
        return;
    }
    let ask = |arguments: &[&str]| {
        let path = prefix().join("lib/pkgconfig");
        run(Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", path)
            .args(arguments)
            .arg("socknotify"))
    };
    assert_eq!(ask(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    for (name, options) in [
        ("shared", &["--cflags", "--libs"][..]),
        ("static", &["--static", "--cflags", "--libs"][..]),
    ] {
        let program = scratch(&format!("by-pkg-config-{name}"));
        let flags = ask(options);
        run(Command::new("cc")
            .arg(Path::new(EXAMPLES).join("poll.c"))
            .args(flags.split_whitespace())
            .arg("-lpthread")
            .arg("-o")
            .arg(&program));
        assert_eq!(run(&mut with_library(&program)), "received 40 bytes\n");
    }
}

#[test]
fn cmake_finds_the_library() {
    if !has("cmake") {
        return;
    }
    let directory = scratch("by-cmake");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("a directory");
    let project = format!(
        "cmake_minimum_required(VERSION 3.13)\n\
         project(example CXX)\n\
         find_package(socknotify {} REQUIRED)\n\
         find_package(Threads REQUIRED)\n\
         foreach(kind socknotify static)\n\
         add_executable(example-${{kind}} {EXAMPLES}/scenarios.cpp)\n\
         target_link_libraries(example-${{kind}} socknotify::${{kind}} Threads::Threads)\n\
         endforeach()\n",
        env!("CARGO_PKG_VERSION")
    );
    fs::write(directory.join("CMakeLists.txt"), project).expect("a project");
    let build = directory.join("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(&directory)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["example-socknotify", "example-static"] {
        let said = run(&mut Command::new(build.join(program)));
        assert!(said.contains("4000 bytes from 100 clients"), "{said}");
    }
}

#[test]
fn what_is_installed_can_be_staged_and_uninstalled() {
    let stage = scratch("staged");
    let _ = fs::remove_dir_all(&stage);
    let make = |goal| {
        run(make(goal)
            .arg("PREFIX=/opt/socknotify")
            .arg(format!("DESTDIR={}", stage.display())))
    };
    make("install");
    let library = stage.join("opt/socknotify/lib");
    let found = fs::read_to_string(library.join("pkgconfig/socknotify.pc")).expect("a .pc file");
    assert!(found.contains("prefix=/opt/socknotify\n"), "{found}");
    make("uninstall");
    let files = run(Command::new("find")
        .arg(&stage)
        .args(["-not", "-type", "d"]));
    assert_eq!(files, "");
}
