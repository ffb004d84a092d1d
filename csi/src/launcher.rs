//! The launcher: runs the servers of mounts in a container of their own, whose memory they may fill.
//!
//! Must hold: a server ends with the process that asked for it. A launcher that ends takes its servers
//! along, and the holder asks the next launcher.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::agent::{Socket, accept};

use crate::messages::{FromLauncher, Order, ToLauncher};
use crate::sockets::{check_peer, listen};

/// The variable of a mount whose servers a launcher runs; its value is the socket of the launcher.
pub const LAUNCHER: &str = "DIESEL_CSI_LAUNCHER";

const PATIENCE: Duration = Duration::from_secs(5);

/// Time for a launcher to come back, and between two looks.
const AWAY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// The settings of a launcher.
#[derive(Debug)]
pub struct Launcher {
    /// Its socket.
    pub socket: PathBuf,
    /// The program `dlcmd`.
    pub program: PathBuf,
}

impl Launcher {
    /// Serves for ever.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn serve(self) -> io::Result<()> {
        let listener = listen(&self.socket)?;
        let program = Arc::new(self.program);
        loop {
            let socket = accept(&listener)?;
            let program = Arc::clone(&program);
            thread::spawn(move || {
                if let Err(why) = answer(&program, &socket) {
                    tracing::warn!(%why, "run a server");
                }
            });
        }
    }
}

fn answer(program: &Path, socket: &Socket) -> io::Result<()> {
    check_peer(socket)?;
    let Some((message, files)) = socket.receive::<ToLauncher>(PATIENCE)? else { return Ok(()) };
    let ToLauncher::Launch(order) = message else {
        return socket.send(&FromLauncher::Ready, &[], PATIENCE);
    };
    let stdin = files.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
    order.place_ca()?;
    let mut command = Command::new(program);
    command
        .args(order.arguments.iter().map(|word| OsStr::from_bytes(word)))
        .envs(&order.environment);
    command.stdin(Stdio::from(stdin)).stdout(Stdio::null());
    let mut child = command.spawn()?;
    drop(command);
    let code = loop {
        if let Some(status) = child.try_wait()? {
            break status.code().unwrap_or(1);
        }
        if socket.is_closed() {
            child.kill()?;
        }
        thread::sleep(LOOK);
    };
    socket.send(&FromLauncher::Ended(code), &[], PATIENCE)
}

/// Has a launcher run this process's server, with the own stdin; gives the exit code of the server.
///
/// # Errors
/// For a launcher that is away for too long.
pub fn launch(path: &Path, arguments: Vec<Vec<u8>>) -> io::Result<i32> {
    let named = std::env::vars().filter(|(name, _)| name.starts_with("DIESEL_"));
    let environment: BTreeMap<_, _> = named.filter(|(name, _)| name != LAUNCHER).collect();
    let order = Order { arguments, environment };
    let socket = connect(path)?;
    socket.send(&ToLauncher::Launch(order), &[io::stdin().as_fd()], PATIENCE)?;
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
    let until = since_boot().saturating_add(AWAY);
    loop {
        match Socket::connect(path) {
            Ok(socket) => return Ok(socket),
            Err(why) if since_boot() >= until => return Err(why),
            Err(_) => thread::sleep(LOOK),
        }
    }
}

/// Asks a launcher whether it lives.
pub(crate) fn greet_launcher(path: &Path) -> io::Result<()> {
    let socket = Socket::connect(path)?;
    socket.send(&ToLauncher::Greet, &[], PATIENCE)?;
    socket.receive::<FromLauncher>(PATIENCE)?.map(drop).ok_or(io::ErrorKind::UnexpectedEof.into())
}
