//! A connection to a Redis process: checks the process, reads its run, and loads the scripts.
//!
//! Must hold: a process that may drop keys, or differs from the address, is refused before any question, and
//! as soon as a check finds a change. After a process may have dropped keys, the marks of its shards are
//! removed: every server then counts the shards as lost.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use dl_runtime::address::ClientFiles;
use dl_runtime::{blocking, locked, pem};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    RedisConnectionInfo, TlsCertificates, Value,
};

use super::address::{Address, Node};
use super::command::strings;
use super::failure::{Failure, Verdict};
use super::slots::{SHARDS, Shard};
use super::{RedisOptions, keys, scripts};
use crate::{Kind, Refusal};

/// A connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// The run of the process; changes with a restart and with a failover.
    pub(super) run: Arc<str>,
}

/// Whether the other end accepted a connection and closed it.
fn is_cut(error: &redis::RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// The numbers of dropped keys, by node, at the last look.
#[derive(Debug, Default)]
pub(super) struct Dropped(Mutex<HashMap<Node, Look>>);

#[derive(Debug)]
struct Look {
    run: Arc<str>,
    keys: u64,
    /// Whether the policy may drop any key. A `volatile-` policy drops only keys of training jobs.
    any: bool,
}

impl Dropped {
    /// Whether a node may have dropped our keys since the last look, whatever its policy is now.
    fn has_grown(&self, node: &Node, info: &Info) -> bool {
        let any = !info.get("maxmemory_policy").starts_with("volatile-");
        let keys = info.get("evicted_keys").parse().unwrap_or_default();
        let run = info.run();
        let mut looks = locked(&self.0);
        let before = looks.insert(node.clone(), Look { run: Arc::clone(&run), keys, any });
        before.is_some_and(|look| look.run == run && keys > look.keys && look.any && any)
    }
}

/// The answer to INFO.
pub(super) struct Info(pub(super) String);

impl Info {
    pub(super) fn get<'a>(&'a self, field: &str) -> &'a str {
        let value = |line: &'a str| line.strip_prefix(field)?.strip_prefix(':');
        self.0.lines().find_map(value).unwrap_or_default().trim()
    }

    /// Whether the process makes room by dropping any key.
    fn drops_keys(&self) -> bool {
        self.get("maxmemory_policy").starts_with("allkeys-")
    }

    /// The run: the process, and the history of its data, which changes when a replica takes over.
    pub(super) fn run(&self) -> Arc<str> {
        format!("{}:{}", self.get("run_id"), self.get("master_replid")).into()
    }
}

impl Link {
    pub(super) async fn open(
        node: &Node,
        address: &Address,
        options: &RedisOptions,
        dropped: &Dropped,
    ) -> Result<Self, Verdict> {
        let client = client(node, address).await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.command_timeout));
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connected.map_err(|error| match Verdict::of(&error) {
            // A port without TLS does not answer.
            Verdict::Lost(why) if address.is_tls && error.is_timeout() => Verdict::Lost(format!(
                "{why}; if that port speaks plain text, write redis or redis-cluster before ://"
            )),
            Verdict::Lost(why) if !address.is_tls && is_cut(&error) => Verdict::Lost(format!(
                "{why}; if that port speaks TLS, write rediss or rediss-cluster before ://"
            )),
            verdict => verdict,
        })?;
        let info = info(&mut connection, node).await?;
        let link = Self { connection: connection.clone(), run: info.run() };
        link.check(&info, address, node, dropped).await?;
        warn_of_loss(&mut connection, &info, node).await;
        link.load(node).await?;
        tracing::debug!(
            %node, version = info.get("redis_version"), valkey = info.get("valkey_version"),
            "connected to Redis"
        );
        Ok(link)
    }

    pub(super) async fn load(&self, node: &Node) -> Result<(), Verdict> {
        let mut pipeline = redis::pipe();
        for script in scripts::all() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.code);
        }
        for answer in self.send(&pipeline).await? {
            if let Value::ServerError(error) = answer {
                return Err(Verdict::on(&error, node));
            }
        }
        Ok(())
    }

    pub(super) async fn send(&self, pipeline: &redis::Pipeline) -> Result<Vec<Value>, Verdict> {
        let count = pipeline.len();
        let sent = self.connection.clone().send_packed_commands(pipeline, 0, count).await;
        let answers = sent.map_err(|error| Verdict::of(&error))?;
        if answers.len() == count {
            Ok(answers)
        } else {
            Err(Verdict::Lost("Redis gave fewer answers than it was asked".to_owned()))
        }
    }

    /// The run of the process, if the process is still fit.
    pub(super) async fn current_run(
        &self,
        address: &Address,
        node: &Node,
        dropped: &Dropped,
    ) -> Result<Arc<str>, Verdict> {
        let info = info(&mut self.connection.clone(), node).await?;
        self.check(&info, address, node, dropped).await?;
        Ok(info.run())
    }

    /// Why the process takes no writes of so many bytes; `shard` is a shard of the process. The writes change
    /// nothing, as their key does not exist. Redis refuses them like any write: without memory (OOM), after a
    /// failed write of a snapshot or log (MISCONF), without enough replicas (NOREPLICAS).
    pub(super) async fn probe(
        &self,
        node: &Node,
        shard: Shard,
        length: usize,
    ) -> Result<Option<Refusal>, Verdict> {
        let key = keys::nothing(shard).bytes;
        let mut pipeline = redis::Pipeline::with_capacity(2);
        // First: full memory must not hide a Redis without any writes.
        pipeline.cmd("UNLINK").arg(&key);
        pipeline.cmd("SET").arg(&key).arg(vec![0_u8; length].as_slice()).arg("XX");
        let answers = self.send(&pipeline).await?;
        Ok(answers.iter().find_map(|answer| refusal_by(answer, node)))
    }

    /// Refuses a process that would lose keys, or differs from the address.
    async fn check(
        &self,
        info: &Info,
        address: &Address,
        node: &Node,
        dropped: &Dropped,
    ) -> Result<(), Verdict> {
        let fit = check(info, address, node);
        let was_dropped = dropped.has_grown(node, info);
        if was_dropped || info.drops_keys() && !matches!(info.get("evicted_keys"), "" | "0") {
            tracing::error!(%node, "this Redis has dropped keys: some metadata may be lost");
            let mut pipeline = redis::Pipeline::with_capacity(SHARDS);
            for shard in Shard::all() {
                // By its text: the node may not have the script yet.
                let script = pipeline.cmd("EVAL").arg(scripts::DROPPED.code);
                script.arg(1).arg(keys::shard_mark(shard).bytes);
            }
            // The node refuses shards of other nodes. A database without marks is not ours.
            self.send(&pipeline).await?;
        }
        match fit {
            // Earlier answers of the node are doubtful.
            Ok(()) if was_dropped => Err(Verdict::Lost("it has dropped keys".to_owned())),
            fit => fit,
        }
    }
}

