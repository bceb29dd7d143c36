//! Link flags of the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos" | "ios") => {
            // A program says where it looks for it.
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libsocknotify.0.dylib");
        }
        Ok("linux" | "freebsd" | "netbsd" | "openbsd" | "dragonfly") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsocknotify.so.0");
            // Its symbols have no versions: rustc passes a version script of its own, beside which GNU ld refuses
            // another, and LLVM's linker ignores the version that another gives.
            // Threads that have used a port run code of the library when they end.
            println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
        }
        _ => {}
    }
}
