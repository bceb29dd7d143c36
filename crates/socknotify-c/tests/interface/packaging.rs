//! What is installed, and how others find it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{
    EXAMPLES, PACKAGE, has, headers, make, plain_make, prefix, run, scratch, with_library,
};
#[cfg(not(target_vendor = "apple"))]
use crate::install::{Language, private_libraries};

/// Whether shared libraries are those of macOS, in which each name begins with an underscore.
const IS_APPLE: bool = cfg!(target_vendor = "apple");

/// `libsocknotify.so`, or of a version `libsocknotify.so.0`.
fn shared(version: &str) -> String {
    let dot = if version.is_empty() { "" } else { "." };
    match IS_APPLE {
        true => format!("libsocknotify{dot}{version}.dylib"),
        false => format!("libsocknotify.so{dot}{version}"),
    }
}

#[test]
fn the_exported_symbols_are_those_of_the_list() {
    let library = prefix().join("lib").join(shared(""));
    let options = if IS_APPLE { "-gU" } else { "-gD" };
    let table = run(Command::new("nm").arg(options).arg(library));
    let exported: Vec<_> = table
        .lines()
        .filter(|line| !line.contains(" U ") && !line.contains(" w "))
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.strip_prefix('_').unwrap_or(name))
        .collect();
    let listed: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(exported, listed);
}

#[cfg(not(target_vendor = "apple"))]
#[test]
fn the_static_library_has_these_symbols_and_no_others() {
    let library = prefix().join("lib/libsocknotify.a");
    let table = run(Command::new("nm")
        .args(["-g", "--defined-only"])
        .arg(library));
    let defined: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_once(" T "))
        .map(|(_, name)| name)
        .collect();
    let listed: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(defined, listed);
}

#[cfg(not(target_vendor = "apple"))]
#[test]
fn a_shared_object_that_links_the_static_library_exports_none_of_its_own() {
    let source = scratch("plugin.c");
    fs::write(
        &source,
        "#include <socknotify.h>\n\
         uint32_t plugin(sn_port *port) { return sn_create_port(0, port); }\n",
    )
    .expect("a source file");
    let object = scratch("plugin.so");
    run(Language::C99
        .compiler()
        .args(["-shared", "-fPIC"])
        .arg(&source)
        .arg(prefix().join("lib/libsocknotify.a"))
        .args(private_libraries())
        .arg("-o")
        .arg(&object));
    let table = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&object));
    let listed: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    for line in table.lines() {
        let name = line.split_whitespace().last().expect("a name");
        assert!(name == "plugin" || listed.contains(&name), "{name}");
    }
}

#[cfg(not(target_vendor = "apple"))]
#[test]
fn a_program_can_be_linked_statically_altogether() {
    let program = scratch("altogether");
    let linked = Language::C99
        .compiler()
        .arg("-static")
        .arg(Path::new(EXAMPLES).join("poll.c"))
        .arg("-L")
        .arg(prefix().join("lib"))
        .arg("-lsocknotify")
        .args(private_libraries())
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a compiler");
    let said = String::from_utf8_lossy(&linked.stderr);
    assert!(linked.status.success(), "{said}");
    // The documentation names what a linker warns of.
    let porting = include_str!("../../../../docs/PORTING.md");
    for warning in said.lines().filter(|line| line.contains("warning:")) {
        let name = warning.split('\'').nth(1).expect(warning);
        assert!(porting.contains(&format!("`{name}`")), "{warning}");
    }
    assert_eq!(run(&mut Command::new(&program)), "received 40 bytes\n");
}

#[test]
fn the_shared_library_has_a_name_for_programs_and_links_to_it() {
    let directory = prefix().join("lib");
    let link = |version| fs::read_link(directory.join(shared(version))).expect("a link");
    let file = shared(env!("CARGO_PKG_VERSION"));
    assert_eq!(link(""), Path::new(&shared("0")));
    assert_eq!(link("0"), Path::new(&file));
    let (tool, option, name) = match IS_APPLE {
        true => {
            let name = directory.join(shared("0"));
            ("otool", "-D", name.display().to_string())
        }
        false => ("readelf", "-d", format!("soname: [{}]", shared("0"))),
    };
    let said = run(Command::new(tool).arg(option).arg(directory.join(file)));
    assert!(said.contains(&name), "{said}");
}

