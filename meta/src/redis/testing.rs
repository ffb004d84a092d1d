//! Redis servers for tests: processes on free ports of this machine, alone or as a cluster.
//!
//! Must hold: nothing of them stays: they are killed by their process id and their files go with
//! the handle. A machine without redis-server is told what to install; another program that takes its
//! arguments, as Valkey's, is taken by REDIS_SERVER=PROGRAM.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_runtime::{Clock, SystemClock, locked};
use redis::{AsyncConnectionConfig, Value};
use tempfile::TempDir;

/// How long anything here may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One redis-server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    /// Where it speaks TLS, when its arguments name a certificate.
    tls_port: Option<u16>,
    folder: TempDir,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

impl Server {
    /// Starts one that keeps nothing on disk, with more `arguments` behind that.
    ///
    /// # Panics
    /// When it can't be started.
    pub async fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for redis-server");
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let has_tls = arguments.iter().any(|argument| argument == "--tls-cert-file");
        let tls_port = has_tls.then(free_port);
        let (port, child) = (free_port(), Mutex::default());
        let mut server = Self { port, tls_port, folder, arguments, child };
        while !(server.comes_up().await && server.is_ours().await) {
            server.kill();
            server.port = free_port();
            server.tls_port = server.tls_port.map(|_| free_port());
        }
        server
    }

    /// What follows one of its arguments.
    fn argument(&self, name: &str) -> Option<&str> {
        let mut values = self.arguments.iter().skip_while(|argument| *argument != name);
        values.nth(1).map(String::as_str)
    }

    /// Whether it is this process that answers, and not one of another test that took the port
    /// first. One that wants a login or TLS doesn't say.
    async fn is_ours(&self) -> bool {
        let id = self.child().as_ref().map(Child::id).unwrap_or_default();
        match self.try_ask(&["INFO", "server"]).await {
            Ok(Value::BulkString(info)) => {
                String::from_utf8_lossy(&info).contains(&format!("process_id:{id}\r"))
            }
            _ => true,
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        locked(&self.child)
    }

    /// Starts the process again, after [`Server::kill`].
    ///
    /// # Panics
    /// When it can't be started.
    pub async fn run(&self) {
        let port = self.port;
        assert!(self.comes_up().await, "redis-server ended: something else has port {port}");
    }

    /// Starts the process: whether it answers, or has ended because its port was taken.
    async fn comes_up(&self) -> bool {
        let program = env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.args(["--enable-debug-command", "local", "--dir"]).arg(self.folder.path());
        if let Some(port) = self.tls_port {
            command.args(["--tls-port", &port.to_string()]);
        }
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn();
        let child = child.expect("redis-server runs; it is in Debian's package redis-server");
        *self.child() = Some(child);
        eventually("redis-server answers or has ended", || async {
            let answer = self.try_ask(&["PING"]).await;
            self.has_ended()
                || matches!(
                    answer,
                    Ok(Value::SimpleString(_) | Value::Okay | Value::ServerError(_))
                )
                || answer.is_err_and(|error| error.kind() == redis::ErrorKind::AuthenticationFailed)
        })
        .await;
        !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        let mut child = self.child();
        child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Ends the process at once, as SIGKILL does.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens to the rest of its cluster's clients: with TLS if it has that.
    pub fn best_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its address as a metadata store.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// The answer to one command.
    ///
    /// # Panics
    /// When there is none.
    pub async fn ask(&self, command: &[&str]) -> Value {
        let answer = self.try_ask(command).await.expect("redis-server answers");
        assert!(!matches!(answer, Value::ServerError(_)), "{command:?}: {answer:?}");
        answer
    }

    async fn try_ask(&self, command: &[&str]) -> redis::RedisResult<Value> {
        let password = self.argument("--requirepass").unwrap_or_default();
        let login = if password.is_empty() { String::new() } else { format!(":{password}@") };
        let client = redis::Client::open(format!("redis://{login}127.0.0.1:{}", self.port))?;
        // Far beyond the half second that is usual: what a busy machine takes is no failure.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        connection.send_packed_command(&cmd).await
    }

    /// The answer to one command, as text.
    ///
    /// # Panics
    /// When there is none.
    pub async fn text(&self, command: &[&str]) -> String {
        match self.ask(command).await {
            Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            other => format!("{other:?}"),
        }
    }

    /// The number behind a name in a section of INFO; 0 without the name.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn number(&self, section: &str, name: &str) -> u64 {
        let info = self.text(&["INFO", section]).await;
        let found = info.lines().find_map(|line| line.strip_prefix(name));
        let digits = found.and_then(|rest| rest.split(|byte: char| !byte.is_ascii_digit()).next());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
    }

    /// How many bytes of memory it uses, by its own count.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn used_memory(&self) -> u64 {
        self.number("memory", "used_memory:").await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redis Cluster.
#[derive(Debug)]
pub struct Cluster {
    primaries: usize,
    servers: Vec<Server>,
}

impl Cluster {
    /// Starts `primaries` with an equal share of the slots each, and as many replicas behind each
    /// one as `replicas` says.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_with(primaries, replicas, &[]).await
    }

    /// The same with more `arguments` for each node.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn start_with(primaries: usize, replicas: usize, more: &[&str]) -> Self {
        let mut servers = Vec::new();
        for _ in 0..primaries * (1 + replicas) {
            let arguments = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "1500",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-ping-replica-period",
                "1",
            ];
            servers.push(Server::start(&[&arguments, more].concat()).await);
        }
        let cluster = Self { primaries, servers };
        cluster.join().await;
        cluster
    }

    async fn join(&self) {
        let Some((first, others)) = self.servers.split_first() else { return };
        for (index, server) in self.servers.iter().enumerate() {
            let epoch = (index + 1).to_string();
            server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
        }
        for server in others {
            // A node gives an introduction up after its time-out, which a busy machine exceeds.
            let (id, port) =
                (first.text(&["CLUSTER", "MYID"]).await, first.best_port().to_string());
            eventually("the node has met the first one", || async {
                let nodes = server.text(&["CLUSTER", "NODES"]).await;
                let met = nodes.lines().any(|node| node.starts_with(&id));
                if !met {
                    server.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
                }
                met
            })
            .await;
        }
        let share = 16_384 / self.primaries;
        for (index, server) in self.servers.iter().enumerate().take(self.primaries) {
            let last = if index + 1 == self.primaries { 16_383 } else { (index + 1) * share - 1 };
            let (from, to) = ((index * share).to_string(), last.to_string());
            server.ask(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]).await;
        }
        self.settled().await;
        for (index, replica) in self.servers.iter().enumerate().skip(self.primaries) {
            let Some(primary) = self.servers.get(index % self.primaries) else { continue };
            let id = primary.text(&["CLUSTER", "MYID"]).await;
            replica.ask(&["CLUSTER", "REPLICATE", &id]).await;
            let name = format!("port={},state=online,offset=", replica.best_port());
            // Until its first answer the primary keeps back all writes, though the link is up.
            eventually("the replica has answered", || async {
                let info = primary.text(&["INFO", "replication"]).await;
                info.split_once(&name).is_some_and(|(_, offset)| !offset.starts_with("0,"))
            })
            .await;
        }
        self.settled().await;
    }

    /// Waits until every node that runs knows every other one, and says that all slots are served.
    async fn settled(&self) {
        let known = format!("cluster_known_nodes:{}", self.servers.len());
        for server in self.servers.iter().filter(|server| server.child().is_some()) {
            eventually("the cluster is up", || async {
                let info = server.text(&["CLUSTER", "INFO"]).await;
                info.contains("cluster_state:ok") && info.contains(&known)
            })
            .await;
        }
    }

    /// Its nodes: the primaries as it was started, then the replicas, the first of each primary
    /// first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Its address as a metadata store.
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", self.nodes(Server::port))
    }

    /// Its nodes as an address with TLS has them.
    pub fn tls_nodes(&self) -> String {
        self.nodes(Server::best_port)
    }

    fn nodes(&self, port: fn(&Server) -> u16) -> String {
        let primaries = self.servers.iter().take(self.primaries);
        let nodes: Vec<_> = primaries.map(|server| format!("127.0.0.1:{}", port(server))).collect();
        nodes.join(",")
    }

    /// Removes everything from it.
    pub async fn flush(&self) {
        for server in self.servers.iter().take(self.primaries) {
            server.ask(&["FLUSHALL"]).await;
        }
    }
}

/// Waits until something holds.
///
/// # Panics
/// When it doesn't within half a minute.
pub async fn eventually<Holds: Future<Output = bool>>(what: &str, holds: impl Fn() -> Holds) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let end = clock.monotonic() + TIMEOUT;
    while !holds().await {
        assert!(clock.monotonic() < end, "{what}: not within {TIMEOUT:?}");
        clock.sleep(Duration::from_millis(20)).await;
    }
}

/// A port that nobody has, with room for the port of the cluster's bus above it. Both are below
/// those that the kernel gives to connections, which come and go all the time.
fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let start = std::process::id().wrapping_mul(101);
        let number = start.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 10_000 + u16::try_from(number).expect("below 12,000");
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}
