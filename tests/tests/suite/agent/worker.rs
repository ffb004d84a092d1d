//! Processes that read through the cache on command and check every byte: the example `read_cached`
//! of the client library.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dl_format::{ChunkShape, DatasetName, layout::CHUNK_SIZE_MIN};
use dl_tests::program::{Process, Server, program, run};
use libdiesel::{Client, ConnectOptions};

use super::Scene;

/// The time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(120);

impl Scene {
    /// A dataset of small chunks, whose contents the example derives from the paths.
    pub(super) fn stamped(files: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("src");
        let make = Command::new(program("examples/read_cached")?)
            .arg("make")
            .arg(&source)
            .arg(files.to_string())
            .status()?;
        anyhow::ensure!(make.success(), "no files were made: {make}");
        let http = ["--http", "127.0.0.1:0"];
        let server = Server::start_with(&folder.path().join("data"), "127.0.0.1:0", &http)?;
        let address = server.address().to_owned();
        let servers = vec![address.clone()];
        let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
        let shape = ChunkShape::new(CHUNK_SIZE_MIN, 64)?;
        client.create_dataset(&DatasetName::new("ds")?, shape)?;
        run(server.dlcmd()?.arg("put").arg(source).arg("dl://ds"))?.code(0)?;
        Ok(Self { folder, server: Some(server), address })
    }

    /// The command of a worker. An agent started by the worker has memory for all files.
    pub(super) fn worker_command(&self, seed: usize) -> Result<Command> {
        let mut command = Command::new(program("examples/read_cached")?);
        command.args([&self.address, "ds", &seed.to_string()]);
        command.env("DIESEL_AGENT_MEMORY", "64MiB");
        command.env("DIESEL_TASK", "job").env("DIESEL_RUNTIME_DIR", self.path("run"));
        command.env("DIESEL_AGENT", program("dlcmd")?).env("XDG_CACHE_HOME", self.path("cache"));
        Ok(command)
    }

    /// A worker before its first command.
    pub(super) fn worker(&self, seed: usize) -> Result<Worker> {
        let mut command = self.worker_command(seed)?;
        Worker::start(&mut command, self.path(&format!("errors-{seed}")))
    }
}

/// A reading process.
pub(super) struct Worker {
    pub(super) process: Process,
    /// Closing the pipe ends the worker.
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    errors: PathBuf,
}

impl Worker {
    /// Starts a worker and writes its stderr to a file.
    pub(super) fn start(command: &mut Command, errors: PathBuf) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command.stderr(std::fs::File::create(&errors)?))?;
        let (stdin, stdout) = process.pipes().context("both are pipes")?;
        let (answered, answers) = channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The receiver is gone when the test is over.
            lines.try_for_each(|line| answered.send(line))
        });
        let worker = Self { process, stdin: Some(stdin), answers, errors };
        worker.answer()?;
        Ok(worker)
    }

    /// Sends a command.
    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the worker's stdin is closed")?;
        writeln!(stdin, "{line}").or_else(|why| self.fails(&why.to_string()))
    }

    /// The next line on stdout.
    pub(super) fn answer(&self) -> Result<String> {
        self.answers.recv_timeout(TIMEOUT).or_else(|why| self.fails(&why.to_string()))
    }

    /// Sends a command and returns the answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.answer()
    }

    /// Fails if the worker has ended.
    pub(super) fn must_live(&mut self) -> Result<()> {
        match self.process.ended()? {
            None => Ok(()),
            Some(code) => self.fails(&format!("the worker ended with exit code {code}")),
        }
    }

    /// Ends the worker, checks its exit code and returns its last answers.
    pub(super) fn end(mut self) -> Result<Vec<String>> {
        self.stdin = None;
        match self.process.wait(TIMEOUT) {
            Ok(0) => Ok(self.answers.iter().collect()),
            ended => self.fails(&format!("the end of the worker was {ended:?}")),
        }
    }

    fn fails<T>(&self, why: &str) -> Result<T> {
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        bail!("worker {}: {why}: {errors}", self.process.id())
    }
}
