//! The program.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match socknotify_bench::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("the measurements are for Linux");
    std::process::exit(1);
}
