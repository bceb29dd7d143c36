//! Link flags of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsocknotify.so.0");
        // Threads that have used a port run code of the library when they end.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
