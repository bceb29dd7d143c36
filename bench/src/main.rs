//! The program.

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<()> {
    socknotify_bench::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("the measurements are for Linux");
    std::process::exit(1);
}
