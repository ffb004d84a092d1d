//! Nodes with shaped links on one machine: network namespaces behind a bridge.
//!
//! Must hold: a namespace ends with the bench. The next bench removes the namespaces of a killed
//! one. A row is skipped only without namespaces, and the output names the reason.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio, id};

use anyhow::{Result, ensure};

/// Prefix of the names of namespaces and links.
const PREFIX: &str = "dlb";

/// Limit of the namespaces.
const NODES_MAX: usize = 16;

/// Namespaces whose links end at one bridge; the servers listen at the bridge.
#[derive(Debug)]
pub(crate) struct Network {
    bridge: String,
    subnet: u8,
    nodes: usize,
}

impl Network {
    /// Makes `nodes` namespaces, each with a link of `megabits` a second in both directions.
    /// Returns `None` on a machine without namespaces.
    pub(crate) fn start(nodes: usize, megabits: u32) -> Result<Option<Self>> {
        ensure!(nodes <= NODES_MAX, "{nodes} namespaces are more than {NODES_MAX}");
        remove_old();
        let subnet = (id() % 250) as u8 + 1;
        // Drop removes a half-made network after a failure.
        let network = Self { bridge: format!("{PREFIX}{}", id()), subnet, nodes };
        match network.make(megabits) {
            Ok(()) => Ok(Some(network)),
            Err(why) => {
                writeln!(std::io::stderr(), "skipped: no network namespaces here: {why:#}")?;
                Ok(None)
            }
        }
    }

    /// Address of the servers for the namespaces.
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.subnet, 1)
    }

    /// Address of a namespace.
    pub(crate) fn address_of(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.subnet, node as u8 + 10)
    }

    pub(crate) fn namespace(&self, node: usize) -> String {
        format!("{}n{node}", self.bridge)
    }

    fn make(&self, megabits: u32) -> Result<()> {
        let bridge = &self.bridge;
        execute("ip", &format!("link add {bridge} type bridge"))?;
        execute("ip", &format!("addr add {}/24 dev {bridge}", self.address()))?;
        execute("ip", &format!("link set {bridge} up"))?;
        for node in 0..self.nodes {
            let (name, outside) = (self.namespace(node), format!("{bridge}v{node}"));
            let shape = format!("root tbf rate {megabits}mbit burst 256kb latency 50ms");
            execute("ip", &format!("netns add {name}"))?;
            execute("ip", &format!("link add {outside} type veth peer name eth0 netns {name}"))?;
            execute("ip", &format!("link set {outside} master {bridge} up"))?;
            execute("tc", &format!("qdisc add dev {outside} {shape}"))?;
            execute("ip", &format!("-n {name} addr add {}/24 dev eth0", self.address_of(node)))?;
            execute("ip", &format!("-n {name} link set lo up"))?;
            execute("ip", &format!("-n {name} link set eth0 up"))?;
            execute("tc", &format!("-n {name} qdisc add dev eth0 {shape}"))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in 0..self.nodes {
            // The outer veth ends at once; the inner veth exists as long as a process of the
            // namespace.
            let _ = execute("ip", &format!("link del {}v{node}", self.bridge));
            let _ = execute("ip", &format!("netns del {}", self.namespace(node)));
        }
        let _ = execute("ip", &format!("link del {}", self.bridge));
    }
}

/// Removes the networks of killed benches.
fn remove_old() {
    for (arguments, remove) in
        [("-o link show type bridge", "link del"), ("netns list", "netns del")]
    {
        let listed = Command::new("ip").args(arguments.split(' ')).output();
        let text = listed.map(|listed| listed.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        for name in text.split([' ', ':', '\n']).filter(|word| is_left(word)) {
            let _ = execute("ip", &format!("{remove} {name}"));
        }
    }
}

/// True for the name of an ended process.
fn is_left(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let process = rest.split('n').next().unwrap_or_default();
    process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists()
}

fn execute(program: &str, arguments: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).stdin(Stdio::null());
    let out = command.output()?;
    let message = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{program} {arguments}: {}", message.trim());
    Ok(())
}

/// The command in a network namespace, or unchanged for `None`.
pub(crate) fn within(namespace: Option<&str>, command: &Command) -> Command {
    let program = command.get_program();
    let mut inside = match namespace {
        None => Command::new(program),
        Some(namespace) => {
            let mut inside = Command::new("ip");
            inside.args(["netns", "exec", namespace]).arg(program);
            inside
        }
    };
    inside.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::is_left;

    #[test]
    fn only_names_of_ended_processes_are_left() {
        assert!(is_left("dlb4294967295") && is_left("dlb4294967295n3"));
        assert!(!is_left(&format!("dlb{}n0", std::process::id())));
        assert!(!is_left("docker0") && !is_left("dlb"));
    }
}
