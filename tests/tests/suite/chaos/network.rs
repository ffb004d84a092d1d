//! A server in a network namespace, whose link to a Redis Cluster is cut for a while; the link to
//! the bucket stays.
//!
//! Must hold: the namespace ends with the test. A machine without namespaces skips the test.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_format::{ChunkShape, DatasetName};
use dl_meta::redis_testing::Cluster;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::history::HistoryChecker;
use dl_tests::http::{becomes, becomes_well};
use dl_tests::program::{Server, program, run};
use dl_tests::s3::{Kind, S3, settings};
use dl_tests::scene::Scene;
use dl_tests::{rounds, skip};
use libdiesel::{Client, ConnectOptions};
use tokio::runtime::Runtime;

use super::writer::{Access, Writer};
use super::{HASTE, NAME, TIMEOUT, again, compare, connect, counted};

/// The duration of the cut: longer than a command may take.
const CUT: Duration = Duration::from_secs(7);

/// A network namespace with two links: the first to Redis, the second to the bucket and from the
/// clients.
struct Network {
    name: String,
    net: u8,
}

impl Network {
    /// Creates the namespace; none if the machine refuses.
    fn new() -> Result<Option<Self>> {
        let id = std::process::id();
        let network = Self { name: format!("dl{id}"), net: u8::try_from(id % 200)? };
        let made = (|| {
            ip(&["netns", "add", &network.name])?;
            for (line, number) in [("r", 0), ("c", 1)] {
                let (here, there) = (network.line(line), format!("{line}0"));
                let peer = ["peer", "name", &there, "netns", &network.name];
                ip(&[&["link", "add", &here, "type", "veth"][..], &peer].concat())?;
                ip(&["addr", "add", &format!("{}/24", network.address(number, 1)), "dev", &here])?;
                ip(&["link", "set", &here, "up"])?;
                let inside = format!("{}/24", network.address(number, 2));
                ip(&["-n", &network.name, "addr", "add", &inside, "dev", &there])?;
                ip(&["-n", &network.name, "link", "set", &there, "up"])?;
            }
            ip(&["-n", &network.name, "link", "set", "lo", "up"])
        })();
        match made {
            Ok(()) => Ok(Some(network)),
            Err(why) => {
                skip(format_args!("no network of its own can be made: {why}"))?;
                Ok(None)
            }
        }
    }

    fn line(&self, line: &str) -> String {
        format!("{}{line}", self.name)
    }

    /// The address of an end of a link.
    fn address(&self, line: u8, end: u8) -> String {
        format!("10.{}.{line}.{end}", 50 + self.net)
    }

    /// Sets the state of the first link at its inner end, so that Redis keeps its addresses.
    fn set(&self, state: &str) -> Result<()> {
        ip(&["-n", &self.name, "link", "set", "r0", state])
    }

    /// A dlserver in the namespace.
    fn serve(&self, data: &Path, flags: &[&str], set: &[(String, String)]) -> Result<Server> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program("dlserver")?);
        command.arg("--data").arg(data);
        command.envs(set.iter().map(|(name, value)| (name, value)));
        let listen = format!("{}:0", self.address(1, 2));
        command.args(["--without-keys", "--listen", &listen, "--http", &listen]).args(flags);
        Server::run(command, 2)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The links end with the namespace, unless its creation failed.
        let _ = ip(&["netns", "del", &self.name]);
        for line in ["r", "c"] {
            let _ = ip(&["link", "del", &self.line(line)]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let ended = run(Command::new("ip").args(arguments).stdin(Stdio::null()))?;
    ensure!(ended.code == 0, "ip {}: {}", arguments.join(" "), ended.stderr.trim());
    Ok(())
}

/// Keeps S-01, S-03, S-04 (I4), S-06 and S-07.
#[test]
fn the_line_between_a_server_and_redis_is_cut_and_comes_back() -> Result<()> {
    for round in 0..rounds(1, 5) {
        let Some(network) = Network::new()? else { return Ok(()) };
        let runtime = Runtime::new()?;
        let here = network.address(0, 1);
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no", "--cluster-announce-ip", &here];
        let redis = runtime.block_on(Cluster::start_with(3, 0, &open));
        let bucket = S3::start_on(Kind::S3sFs, &network.address(1, 1))?;
        let scene = Scene::new()?;
        let (meta, store) = (redis.url().replace("127.0.0.1", &here), bucket.fresh());
        let flags = ["--meta", &meta, "--store", &store];
        let (data, set) = (|name: &str| scene.path(name), settings(bucket.address()));
        let beside = Server::start_among(&data("near"), "127.0.0.1:0", &flags, &set)?;
        let inside = network.serve(&data("far"), &flags, &set)?;
        let addresses = vec![inside.address().to_owned(), beside.address().to_owned()];

        let name = DatasetName::new(NAME)?;
        connect(&addresses)?.create_dataset(&name, ChunkShape::default())?;
        let (stop, history) = (Arc::new(AtomicBool::new(false)), Arc::<HistoryChecker>::default());
        // The second writer uses only the server in the namespace.
        let writers: Vec<_> = [&addresses[..], &addresses[..1]]
            .into_iter()
            .zip(0_u8..)
            .map(|(servers, number)| {
                let dice = Dice::new(round * 2 + u64::from(number));
                let dataset = connect(servers)?.dataset(&name)?;
                let mut writer =
                    Writer::new(Access::Library(dataset), Arc::clone(&history), number, dice);
                anyhow::Ok(again(&stop, move || writer.step()))
            })
            .collect::<Result<_>>()?;
        std::thread::sleep(Duration::from_secs(1));
        network.set("down")?;
        let down_at = clock().monotonic();
        becomes(inside.http(), |status, text| status == 503 && text.contains("metadata"))?;
        let options = ConnectOptions {
            servers: addresses[..1].to_vec(),
            request_timeout: HASTE,
            ..ConnectOptions::default()
        };
        let asked = Client::connect(options)?.dataset(&name);
        let is_refused = asked.as_ref().is_err_and(|error| error.kind().is_retryable());
        ensure!(is_refused, "the server still reaches Redis: {asked:?}");
        let felt = clock().monotonic() - down_at;
        ensure!(felt < TIMEOUT, "an answer took {felt:?}");
        std::thread::sleep(CUT.saturating_sub(felt));
        network.set("up")?;
        becomes_well(inside.http())?;
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            ensure!(counted(writer)? > 0, "a writer overwrote nothing that the other one writes");
        }
        let written = history.paths().len();
        ensure!(written > 50, "only {written} files were written");
        compare(&addresses, &history)?;
    }
    Ok(())
}
