//! The launcher: runs the servers of mounts in a container of their own, whose memory they may fill.
//!
//! Must hold: a server ends with the process that asked for it. A launcher that ends takes its servers
//! along, and the holder asks the next launcher.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dl_node::Socket;
use dl_runtime::since_boot;

use crate::messages::{CACHE, FromLauncher, Order, ToLauncher};
use crate::orphans;
use crate::sockets::serve;

/// The variable of a mount whose servers a launcher runs; its value is the socket of the launcher.
pub const LAUNCHER: &str = "DIESEL_CSI_LAUNCHER";

const TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a launcher to come back, and between two looks.
const RETURN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The settings of a launcher.
#[derive(Debug)]
pub struct Launcher {
    /// Its socket.
    pub socket: PathBuf,
}

impl Launcher {
    /// Serves for ever.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn serve(self) -> io::Result<()> {
        serve(&self.socket, Arc::new(|socket: &Socket| answer(socket)))
    }
}

fn answer(socket: &Socket) -> io::Result<()> {
    let Some((message, files)) = socket.receive::<ToLauncher>(TIMEOUT)? else { return Ok(()) };
    let ToLauncher::Launch(order) = message else {
        return socket.send(&FromLauncher::Ready, &[], TIMEOUT);
    };
    let mut files = files.into_iter();
    let (Some(stdin), Some(program)) = (files.next(), files.next()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    order.place_ca()?;
    // The program of the holder, by this process: its version understands the holder.
    let path = format!("/proc/{}/fd/{}", std::process::id(), program.as_raw_fd());
    let mut command = Command::new(path);
    command
        .args(order.arguments.iter().map(|word| OsStr::from_bytes(word)))
        .envs(&order.environment);
    command.stdin(Stdio::from(stdin)).stdout(Stdio::null());
    let mut child = orphans::spawn(&mut command)?;
    drop((command, program));
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status.code().unwrap_or(1);
        }
        if socket.is_closed() {
            child.kill()?;
        }
        thread::sleep(POLL_INTERVAL);
    };
    orphans::ended(&child);
    socket.send(&FromLauncher::Ended(code), &[], TIMEOUT)
}

/// Has a launcher run this process's server, with the own stdin; gives the exit code of the server.
///
/// # Errors
/// For a launcher that is away for too long.
pub fn launch(path: &Path, arguments: Vec<Vec<u8>>) -> io::Result<i32> {
    let is_passed = |name: &str| name.starts_with("DIESEL_") || name == CACHE;
    let named = std::env::vars().filter(|(name, _)| is_passed(name));
    let environment: BTreeMap<_, _> = named.filter(|(name, _)| name != LAUNCHER).collect();
    let order = Order { arguments, environment };
    let program = std::fs::File::open("/proc/self/exe")?;
    let socket = connect(path)?;
    let stdin = io::stdin();
    let files = [stdin.as_fd(), program.as_fd()];
    // Connections wait in line while the launcher begins.
    socket.send(&ToLauncher::Launch(order), &files, TIMEOUT)?;
    // The end of the server has to be the end of its socket.
    let nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
    rustix::stdio::dup2_stdin(nothing)?;
    loop {
        match socket.receive::<FromLauncher>(Duration::from_secs(3_600)) {
            Ok(Some((FromLauncher::Ended(code), _))) => return Ok(code),
            Ok(Some((FromLauncher::Ready, _))) => {}
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {}
            Ok(None) => return Err(io::Error::other("the launcher of servers ended")),
            Err(why) => return Err(why),
        }
    }
}

/// Connects to a launcher, which may be about to come back.
fn connect(path: &Path) -> io::Result<Socket> {
    let until = since_boot().saturating_add(RETURN_TIMEOUT);
    loop {
        match Socket::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(why) if since_boot() >= until => return Err(why),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Asks a launcher whether it lives.
pub(crate) fn greet_launcher(path: &Path) -> io::Result<()> {
    let socket = Socket::connect(path)?;
    socket.send(&ToLauncher::Greet, &[], TIMEOUT)?;
    socket.receive::<FromLauncher>(TIMEOUT)?.map(drop).ok_or(io::ErrorKind::UnexpectedEof.into())
}