/// What `make install` does where these tests do not run: the commands, without making them.
#[test]
fn on_macos_a_program_has_the_path_of_the_library() {
    let commands = run(make("install").args(["-n", "SYSTEM=Darwin", "PREFIX=/opt/socknotify"]));
    for command in [
        "install_name_tool -id '/opt/socknotify/lib/libsocknotify.0.dylib' ",
        "ln -sf libsocknotify.0.dylib '/opt/socknotify/lib/libsocknotify.dylib'",
        "s|@LIBS@||",
    ] {
        assert!(commands.contains(command), "{command}: {commands}");
    }
    assert!(!commands.contains("libsocknotify.so"), "{commands}");
}

#[test]
fn on_the_bsds_the_static_library_needs_no_libdl() {
    for system in ["FreeBSD", "NetBSD", "OpenBSD", "DragonFly"] {
        let commands = run(make("install").args(["-n", &format!("SYSTEM={system}")]));
        assert!(commands.contains("s|@CMAKELIBS@|"), "{commands}");
        assert!(!commands.contains("-ldl"), "{commands}");
    }
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
        ("altogether", &["--static", "--cflags", "--libs"][..]),
    ] {
        let program = scratch(&format!("by-pkg-config-{name}"));
        let flags = ask(options);
        run(Command::new("cc")
            .arg(Path::new(EXAMPLES).join("poll.c"))
            .args(flags.split_whitespace())
            .args((name == "altogether" && !IS_APPLE).then_some("-static"))
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
    for file in [
        "man/man3/socknotify.3",
        "man/man3/sn_process.3",
        "doc/socknotify/LICENSE-MIT",
        "doc/socknotify/LICENSE-APACHE",
        "doc/socknotify/PORTING.md",
        "doc/socknotify/examples/poll.c",
    ] {
        assert!(
            stage.join("opt/socknotify/share").join(file).exists(),
            "{file}"
        );
    }
    // Its links lead to what is installed with it.
    let porting = stage.join("opt/socknotify/share/doc/socknotify/PORTING.md");
    let porting = fs::read_to_string(porting).expect("a page");
    let links = porting.split("](").skip(1);
    for link in links.filter_map(|rest| rest.split_once(')')) {
        assert!(link.0 == "examples" || link.0.starts_with('#'), "{link:?}");
    }
    let library = stage.join("opt/socknotify/lib");
    let found = fs::read_to_string(library.join("pkgconfig/socknotify.pc")).expect("a .pc file");
    assert!(found.contains("prefix=/opt/socknotify\n"), "{found}");
    let own = stage.join("opt/socknotify/share/doc/socknotify/own");
    fs::write(&own, "").expect("a file");
    make("uninstall");
    assert_eq!(files_in(&stage), [own]);
}

/// What is there that is no directory.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let found = run(Command::new("find")
        .arg(directory)
        .args(["-not", "-type", "d"]));
    found.lines().map(PathBuf::from).collect()
}

