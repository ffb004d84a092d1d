//! Simulated machines: network namespaces with a bridge between them, and links that can be cut or
//! slowed down.
//!
//! Must hold: the network of the test machine does not change; namespaces end with the test, even
//! with a killed test.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::program::{Process, run};

/// The address of the bridge, for servers.
pub const HUB: &str = "10.77.0.1";

/// Simulated machines and the namespace of the bridge.
#[derive(Debug)]
pub struct Network {
    hub: Process,
    nodes: Vec<Process>,
}

impl Network {
    /// The reason why this machine can't create namespaces; none if the kernel permits them.
    ///
    /// # Errors
    /// When the probe can't be run.
    pub fn unavailable_reason() -> Result<Option<String>> {
        let probe = "command -v nsenter && command -v tc && command -v ss && ip link add br0 type bridge && ip link add va type veth peer name vb";
        let tried = run(Command::new("unshare").args(["--net", "sh", "-c", probe]))?;
        Ok((tried.code != 0).then(|| format!("no network of its own: {}", tried.stderr)))
    }

    /// Creates `count` machines.
    ///
    /// # Errors
    /// When the kernel refuses a namespace or a link.
    pub fn start(count: usize) -> Result<Self> {
        let nodes = (0..count).map(|_| namespace()).collect::<Result<_>>()?;
        let network = Self { hub: namespace()?, nodes };
        network.at_hub(&format!(
            "ip link set lo up && ip link add br0 type bridge && ip addr add {HUB}/24 dev br0 \
             && ip link set br0 up"
        ))?;
        for (node, process) in network.nodes.iter().enumerate() {
            let id = process.id();
            network.at_hub(&format!(
                "ip link add v{node} type veth peer name eth0 netns {id} \
                 && ip link set v{node} master br0 && ip link set v{node} up"
            ))?;
            let address = format!("10.77.0.{}", node + 10);
            let up = format!(
                "ip link set lo up && ip addr add {address}/24 dev eth0 && ip link set eth0 up"
            );
            shell(process, &up)?;
        }
        Ok(network)
    }

    /// Wraps a command so that it runs on a machine.
    ///
    /// # Errors
    /// When the machine does not exist.
    pub fn inside(&self, node: usize, command: &Command) -> Result<Command> {
        Ok(entered(self.nodes.get(node).context("a machine")?, command))
    }

    /// Wraps a command so that it runs beside the bridge.
    pub fn inside_hub(&self, command: &Command) -> Command {
        entered(&self.hub, command)
    }

    /// Cuts the link of a machine.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn cut(&self, node: usize) -> Result<()> {
        self.at_hub(&format!("ip link set v{node} down"))
    }

    /// Restores the link of a machine.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn heal(&self, node: usize) -> Result<()> {
        self.at_hub(&format!("ip link set v{node} up"))
    }

    /// Drops a machine's packets for the bridge's address; it still reaches the other machines.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn hide_hub(&self, node: usize) -> Result<()> {
        self.at(node, &format!("ip route add blackhole {HUB}/32"))
    }

    /// Ends [`hide_hub`](Self::hide_hub).
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn show_hub(&self, node: usize) -> Result<()> {
        self.at(node, &format!("ip route del blackhole {HUB}/32"))
    }

    /// Limits the traffic to a machine to 500 KB/s.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn slow_down(&self, node: usize) -> Result<()> {
        let shape = "root tbf rate 4mbit burst 32kb latency 500ms";
        self.at_hub(&format!("tc qdisc replace dev v{node} {shape}"))
    }

    /// Removes the limit.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub fn speed_up(&self, node: usize) -> Result<()> {
        self.at_hub(&format!("tc qdisc del dev v{node} root"))
    }

    fn at(&self, node: usize, script: &str) -> Result<()> {
        shell(self.nodes.get(node).context("a machine")?, script)
    }

    fn at_hub(&self, script: &str) -> Result<()> {
        shell(&self.hub, script)
    }
}

/// A process in a new network namespace.
fn namespace() -> Result<Process> {
    let own = fs::read_link("/proc/self/ns/net")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--fork", "--kill-child", "sleep", "3600"]);
    let process = Process::start(&mut command)?;
    for _ in 0..500 {
        let there = fs::read_link(format!("/proc/{}/ns/net", process.id()));
        if there.is_ok_and(|there| there != own) {
            return Ok(process);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("unshare made no network namespace within 5 seconds")
}

fn entered(of: &Process, command: &Command) -> Command {
    let mut entered = Command::new("nsenter");
    entered.arg(format!("--net=/proc/{}/ns/net", of.id()));
    entered.arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => entered.env(name, value),
            None => entered.env_remove(name),
        };
    }
    entered
}

fn shell(of: &Process, script: &str) -> Result<()> {
    let mut command = Command::new("sh");
    let ended = run(&mut entered(of, command.args(["-c", script])))?;
    ensure!(ended.code == 0, "{script}: {}", ended.stderr);
    Ok(())
}
