//! Measured programs as processes.
//!
//! Must hold: a started process ends with the bench, by its process id.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::within;

/// A process; drop kills it.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Path of a program from the same build.
fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let program = own.with_file_name(name);
    ensure!(program.is_file(), "{} is missing: run `make bench`", program.display());
    Ok(program)
}

/// Starts another process of this program, optionally in a network namespace. Returns the process
/// and its output; commands go to its input.
pub(crate) fn start_own<'a>(
    namespace: Option<&str>,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> Result<(Process, BufReader<ChildStdout>)> {
    let own = Command::new(std::env::current_exe().context("find this program")?);
    let mut command = within(namespace, &own);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process(command.spawn().context("start a process")?);
    let stdout = process.0.stdout.take().context("take its output")?;
    Ok((process, BufReader::new(stdout)))
}

/// A dlserver with default settings on a free port.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    /// Open output; a closed one would end the server at its next line.
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Server {
    /// Starts the server with all its data in `data`.
    pub(crate) fn start(data: &Path) -> Result<Self> {
        Self::start_on(data, &[], &[])
    }

    /// Starts the server at an address that only the namespaces reach.
    pub(crate) fn start_at(data: &Path, address: Ipv4Addr) -> Result<Self> {
        Self::start_as(data, address, &["--without-keys"], &[])
    }

    /// Starts the server with more flags and variables.
    pub(crate) fn start_on(
        data: &Path,
        flags: &[&str],
        variables: &[(&'static str, String)],
    ) -> Result<Self> {
        Self::start_as(data, Ipv4Addr::LOCALHOST, flags, variables)
    }

    fn start_as(
        data: &Path,
        address: Ipv4Addr,
        flags: &[&str],
        variables: &[(&'static str, String)],
    ) -> Result<Self> {
        let mut command = Command::new(program("dlserver")?);
        let listen = format!("{address}:0");
        command.args(["--listen", &listen, "--http", "none", "--data"]).arg(data);
        command.args(flags).envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process(command.spawn().context("start dlserver")?);
        let stdout = process.0.stdout.take().context("take the server's output")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line).context("wait until dlserver listens")?;
        let address = line.trim().strip_prefix("listening on ");
        let address = address.context("dlserver ended before it listened")?.to_owned();
        Ok(Self { process, _stdout: stdout, address })
    }

    /// Process id of the server.
    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }
}

/// A memcached on a free port, with memory for all files.
#[derive(Debug)]
pub(crate) struct Memcached {
    _process: Process,
    pub(crate) address: SocketAddr,
}

impl Memcached {
    pub(crate) fn start() -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-m", "4096", "-u", "root", "-p"]);
        command.arg(address.port().to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(command.spawn().context("start memcached; is it installed?")?);
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Ok(Self { _process: process, address });
            }
            sleep(Duration::from_millis(10));
        }
        anyhow::bail!("memcached does not listen on {address}");
    }
}

impl Memcached {
    /// Starts memcached in a network namespace, at an address that this machine reaches.
    pub(crate) fn start_in(namespace: &str, address: SocketAddr) -> Result<Process> {
        let mut command = Command::new("memcached");
        command.args(["-m", "1024", "-u", "root", "-l", &address.ip().to_string(), "-p"]);
        command.arg(address.port().to_string());
        let mut command = within(Some(namespace), &command);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(command.spawn().context("start memcached; is it installed?")?);
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Ok(process);
            }
            sleep(Duration::from_millis(10));
        }
        anyhow::bail!("memcached does not listen on {address}");
    }
}

/// Starts memcached at a unix socket, with memory for all files.
pub(crate) fn memcached_at(socket: &Path) -> Result<Process> {
    let mut command = Command::new("memcached");
    command.args(["-m", "4096", "-u", "root", "-s"]).arg(socket);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let process = Process(command.spawn().context("start memcached; is it installed?")?);
    for _ in 0..200 {
        if UnixStream::connect(socket).is_ok() {
            return Ok(process);
        }
        sleep(Duration::from_millis(10));
    }
    anyhow::bail!("memcached does not listen at {}", socket.display());
}

/// A dlcmd command for a server.
pub(crate) fn dlcmd(server: &Server) -> Result<Command> {
    dlcmd_at(&server.address)
}

/// A dlcmd command for the address of a server.
pub(crate) fn dlcmd_at(server: &str) -> Result<Command> {
    let mut command = Command::new(program("dlcmd")?);
    command.args(["--quiet", "--server", server]);
    Ok(command)
}

/// A shell script with arguments `$1` and so on.
pub(crate) fn shell<'a>(script: &str, arguments: impl IntoIterator<Item = &'a Path>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(arguments);
    command
}

/// Runs the command to its end without output.
pub(crate) fn finish(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = ended.with_context(|| format!("start {shown}"))?;
    ensure!(status.success(), "{shown}: {status}");
    Ok(())
}
