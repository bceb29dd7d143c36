//! The program.

#[cfg(all(target_os = "linux", not(any(interleavings, kqueue_stand_in))))]
fn main() -> std::process::ExitCode {
    match socknotify_bench::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(interleavings, kqueue_stand_in)))))]
fn main() {
    eprintln!("the measurements are for Linux");
    std::process::exit(1);
}
