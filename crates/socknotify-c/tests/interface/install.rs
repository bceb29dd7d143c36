//! The library, installed by the Makefile; and the system's compilers and tools.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

pub(crate) const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");
pub(crate) const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interface");
pub(crate) const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
pub(crate) const MANUAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/man");

/// Where programs and whatever else the tests make goes.
pub(crate) fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The prefix under which the library is installed.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = scratch("installed");
        // What an earlier version has installed must not be found.
        let _ = std::fs::remove_dir_all(&prefix);
        run(make("install").arg(format!("PREFIX={}", prefix.display())));
        prefix
    });
    &PREFIX
}

/// What is declared, and said of it: the two headers, one after the other.
pub(crate) fn headers() -> String {
    ["socknotify.h", "socknotify_owned.h"]
        .map(|name| prefix().join("include").join(name))
        .map(|path| std::fs::read_to_string(path).expect("a header"))
        .concat()
}

/// `make`, in the package, which installs the library that Cargo has built for these tests.
pub(crate) fn make(goal: &str) -> Command {
    let program = std::env::current_exe().expect("a path");
    let built = program.parent().expect("a directory");
    let mut make = plain_make(goal);
    make.arg("CARGO=true")
        .arg(format!("BUILT={}", built.display()));
    make
}

/// The same, which has Cargo build it.
pub(crate) fn plain_make(goal: &str) -> Command {
    let has_gnu_make = cfg!(any(target_os = "linux", target_vendor = "apple"));
    let mut make = Command::new(if has_gnu_make { "make" } else { "gmake" });
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "release"
    };
    make.arg("-C")
        .arg(PACKAGE)
        .arg(goal)
        .arg(format!("PROFILE={profile}"))
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("TARGET_DIR")
        .env_remove("MAKEFLAGS");
    make
}

/// Run a command that has to succeed. Returns what it prints.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Whether a tool is there. Says so if it is not: what needs it is not tested then.
pub(crate) fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok();
    if !has {
        eprintln!("skipped: there is no {tool}");
    }
    has
}

/// A language that the header is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    C99,
    /// For the test programs: static assertions and atomics.
    C11,
    Cpp11,
}

impl Language {
    /// The compiler, with every warning that the header promises to be clean of.
    pub(crate) fn compiler(self) -> Command {
        let (variable, default, standard) = match self {
            Language::C99 => ("CC", "cc", "-std=c99"),
            Language::C11 => ("CC", "cc", "-std=c11"),
            Language::Cpp11 => ("CXX", "c++", "-std=c++11"),
        };
        let mut compiler = Command::new(std::env::var_os(variable).unwrap_or(default.into()));
        compiler.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"]);
        if !matches!(self, Language::Cpp11) {
            // The system's headers hide what is not the language's own.
            compiler.arg("-D_DEFAULT_SOURCE");
        }
        compiler.arg("-I").arg(prefix().join("include"));
        compiler
    }
}

/// Which of the two libraries a program is linked with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Shared,
    Static,
}

/// Compile a program of one file, and return where it is. Nobody else may have the same purpose in
/// mind for it: a program that runs cannot be overwritten.
pub(crate) fn compile(source: &Path, language: Language, link: Link, purpose: &str) -> PathBuf {
    let name = source.file_stem().expect("a file").to_string_lossy();
    let program = scratch(&format!("{name}-{link:?}-{purpose}").to_lowercase());
    let library = prefix().join("lib");
    let mut compiler = language.compiler();
    compiler.arg(source).arg("-o").arg(&program);
    match link {
        Link::Shared => compiler.arg("-L").arg(&library).arg("-lsocknotify"),
        Link::Static => compiler
            .arg(library.join("libsocknotify.a"))
            .args(private_libraries()),
    };
    run(compiler.arg("-lpthread"));
    program
}

/// What a program needs that is linked with the static library.
pub(crate) fn private_libraries() -> Vec<String> {
    let found = std::fs::read_to_string(prefix().join("lib/pkgconfig/socknotify.pc"));
    let found = found.expect("a .pc file");
    let libraries = found
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private:"));
    let libraries = libraries.expect("the libraries").split_whitespace();
    libraries.map(String::from).collect()
}

/// A command that finds the installed library when it runs.
pub(crate) fn with_library(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}
