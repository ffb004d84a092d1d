//! An etcd cluster from Debian's packages, on free ports of this machine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::ca::Ca;
use crate::program::{Process, run};
use crate::soon;

/// The nodes of a cluster, killed on drop.
#[derive(Debug)]
pub struct Etcd {
    nodes: Vec<Node>,
    folder: TempDir,
    all: String,
    transport: Transport,
}

/// Scheme and TLS options of the client connections.
#[derive(Debug)]
struct Transport {
    scheme: &'static str,
    /// Options of etcd.
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
    /// Starts `count` nodes and waits for a leader.
    ///
    /// # Errors
    /// When etcd is not installed (`make etcd`) or elects no leader in time.
    pub fn start(count: usize) -> Result<Self> {
        let transport = Transport { scheme: "http", flags: Vec::new(), control: Vec::new() };
        Self::start_with(count, transport)
    }

    /// Starts a single node with TLS for clients and additional `flags`. Server and clients trust
    /// `ca`; clients present the server's certificate on demand.
    ///
    /// # Errors
    /// As [`Self::start`], or when the certificate can't be written.
    pub fn start_tls(ca: &Ca, flags: &[&str]) -> Result<Self> {
        ca.issue("etcd", "127.0.0.1", false)?;
        let (trusted, cert, key) = (ca.file("ca.pem"), ca.file("etcd.pem"), ca.file("etcd.key"));
        let shown = ["--cert-file", &cert, "--key-file", &key];
        let control = ["--cacert", &trusted, "--cert", &cert, "--key", &key];
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let (flags, control) = (words(&[&shown, flags].concat()), words(&control));
        Self::start_with(1, Transport { scheme: "https", flags, control })
    }

    fn start_with(count: usize, transport: Transport) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // All listeners stay open until all ports are known, so that no port is used twice.
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
        let mut etcd = Self { nodes, folder, all: all.join(","), transport };
        for number in 0..count {
            etcd.run(number)?;
        }
        etcd.wait()?;
        Ok(etcd)
    }

    /// Starts a node, or restarts a node with its data.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn run(&mut self, number: usize) -> Result<()> {
        let node = self.nodes.get_mut(number).context("no such node")?;
        let data: PathBuf = self.folder.path().join(&node.name);
        let client = format!("{}://127.0.0.1:{}", self.transport.scheme, node.client);
        let peer = format!("http://127.0.0.1:{}", node.peer);
        let mut command = Command::new("etcd");
        command.args(["--name", &node.name, "--data-dir"]).arg(&data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.all, "--initial-cluster-state", "new"]);
        command.args(["--logger", "zap", "--log-level", "error", "--unsafe-no-fsync"]);
        command.args(&self.transport.flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        node.process = Some(Process::start(&mut command)?);
        Ok(())
    }

    /// Kills a node with SIGKILL.
    ///
    /// # Errors
    /// When the node does not run.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        let node = self.nodes.get_mut(number).context("no such node")?;
        node.process.take().context("the node does not run")?.kill()
    }

    /// Waits until a majority of the nodes answers.
    ///
    /// # Errors
    /// When no majority answers in time.
    pub fn wait(&self) -> Result<()> {
        soon("etcd comes up", || Ok(self.control(&["put", "/started", "1"]).is_ok()))
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
    /// When etcdctl fails.
    pub fn control(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.addresses()]);
        command.args(&self.transport.control).args(["--command-timeout", "2s"]);
        run(command.args(arguments))?.code(0)?;
        Ok(())
    }
}