/// The refusal shown by the answer to a probe.
fn refusal_by(answer: &Value, node: &Node) -> Option<Refusal> {
    let Value::ServerError(error) = answer else { return None };
    match error.code() {
        "OOM" => Some(Refusal::Full(format!(
            "the Redis at {node} has reached its maxmemory: raise it, add primaries to the cluster, or \
             delete something and run `dlcmd purge`"
        ))),
        code @ ("MISCONF" | "NOREPLICAS") => {
            let details = error.details().unwrap_or_default();
            Some(Refusal::All(format!("the Redis at {node} takes no writes: {code} {details}")))
        }
        _ => None,
    }
}

async fn client(node: &Node, address: &Address) -> Result<Client, Verdict> {
    let (host, port) = (node.host.to_string(), node.port);
    let to = if address.is_tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    };
    let mut login = RedisConnectionInfo::default().set_db(address.database);
    if let Some(user) = &address.user {
        login = login.set_username(user);
    }
    if let Some(password) = &address.password {
        login = login.set_password(password);
    }
    let information = to.into_connection_info().map_err(|error| unusable(error.to_string()))?;
    let information = information
        .set_redis_settings(login)
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = match (&address.files.ca, &address.files.client) {
        (None, None) => Client::open(information),
        (ca, client) => {
            let root_cert = match ca {
                Some(file) => Some(read(file, certificates).await?),
                None => None,
            };
            let client_tls = match client {
                Some(ClientFiles { cert, key }) => {
                    let client_cert = read(cert, certificates).await?;
                    let client_key = read(key, |text| pem::private_key(text).map(drop)).await?;
                    Some(ClientTlsConfig { client_cert, client_key })
                }
                None => None,
            };
            Client::build_with_tls(information, TlsCertificates { client_tls, root_cert })
        }
    };
    client.map_err(|error| unusable(error.to_string()))
}

fn unusable(why: String) -> Verdict {
    Verdict::Fatal(Failure::because(Kind::Unsupported, why))
}

fn certificates(text: &[u8]) -> Result<(), &'static str> {
    pem::certificates(text).map(drop)
}

/// Reads a file of TLS settings. Wrong contents are refused here: `redis` would print them.
async fn read(
    file: &Path,
    check: fn(&[u8]) -> Result<(), &'static str>,
) -> Result<Vec<u8>, Verdict> {
    let (shown, file) = (file.display().to_string(), file.to_owned());
    let read = blocking::run(move || fs::read(file)).await;
    let read = read.map_err(|stopped| Verdict::Wait(stopped.to_string()))?;
    let text = read.map_err(|error| unusable(format!("can't read {shown}: {error}")))?;
    check(&text).map_err(|why| unusable(format!("can't use {shown}: {why}")))?;
    Ok(text)
}