#[test]
fn a_path_may_have_what_a_shell_or_sed_gives_a_meaning_to() {
    let base = scratch("odd");
    let _ = fs::remove_dir_all(&base);
    let prefix = base.join("a b|c&d'e\\f$g");
    // As one word each, these are other directories.
    let neighbours = [prefix.join("share/doc/sock"), base.join("a")];
    for neighbour in &neighbours {
        fs::create_dir_all(neighbour).expect("a directory");
        fs::write(neighbour.join("stays"), "").expect("a file");
    }
    let make = |goal| {
        let mut shell = Command::new("sh");
        let make = make(goal);
        shell
            .args(["-c", "umask 077; exec \"$@\"", "sh"])
            .arg(make.get_program())
            .args(make.get_args())
            // Make gives `$` a meaning itself.
            .arg(format!("PREFIX={}", prefix.display()).replace('$', "$$"))
            .arg("DOCDIR=$(PREFIX)/share/doc/sock notify")
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("MAKEFLAGS");
        run(&mut shell)
    };
    make("install");
    let unreadable = run(Command::new("find")
        .arg(prefix.join("lib"))
        .arg(prefix.join("include"))
        .arg(prefix.join("share/man"))
        .arg(prefix.join("share/doc/sock notify"))
        .args(["-not", "-perm", "-o+r"]));
    assert_eq!(unreadable, "");
    assert!(prefix.join("share/doc/sock notify/PORTING.md").exists());
    let library = prefix.join("lib");
    let found = fs::read_to_string(library.join("pkgconfig/socknotify.pc")).expect("a .pc file");
    let line = format!("prefix={}\n", prefix.display());
    assert!(found.contains(&line), "{found}");
    let config = library.join("cmake/socknotify/socknotify-config.cmake");
    let config = fs::read_to_string(config).expect("a file for CMake");
    let line = format!("IMPORTED_LOCATION \"{}/", library.display());
    assert!(config.contains(&line), "{config}");
    make("uninstall");
    let stay = neighbours.map(|neighbour| neighbour.join("stays"));
    let mut left = files_in(&base);
    left.sort_unstable_by_key(|path| stay.iter().position(|it| it == path));
    assert_eq!(left, stay);
}

