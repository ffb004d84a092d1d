//! Redis processes, alone or as a cluster, and the rates of redis-benchmark.
//!
//! Must hold: no process or file of Redis survives the bench. Both sides of a ratio run on the same
//! machine, in turns.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_runtime::{OsRandom, Random};

use super::{Process, finish};

/// A redis-server without files on disk.
#[derive(Debug)]
pub(crate) struct Redis {
    process: Process,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Redis {
    pub(crate) fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    fn start_with(more: &[&str]) -> Result<Self> {
        let (port, folder) = (free_port()?, tempfile::tempdir()?);
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no", "--dir"]).arg(folder.path()).args(more);
        let is_there = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let process = Process::listening(&mut command, is_there)?;
        Ok(Self { process, port, _folder: folder })
    }

    /// URL as a metadata store.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// Runs a redis-cli command.
    pub(crate) fn execute(&self, command: &[&str]) -> Result<()> {
        finish(Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(command))
    }

    /// Requests a second of one redis-benchmark test, `GET` or `SET`, with `settings`.
    pub(crate) fn rate(&self, test: &str, settings: &[&str]) -> Result<f64> {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &self.port.to_string(), "-t", "set,get", "-q", "--csv"]);
        let out = command.args(settings).output().context("start redis-benchmark")?;
        let text = String::from_utf8_lossy(&out.stdout);
        let name = format!("\"{test}\",\"");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        let rate = line.and_then(|line| line.split('"').next()?.parse().ok());
        rate.with_context(|| format!("redis-benchmark said {text:?}"))
    }

    /// Lookups a second of Redis alone: one row of a folder of a thousand, in pipelines of 64 as
    /// servers send them. The client ignores the answers.
    pub(crate) fn lookups(&self, count: u32) -> Result<f64> {
        let (port, count) = (self.port.to_string(), count.to_string());
        let fill = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], 0, \
                    string.format('n01440764_%05d.JPEG!', i) .. string.rep('x', 70)) end";
        self.execute(&["EVAL", fill, "1", "rows"])?;
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", "64", "-P", "64", "-n", &count, "-q", "--csv"]);
        let (low, high) = ("[n01440764_00500.JPEG!", "(n01440764_00500.JPEG~");
        command.args(["ZRANGEBYLEX", "rows", low, high, "LIMIT", "0", "2"]);
        let out = command.output().context("start redis-benchmark")?;
        let text = String::from_utf8_lossy(&out.stdout);
        let rate =
            text.lines().next_back().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
        rate.with_context(|| format!("redis-benchmark said {text:?}"))
    }
}

/// A Redis Cluster of primaries with equal shares.
#[derive(Debug)]
pub(crate) struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    pub(crate) fn start(primaries: usize) -> Result<Self> {
        let nodes = (0..primaries).map(|_| Redis::start_with(&["--cluster-enabled", "yes"]));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(addresses).arg("--cluster-yes");
        finish(&mut create)?;
        Ok(Self { nodes })
    }

    /// URL as a metadata store.
    pub(crate) fn url(&self) -> String {
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }
}

/// A free port below the ports of connections. The cluster port, 10,000 above, is free too.
fn free_port() -> Result<u16> {
    for _ in 0..1_000 {
        let port = 10_000 + u16::try_from(OsRandom.u64() % 12_000)?;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return Ok(port);
        }
    }
    anyhow::bail!("find a free port");
}

/// Processor time of the processes so far, in seconds.
pub(crate) fn processor_seconds(processes: &[u32]) -> Result<f64> {
    let mut ticks = 0u64;
    for id in processes {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name in brackets may contain blanks.
        let fields = stat.rsplit_once(')').context("read /proc")?.1.split_whitespace();
        let times: Vec<u64> = fields.skip(11).take(2).flat_map(str::parse).collect();
        ensure!(times.len() == 2, "/proc/{id}/stat has another form");
        ticks += times.iter().sum::<u64>();
    }
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}
