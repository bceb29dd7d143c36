//! The server's process: Windows.

use std::io;
use std::os::windows::process::CommandExt;
use std::process::{Child, Command, Stdio};

use windows_sys::Win32::System::Console::{
    AttachConsole, CTRL_C_EVENT, FreeConsole, GenerateConsoleCtrlEvent, SetConsoleCtrlHandler,
};
use windows_sys::Win32::System::Threading::CREATE_NO_WINDOW;

use crate::support::started;

/// A backend that works wherever this system does.
pub(crate) const BACKEND: &str = "afd";

/// Tells [`press_ctrl_c`] where.
const SERVER: &str = "SOCKNOTIFY_TEST_SERVER";

/// What a function of the console's says.
fn check(done: i32) -> io::Result<()> {
    match done {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// With a console of its own, so that it can be interrupted alone.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    // Whoever has started the tests may be deaf to Ctrl-C, and that is inherited.
    // SAFETY: there is no function to call.
    check(unsafe { SetConsoleCtrlHandler(None, 0) })?;
    command.creation_flags(CREATE_NO_WINDOW);
    started(|| command.spawn())
}

/// Ctrl-C is for all who share a console, and whoever goes to another one leaves his own: so it takes a
/// process.
pub(crate) fn interrupt(process: &Child) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--ignored", "--exact", "system::press_ctrl_c"])
        .env(SERVER, process.id().to_string())
        .stdout(Stdio::null());
    let status = started(|| command.status())?;
    assert!(status.success(), "{status}");
    Ok(())
}

#[test]
#[ignore = "it is what the others do to interrupt the server"]
fn press_ctrl_c() -> io::Result<()> {
    let Ok(server) = std::env::var(SERVER) else {
        return Ok(());
    };
    let server = server.parse().map_err(io::Error::other)?;
    // SAFETY: there are no pointers. It fails if there is no console to leave.
    unsafe { FreeConsole() };
    // SAFETY: the same. Without a function it is about being deaf to Ctrl-C.
    unsafe {
        check(AttachConsole(server))?;
        check(SetConsoleCtrlHandler(None, 1))?;
        check(GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0))
    }
}
