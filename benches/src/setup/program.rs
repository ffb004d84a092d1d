//! Measured programs as processes.
//!
//! Must hold: a started process ends with the bench, by its process id.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::within;

/// A process; drop kills it.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Starts a program without output, and waits for `listens`.
    pub(crate) fn listening(command: &mut Command, listens: impl Fn() -> bool) -> Result<Self> {
        let shown = format!("{command:?}");
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = Self(started.with_context(|| format!("start {shown}; is it installed?"))?);
        for _ in 0..500 {
            if listens() {
                return Ok(process);
            }
            sleep(Duration::from_millis(10));
        }
        anyhow::bail!("{shown} does not listen");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let program = own.with_file_name(name);
    ensure!(program.is_file(), "{} is missing: run `make bench`", program.display());
    Ok(program)
}

/// Another process of this program, with commands and answers as lines of JSON.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    pub(crate) process: Process,
    pub(crate) stdout: BufReader<ChildStdout>,
}

impl OwnProcess {
    /// Starts the process for a role, optionally in a network namespace.
    pub(crate) fn start(namespace: Option<&str>, role: &impl Serialize) -> Result<Self> {
        let mut own = Command::new(std::env::current_exe().context("find this program")?);
        own.args([OsStr::new("play"), serde_json::to_string(role)?.as_ref()]);
        let mut command = within(namespace, &own);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().context("start a process")?);
        let stdout = process.0.stdout.take().context("take its output")?;
        Ok(Self { process, stdout: BufReader::new(stdout) })
    }

    pub(crate) fn send(&mut self, command: impl Serialize) -> Result<()> {
        let stdin = self.process.0.stdin.as_mut().context("take its input")?;
        Ok(writeln!(stdin, "{}", serde_json::to_string(&command)?)?)
    }

    pub(crate) fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).context("a process of the bench has failed")
    }
}

/// The commands for this process, until its input ends.
pub(crate) fn commands<T: DeserializeOwned>() -> impl Iterator<Item = Result<T>> {
    stdin().lines().map(|line| Ok(serde_json::from_str(&line?)?))
}

/// Answers a command of the starter of this process.
pub(crate) fn answer(with: impl Serialize) -> Result<()> {
    Ok(writeln!(stdout(), "{}", serde_json::to_string(&with)?)?)
}

/// A dlserver with default settings on a free port.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    /// Open output; a closed pipe would end the server at its next line.
    _stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Server {
    /// Starts the server with all its data in `data`.
    pub(crate) fn start(data: &Path) -> Result<Self> {
        Self::start_on(data, &[], &[])
    }

    /// Starts the server with more flags and variables.
    pub(crate) fn start_on(
        data: &Path,
        flags: &[&str],
        variables: &[(&'static str, String)],
    ) -> Result<Self> {
        Self::start_as(data, Ipv4Addr::LOCALHOST, flags, variables)
    }

    /// Starts the server at an address of the machine.
    pub(crate) fn start_as(
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

/// A free address of the machine.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Starts memcached with memory for all files, at a reachable address.
pub(crate) fn memcached(namespace: Option<&str>, address: SocketAddr) -> Result<Process> {
    let mut command = Command::new("memcached");
    command.args(["-m", "4096", "-u", "root", "-l", &address.ip().to_string(), "-p"]);
    command.arg(address.port().to_string());
    let is_there = || TcpStream::connect(address).is_ok();
    Process::listening(&mut within(namespace, &command), is_there)
}

/// Starts memcached at a unix socket, with memory for all files.
pub(crate) fn memcached_at(socket: &Path) -> Result<Process> {
    let mut command = Command::new("memcached");
    command.args(["-m", "4096", "-u", "root", "-s"]).arg(socket);
    Process::listening(&mut command, || UnixStream::connect(socket).is_ok())
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
