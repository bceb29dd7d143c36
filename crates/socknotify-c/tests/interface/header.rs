//! The headers by themselves.

use std::fs;
use std::path::Path;

use crate::install::{Language, Link, SOURCES, compile, headers, run, scratch, with_library};

fn compiles_alone(language: Language, extension: &str) {
    for (name, header, define) in [
        ("plain", "socknotify.h", ""),
        ("win32", "socknotify.h", "#define SOCKNOTIFY_WIN32_NAMES\n"),
        ("owned", "socknotify_owned.h", ""),
    ] {
        let source = scratch(&format!("alone-{name}.{extension}"));
        // Twice: it does not mind.
        let include = format!("#include <{header}>\n").repeat(2);
        fs::write(&source, format!("{define}{include}")).expect("a source file");
        let object = source.with_extension(format!("{extension}.o"));
        run(language
            .compiler()
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(object));
    }
}

#[test]
fn each_header_compiles_alone_as_c99() {
    compiles_alone(Language::C99, "c");
}

#[test]
fn each_header_compiles_alone_as_cpp11() {
    compiles_alone(Language::Cpp11, "cpp");
}

#[test]
fn the_names_are_there_after_an_inclusion_without_them_and_cast_as_cpp_does() {
    let source = scratch("names.cpp");
    fs::write(
        &source,
        "#include <socknotify.h>\n\
         #define SOCKNOTIFY_WIN32_NAMES\n\
         #include <socknotify.h>\n\
         bool is_none(HANDLE handle, SOCKET socket) {\n\
             return handle == INVALID_HANDLE_VALUE && socket == INVALID_SOCKET;\n\
         }\n",
    )
    .expect("a source file");
    run(Language::Cpp11
        .compiler()
        .args(["-Wold-style-cast", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(source.with_extension("o")));
}

#[test]
fn types_and_constants_are_those_of_the_windows_headers() {
    let source = Path::new(SOURCES).join("layout.c");
    let program = compile(&source, Language::C11, Link::Shared, "run");
    run(&mut with_library(&program));
}

#[test]
fn the_headers_declare_exactly_what_is_exported() {
    let headers = headers();
    let mut declared: Vec<_> = headers
        .lines()
        .filter_map(|line| {
            let rest = line
                .strip_prefix("uint32_t ")
                .or(line.strip_prefix("int "))
                .or(line.strip_prefix("void "))
                .or(line.strip_prefix("const char *"))?;
            rest.split_once('(').map(|(name, _)| name)
        })
        .collect();
    declared.sort_unstable();
    let exported: Vec<_> = include_str!("../../symbols.txt").lines().collect();
    assert_eq!(declared, exported);
}
