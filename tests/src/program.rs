//! The programs `dlserver` and `dlcmd` as processes.
//!
//! Must hold: a started process ends with the test and is addressed by its id; every wait has a
//! limit.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::clock;
use crate::{folder, rounds, tell};

/// The time limit for a quick step of a program.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The path of a program of this workspace in the target folder.
///
/// # Errors
/// When the program was not built: `make programs` builds it.
pub fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("find this test")?;
    let folder = test.parent().and_then(Path::parent).context("find the target folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} is missing: run `make programs`", program.display());
    Ok(program)
}

/// The path of a tool that `make TARGET` installs.
///
/// # Errors
/// When the tool is not installed.
pub fn tool(name: &str, target: &str) -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty());
    let cache = match (cache, std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, home) => PathBuf::from(home.context("HOME is not set")?).join(".cache"),
    };
    let tool = cache.join("diesel/tools").join(name);
    ensure!(tool.is_file(), "{} is missing: run `make {target}`", tool.display());
    Ok(tool)
}

/// A process, killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child, name })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The stdin and stdout of the process, where its command pipes both.
    pub fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    /// Sends a signal. After `STOP` returns, none of the process's threads runs.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process has an id")?, signal)
            .with_context(|| format!("send a signal to {}", self.name))?;
        if signal == Signal::STOP { self.await_stop() } else { Ok(()) }
    }

    /// Waits until each thread has stopped: after SIGSTOP, threads run on until the signal is
    /// taken.
    fn await_stop(&self) -> Result<()> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.id()));
        let is_stopped = |task: PathBuf| {
            // An ended thread has no file.
            let status = fs::read_to_string(task.join("stat")).unwrap_or_default();
            status.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z']))
        };
        let clock = clock();
        let until = clock.monotonic() + TIMEOUT;
        loop {
            let mut threads = fs::read_dir(&tasks)?;
            if threads.all(|thread| thread.is_ok_and(|thread| is_stopped(thread.path()))) {
                return Ok(());
            }
            ensure!(clock.monotonic() < until, "{} still runs a minute after SIGSTOP", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the process with SIGKILL and waits for its end.
    ///
    /// # Errors
    /// When the wait fails.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        self.child.wait().with_context(|| format!("wait for {}", self.name))?;
        Ok(())
    }

    /// The exit code of an ended process; none while the process runs.
    ///
    /// # Errors
    /// When a signal ended the process.
    pub fn ended(&mut self) -> Result<Option<i32>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        status.code().map(Some).with_context(|| format!("{} ended by {status}", self.name))
    }

    /// Waits for the exit code.
    ///
    /// # Errors
    /// When a signal ended the process, or `patience` is over.
    pub fn wait(&mut self, patience: Duration) -> Result<i32> {
        let clock = clock();
        let until = clock.monotonic() + patience;
        loop {
            if let Some(code) = self.ended()? {
                return Ok(code);
            }
            if clock.monotonic() > until {
                self.kill()?;
                bail!("{} went on for {patience:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The peak memory in bytes; none for an ended process.
    pub fn peak_memory(&self) -> Option<u64> {
        memory(self.child.id(), &["VmHWM"]).ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sum of lines such as `RssAnon:    1234 kB` in the status of a process, in bytes. The process
/// is an id or `self`.
///
/// # Errors
/// When the process has ended.
pub fn memory(process: impl Display, lines: &[&str]) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let number = |name: &&str| {
        let line = status.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok())
    };
    let sum = lines.iter().map(number).sum::<Option<u64>>();
    Ok(sum.with_context(|| format!("{lines:?} in {status}"))? << 10)
}

/// A `dlserver` process.
#[derive(Debug)]
pub struct Server {
    process: Process,
    address: String,
    http: String,
    log: Option<JoinHandle<String>>,
}

impl Server {
    /// Starts dlserver on a free port with `data` as its folder.
    ///
    /// # Errors
    /// With the log, when the server ends before it listens.
    pub fn start(data: &Path) -> Result<Self> {
        Self::start_with(data, "127.0.0.1:0", &[])
    }

    /// Starts dlserver on a given address with additional flags.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(data: &Path, listen: &str, flags: &[&str]) -> Result<Self> {
        Self::start_among(data, listen, flags, &[])
    }

    /// Starts dlserver with additional flags and environment variables.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_among(
        data: &Path,
        listen: &str,
        flags: &[&str],
        variables: &[(String, String)],
    ) -> Result<Self> {
        let mut command = server_command()?;
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.arg("--listen").arg(listen).arg("--data").arg(data).args(flags);
        // With `--http`, the server prints two addresses at once.
        Self::run(command, if flags.contains(&"--http") { 2 } else { 1 })
    }

    /// Runs a command that becomes a dlserver, and waits until the server has printed `ports`
    /// addresses.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn run(mut command: Command, ports: usize) -> Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        let stdout = process.child.stdout.take().context("stdout is a pipe")?;
        let log = process.child.stderr.take().map(follow);
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines: std::io::Result<Vec<_>> =
                BufReader::new(stdout).lines().take(ports).collect();
            // The receiver is gone when the test is over.
            let _ = said.send(lines);
        });
        let lines = lines.recv_timeout(TIMEOUT).context("wait until dlserver listens")??;
        let told = |what| lines.iter().find_map(|line| line.strip_prefix(what)).map(str::to_owned);
        let Some(address) = told("listening on ") else {
            process.wait(TIMEOUT)?;
            let log = log.map(|log| log.join().unwrap_or_default()).unwrap_or_default();
            bail!("dlserver ended before it listened: {log}");
        };
        let http = told("http on ").unwrap_or_default();
        Ok(Self { address, http, process, log })
    }

    /// The address of the gRPC port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address of the HTTP port; empty without `--http`.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// The process of the server.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A dlcmd command for this server.
    ///
    /// # Errors
    /// When dlcmd was not built.
    pub fn dlcmd(&self) -> Result<Command> {
        let mut command = dlcmd()?;
        command.arg("--server").arg(&self.address);
        Ok(command)
    }

    /// Puts a file or a folder.
    ///
    /// # Errors
    /// When dlcmd does not end with 0.
    pub fn put(&self, source: impl AsRef<OsStr>, target: impl AsRef<OsStr>) -> Result<()> {
        run(self.dlcmd()?.arg("put").arg(source).arg(target))?.code(0).map(drop)
    }

    /// Gets the files at an address and compares them with a folder.
    ///
    /// # Errors
    /// When dlcmd does not end with 0, or a file differs.
    pub fn compare(&self, address: impl AsRef<str>, source: &Path) -> Result<()> {
        let address = address.as_ref();
        let scene = tempfile::tempdir()?;
        let got = scene.path().join("got");
        run(self.dlcmd()?.arg("get").arg(address).arg(&got))?.code(0)?;
        folder::compare(source, &got).with_context(|| format!("compare {address}"))
    }

    /// Checks that the server's peak memory is below 256 MiB.
    ///
    /// # Errors
    /// When the server took more, or has ended.
    pub fn check_memory(&self, what: &str) -> Result<()> {
        let peak = self.process.peak_memory().context("the server runs")?;
        tell(format_args!("{what}: at most {} MiB", peak >> 20));
        ensure!(peak < 256 << 20, "{what} took {} MiB", peak >> 20);
        Ok(())
    }

    /// Stops the server with SIGTERM and returns the log.
    ///
    /// # Errors
    /// When the exit code is not 0, or a task panicked.
    pub fn stop(mut self) -> Result<String> {
        self.process.signal(Signal::TERM)?;
        let code = self.process.wait(TIMEOUT)?;
        let log = self.log.take().map(|log| log.join().unwrap_or_default()).unwrap_or_default();
        ensure!(code == 0 && !log.contains("panicked"), "dlserver ended with {code}: {log}");
        Ok(log)
    }

    /// Kills the server with SIGKILL and returns the log.
    ///
    /// # Errors
    /// When the wait fails.
    pub fn kill(mut self) -> Result<String> {
        self.process.kill()?;
        Ok(self.log.take().map(|log| log.join().unwrap_or_default()).unwrap_or_default())
    }
}