#[test]
fn pkg_config_finds_the_library_in_a_directory_with_a_space() {
    if !has("pkg-config") {
        return;
    }
    let prefix = scratch("with a space");
    let _ = fs::remove_dir_all(&prefix);
    run(make("install").arg(format!("PREFIX={}", prefix.display())));
    let program = prefix.join("poll");
    run(Command::new("sh")
        .args([
            "-c",
            "eval cc '\"$1\" -o \"$2\"' $(pkg-config --cflags --libs socknotify) -lpthread",
            "sh",
        ])
        .arg(Path::new(EXAMPLES).join("poll.c"))
        .arg(&program)
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
    let said = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(said, "received 40 bytes\n");
}

#[test]
#[ignore = "builds all once more; `.ci/package` has it"]
fn what_was_built_for_a_named_target_is_installed() {
    let said = run(Command::new("rustc").arg("-vV"));
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    let target = scratch("target");
    let prefix = scratch("for-a-target");
    let _ = fs::remove_dir_all(&prefix);
    run(plain_make("install")
        .arg(format!("CARGO={}", env!("CARGO")))
        .arg(format!("PREFIX={}", prefix.display()))
        .arg(format!("TARGET_DIR={}", target.display()))
        .env("CARGO_BUILD_TARGET", host.expect("a target")));
    assert!(prefix.join("lib").join(shared("0")).exists());
    assert!(!target.join("debug/libsocknotify_c.a").exists());
    assert!(!target.join("release/libsocknotify_c.a").exists());
}

#[test]
fn a_relative_prefix_is_one_of_the_directory_that_make_runs_in() {
    let absolute = scratch("relative");
    let _ = fs::remove_dir_all(&absolute);
    let up = Path::new(PACKAGE)
        .components()
        .skip(1)
        .map(|_| "../")
        .collect::<String>();
    let relative = format!(
        "{up}{}",
        absolute.display().to_string().trim_start_matches('/')
    );
    run(make("install").arg(format!("PREFIX={relative}")));
    let found = fs::read_to_string(absolute.join("lib/pkgconfig/socknotify.pc"));
    let line = format!("prefix={}\n", absolute.display());
    assert!(found.expect("a .pc file").contains(&line));
}

#[test]
fn the_versions_are_the_same_everywhere() {
    let header = fs::read_to_string(prefix().join("include/socknotify.h")).expect("the header");
    let line = concat!(
        "#define SN_VERSION_STRING \"",
        env!("CARGO_PKG_VERSION"),
        "\"\n"
    );
    assert!(header.contains(line));
    let page = prefix().join("share/man/man3/socknotify.3");
    let page = fs::read_to_string(page).expect("the manual");
    assert!(page.contains(concat!("socknotify ", env!("CARGO_PKG_VERSION"), "\"")));
}

#[test]
fn the_manual_describes_every_function_in_the_words_of_the_header() {
    let pages = prefix().join("share/man/man3");
    let page = |name: &str| {
        let page = fs::read_to_string(pages.join(format!("{name}.3"))).expect("a page");
        page.replace("\\-", "-")
    };
    let overview = page("socknotify");
    let headers = headers();
    let (_, functions) = headers
        .split_once("/* ---- Functions")
        .expect("the functions");
    for name in include_str!("../../symbols.txt").lines() {
        assert!(overview.contains(&format!("{name}(3)")), "{name}");
        let page = page(name);
        assert!(page.contains(&format!("\n.TH {name} 3")), "{page}");
        assert!(page.contains(&format!("{name}(")), "{page}");
        let owned = if name.starts_with("sn_owned_") {
            "_owned"
        } else {
            ""
        };
        let include = format!(".B #include <socknotify{owned}.h>\n");
        assert!(page.contains(&include), "{page}");
        // The comment above the declaration, line by line.
        let declaration = functions.lines().position(|line| {
            let is_code = line.starts_with(|first: char| first.is_ascii_lowercase());
            is_code && line.contains(&format!("{name}("))
        });
        let before: Vec<_> = functions.lines().take(declaration.expect(name)).collect();
        let before = before.join("\n");
        let (_, comment) = before.rsplit_once("/*").expect("a comment");
        let (comment, _) = comment.split_once("*/").expect("the end of a comment");
        for line in comment.lines() {
            let line = line.trim().trim_start_matches("* ").trim_start_matches('*');
            assert!(page.contains(line.trim()), "{name}: {line}\n{page}");
        }
    }
    for constant in [
        "SN_TIMEOUT",
        "SOCK_NOTIFY_OP_REMOVE",
        "sn_registration",
        "SN_OWNED_CLOSED",
    ] {
        assert!(overview.contains(constant), "{constant}");
    }
}

#[test]
fn each_page_of_a_function_has_its_errors_and_an_example() {
    let pages = prefix().join("share/man/man3");
    let header = headers();
    let symbols: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    // They return no error.
    let without = [
        "sn_backend",
        "sn_last_error",
        "sn_reason",
        "sn_set_last_error",
        "sn_strerror",
        "sn_version",
    ];
    for name in &symbols {
        let page = fs::read_to_string(pages.join(format!("{name}.3"))).expect("a page");
        let (before, example) = page.split_once("\n.SH EXAMPLES\n").expect(name);
        assert!(example.contains(name), "{name}: {example}");
        let errors = before
            .split_once("\n.SH ERRORS\n")
            .map(|(_, errors)| errors);
        assert_eq!(errors.is_none(), without.contains(name), "{name}");
        let codes = errors.into_iter().flat_map(str::lines);
        for code in codes.filter_map(|line| line.strip_prefix(".B SN_")) {
            assert!(header.contains(&format!("#define SN_{code} ")), "{code}");
        }
    }
    let errors = include_str!("../../man/errors").lines();
    for names in errors.filter(|line| line.starts_with("sn_")) {
        for name in names.split(' ') {
            assert!(symbols.contains(&name), "{name}");
        }
    }
}

#[test]
fn the_fuzz_target_calls_every_function() {
    let target = include_str!("../../fuzz/fuzz_targets/calls.rs");
    for name in include_str!("../../symbols.txt").lines() {
        assert!(target.contains(&format!("{name}(")), "{name}");
    }
}

#[test]
fn make_builds_where_cargo_is_told_to() {
    for (from, expected) in [("environment", "/a b/target"), ("makefile", "/own")] {
        let mut make = plain_make("install");
        make.args(["-n", "PROFILE=release"])
            .env("CARGO_TARGET_DIR", "/a b/target");
        if from == "makefile" {
            make.arg("TARGET_DIR=/own");
        }
        let commands = run(&mut make);
        for wanted in [
            format!("--target-dir '{expected}'"),
            format!("'{expected}/release/libsocknotify_c.a'"),
        ] {
            assert!(commands.contains(&wanted), "{wanted}: {commands}");
        }
    }
}

#[test]
fn the_manual_has_no_warnings() {
    if !has("groff") {
        return;
    }
    let pages = prefix().join("share/man/man3");
    for page in fs::read_dir(pages).expect("the manual") {
        let output = Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-z"])
            .arg(page.expect("a page").path())
            .output()
            .expect("groff runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
}
