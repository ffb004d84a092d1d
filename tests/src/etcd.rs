//! An etcd of several nodes, from Debian's packages, on free ports of this machine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::Deadline;
use tempfile::TempDir;

use crate::ca::Ca;
use crate::cluster::clock;
use crate::program::{Process, run};

/// How long it may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes of one etcd, killed when they are dropped.
#[derive(Debug)]
pub struct Etcd {
    nodes: Vec<Node>,
    folder: TempDir,
    all: String,
    speech: Speech,
}

/// How clients speak to it.
#[derive(Debug)]
struct Speech {
    scheme: &'static str,
    /// What etcd and etcdctl are told of it.
    flags: Vec<String>,
    control: Vec<String>,
}

#[derive(Debug)]
struct Node {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Process>,
}

impl Etcd {
    /// Starts `count` nodes and waits until they have a leader.
    ///
    /// # Errors
    /// When etcd is not installed (`make etcd`) or does not come up.
    pub fn start(count: usize) -> Result<Self> {
        let speech = Speech { scheme: "http", flags: Vec::new(), control: Vec::new() };
        Self::speaking(count, speech)
    }

    /// Starts one node whose clients speak TLS, trust this CA and, where it asks, show a
    /// certificate of it. It is given more flags.
    ///
    /// # Errors
    /// As [`Self::start`], or when its certificate can't be written.
    pub fn start_tls(ca: &Ca, flags: &[&str]) -> Result<Self> {
        ca.issue("etcd", "127.0.0.1", false)?;
        let (trusted, cert, key) = (ca.file("ca.pem"), ca.file("etcd.pem"), ca.file("etcd.key"));
        let shown = ["--cert-file", &cert, "--key-file", &key];
        let control = ["--cacert", &trusted, "--cert", &cert, "--key", &key];
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (flags, control) = (words(&[&shown, flags].concat()), words(&control));
        Self::speaking(1, Speech { scheme: "https", flags, control })
    }

    fn speaking(count: usize, speech: Speech) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // All are held until all are known, so that none is given twice.
        let held: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let mut ports = Vec::new();
        for listener in &held {
            ports.push(listener.local_addr()?.port());
        }
        drop(held);
        let (clients, peers) = ports.split_at(count);
        let node = |(number, (client, peer)): (usize, (&u16, &u16))| Node {
            name: format!("node{number}"),
            client: *client,
            peer: *peer,
            process: None,
        };
        let nodes: Vec<_> = clients.iter().zip(peers).enumerate().map(node).collect();
        let all: Vec<_> = nodes
            .iter()
            .map(|node| format!("{}=http://127.0.0.1:{}", node.name, node.peer))
            .collect();
        let mut etcd = Self { nodes, folder, all: all.join(","), speech };
        for number in 0..count {
            etcd.run(number)?;
        }
        etcd.wait()?;
        Ok(etcd)
    }

    /// Starts a node, again with what it knew.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn run(&mut self, number: usize) -> Result<()> {
        let node = self.nodes.get_mut(number).context("no such node")?;
        let data: PathBuf = self.folder.path().join(&node.name);
        let client = format!("{}://127.0.0.1:{}", self.speech.scheme, node.client);
        let peer = format!("http://127.0.0.1:{}", node.peer);
        let mut command = Command::new("etcd");
        command.args(["--name", &node.name, "--data-dir"]).arg(&data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.all, "--initial-cluster-state", "new"]);
        command.args(["--logger", "zap", "--log-level", "error", "--unsafe-no-fsync"]);
        command.args(&self.speech.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        node.process = Some(Process::start(&mut command)?);
        Ok(())
    }

    /// `kill -9` of a node.
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        let node = self.nodes.get_mut(number).context("no such node")?;
        node.process.take().context("it does not run")?.kill()
    }

    /// Waits until a majority answers.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait(&self) -> Result<()> {
        let deadline = Deadline::after(&*clock(), PATIENCE);
        while self.control(&["put", "/started", "1"]).is_err() {
            ensure!(!deadline.remaining(&*clock()).is_zero(), "etcd does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The nodes, as `HOST:PORT,HOST:PORT`.
    pub fn addresses(&self) -> String {
        let addresses: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.client)).collect();
        addresses.join(",")
    }

    /// Runs etcdctl.
    ///
    /// # Errors
    /// When it fails.
    pub fn control(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.addresses()]);
        command.args(&self.speech.control).args(["--command-timeout", "2s"]);
        run(command.args(arguments))?.code(0)?;
        Ok(())
    }
}