async fn info(connection: &mut MultiplexedConnection, node: &Node) -> Result<Info, Verdict> {
    let answer = connection.send_packed_command(&redis::cmd("INFO")).await;
    match answer.map_err(|error| Verdict::of(&error))? {
        Value::BulkString(bytes) => Ok(Info(String::from_utf8_lossy(&bytes).into_owned())),
        Value::VerbatimString { text, .. } => Ok(Info(text)),
        Value::ServerError(error) => Err(Verdict::on(&error, node)),
        _ => Err(Verdict::Fatal(Failure::unexpected())),
    }
}

fn check(info: &Info, address: &Address, node: &Node) -> Result<(), Verdict> {
    let refuse = |why: String| Err(Verdict::Fatal(Failure::because(Kind::Unsupported, why)));
    let policy = info.get("maxmemory_policy");
    if info.drops_keys() {
        return refuse(format!(
            "the Redis at {node} drops keys when its memory is full (maxmemory-policy {policy}): \
             set maxmemory-policy noeviction in its configuration"
        ));
    }
    match (info.get("cluster_enabled") == "1", address.is_cluster) {
        (true, false) => refuse(format!(
            "the Redis at {node} is part of a cluster: write redis-cluster:// (or rediss-cluster://)"
        )),
        (false, true) => refuse(format!(
            "the Redis at {node} is not part of a cluster: write redis:// (or rediss://)"
        )),
        _ => Ok(()),
    }
}

/// Warns when a restart would empty the Redis. Without the right to read settings, there is no warning.
async fn warn_of_loss(connection: &mut MultiplexedConnection, info: &Info, node: &Node) {
    if info.get("aof_enabled") != "0" {
        return;
    }
    // During a sync from a primary, a process reports `aof_enabled:0` whatever its settings are.
    let is_set = |value: Option<Vec<u8>>, to: &[u8]| value.is_some_and(|value| value == to);
    let no_save = is_set(setting(connection, "save").await, b"")
        && is_set(setting(connection, "appendonly").await, b"no");
    if no_save {
        tracing::warn!(
            %node,
            "this Redis keeps nothing on disk: after a restart all its metadata has to be \
             recovered from the chunks; set `appendonly yes`"
        );
    }
}

async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<Vec<u8>> {
    let mut cmd = redis::cmd("CONFIG");
    let answer = connection.send_packed_command(cmd.arg("GET").arg(name)).await;
    strings(answer.ok()?).ok()?.into_iter().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_by_whole_names() {
        let info = Info("# Server\r\nrun_id:abc\r\nrun_idx:no\r\nmaster_replid:def\r\n".to_owned());
        assert_eq!((&*info.run(), info.get("run"), info.get("nothing")), ("abc:def", "", ""));
    }

    #[test]
    fn dropped_keys_are_noticed_and_expired_ones_are_not() {
        let node =
            |url| Address::parse(url).expect("of Redis").expect("an address").nodes.remove(0);
        let (first, second) = (node("redis://h:1"), node("redis://h:2"));
        let info = |run: &str, policy: &str, keys: u32| {
            Info(format!("run_id:{run}\r\nmaxmemory_policy:{policy}\r\nevicted_keys:{keys}\r\n"))
        };
        let dropped = Dropped::default();
        for (node, run, policy, keys, expected) in [
            (&first, "a", "noeviction", 7, false),
            (&first, "a", "noeviction", 7, false),
            (&second, "b", "noeviction", 9, false),
            (&first, "a", "noeviction", 8, true),
            (&first, "a", "volatile-lru", 9, false),
            (&first, "a", "volatile-lru", 10, false),
            (&first, "a", "allkeys-lru", 11, false),
            (&first, "a", "noeviction", 12, true),
            (&first, "c", "noeviction", 13, false),
            (&first, "c", "noeviction", 0, false),
            (&second, "b", "noeviction", 10, true),
        ] {
            let has_grown = dropped.has_grown(node, &info(run, policy, keys));
            assert_eq!(has_grown, expected, "{node} {run} {policy} {keys}");
        }
    }

    #[test]
    fn a_cluster_is_known_as_one_by_redis_and_by_valkey() {
        let address = |url: &str| Address::parse(url).expect("of Redis").expect("an address");
        let (single, cluster) = (address("redis://h:1"), address("redis-cluster://h:1"));
        for (mode, is_cluster) in [
            ("redis_mode:cluster\r\n# Cluster\r\ncluster_enabled:1", true),
            ("server_mode:cluster\r\n# Cluster\r\ncluster_enabled:1", true),
            ("redis_mode:standalone\r\n# Cluster\r\ncluster_enabled:0", false),
        ] {
            let (info, node) = (Info(mode.to_owned()), &single.nodes[0]);
            assert_eq!(check(&info, &cluster, node).is_ok(), is_cluster, "{mode}");
            assert_eq!(check(&info, &single, node).is_ok(), !is_cluster, "{mode}");
        }
    }
}