/// Writes the log to stderr: nextest shows the stderr of failed tests.
impl Drop for Server {
    fn drop(&mut self) {
        let Some(log) = self.log.take() else { return };
        let _ = self.process.kill();
        let log = log.join().unwrap_or_default();
        let _ = write!(std::io::stderr(), "dlserver on {}:\n{log}", self.address);
    }
}

/// Reads a pipe to its end in a thread.
fn follow(mut stderr: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // Bytes before an error are kept.
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// A dlserver command without flags and without variables of this machine.
///
/// # Errors
/// When dlserver was not built.
pub fn server_command() -> Result<Command> {
    let mut command = Command::new(program("dlserver")?);
    clean(&mut command);
    // Without a value, all servers would ask for the same HTTP port.
    command.env("DIESEL_HTTP", "none");
    Ok(command)
}

/// A dlcmd command without flags and without variables of this machine.
///
/// # Errors
/// When dlcmd was not built.
pub fn dlcmd() -> Result<Command> {
    let mut command = Command::new(program("dlcmd")?);
    clean(&mut command);
    Ok(command)
}

fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours = ["DIESEL_", "AWS_", "AZURE_", "GOOGLE_"];
        if ours.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// Exit code and output of an ended program.
#[derive(Debug)]
pub struct Ended {
    /// The exit code.
    pub code: i32,
    /// The output on stdout.
    pub stdout: Vec<u8>,
    /// The output on stderr.
    pub stderr: String,
}

impl Ended {
    /// The output on stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks the exit code and returns the result.
    ///
    /// # Errors
    /// With the whole output, when the code differs.
    pub fn code(self, code: i32) -> Result<Self> {
        let (stdout, stderr) = (self.text(), &self.stderr);
        ensure!(self.code == code, "exit code {}, not {code}: {stdout}{stderr}", self.code);
        Ok(self)
    }
}

impl TryFrom<Output> for Ended {
    type Error = anyhow::Error;

    fn try_from(output: Output) -> Result<Self> {
        Ok(Self {
            code: output.status.code().with_context(|| format!("ended by {}", output.status))?,
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When the command can't be started, or a signal ends it.
pub fn run(command: &mut Command) -> Result<Ended> {
    let output = command.stdin(Stdio::null()).output();
    output.with_context(|| format!("run {command:?}"))?.try_into()
}

/// The count of objects moved or removed by a purge of one dataset, from its `--json` output.
///
/// # Errors
/// When the output is not such an object.
pub fn purged(ended: &Ended) -> Result<u64> {
    let told: serde_json::Value = serde_json::from_slice(&ended.stdout)?;
    let number = |name: &str| told[name].as_u64().with_context(|| format!("{name} of {told}"));
    Ok(number("rewritten")? + number("removed")?)
}

/// Runs a command to its end and returns its peak memory in bytes, sampled every 2 ms.
///
/// # Errors
/// When the command can't be started, exceeds the time limit, or fails.
pub fn peak_of(command: &mut Command) -> Result<u64> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Process::start(command)?;
    let (clock, mut peak) = (clock(), 0);
    let until = clock.monotonic() + Duration::from_secs(rounds(300, 3000));
    while let Some(now) = process.peak_memory() {
        peak = now.max(peak);
        ensure!(clock.monotonic() < until, "{command:?} exceeds its time limit");
        std::thread::sleep(Duration::from_millis(2));
    }
    let code = process.wait(TIMEOUT)?;
    ensure!(code == 0, "exit code {code}, not 0");
    Ok(peak)
}

/// Runs a command to its end with `stdin` as its input.
///
/// # Errors
/// When the command can't be started, or a signal ends it.
pub fn run_with_stdin(command: &mut Command, stdin: &[u8]) -> Result<Ended> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("run {command:?}"))?;
    let mut pipe = child.stdin.take().context("stdin is a pipe")?;
    let stdin = stdin.to_vec();
    let writer = std::thread::spawn(move || {
        // A program that ends early closes the pipe.
        let _ = pipe.write_all(&stdin);
    });
    let output = child.wait_with_output()?;
    ensure!(writer.join().is_ok(), "the thread that writes to stdin ended");
    output.try_into()
}

/// Runs dlcmd against a server.
///
/// # Errors
/// When dlcmd can't be started, or a signal ends it.
pub fn dl<A: AsRef<OsStr>>(
    server: &Server,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Ended> {
    run(server.dlcmd()?.args(arguments))
}
