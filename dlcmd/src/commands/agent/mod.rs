//! `dlcmd agent`: the process with the cache of a training job on this machine.
//!
//! Must hold: `start` returns when the agent serves the dataset; a started agent lives on without
//! the command.

mod clean;
mod log;
mod prefetch;
mod serve;
mod show;
mod started;
mod tiers;

use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use dl_agent::{Budget, Eviction, PeerAddress, PeerConfig, PeerTls, Policy, Status};
use dl_runtime::units;
use libdiesel::{TaskOptions, agent};

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::escaped;
pub(crate) use log::begin as begin_log;
use tiers::Tiers;

/// Hold the chunks of datasets in memory for the processes of a training job on this machine
///
/// Processes of the same task read from one copy in shared memory, filled by the agent. The first
/// process of a task starts the agent by itself, and the agent ends 10 s after the last process.
/// Use `start` for an agent that runs before the job, or with other settings.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd agent start dl://imagenet --task resnet-7 --memory 64GiB --policy oneshot
  dlcmd agent prefetch dl://imagenet/val --task resnet-7 --wait
  dlcmd agent status --task resnet-7
  dlcmd agent stop --task resnet-7
  dlcmd agent start dl://imagenet --task resnet-7 --tiers memory:8GiB,/nvme:200GiB
  dlcmd agent clean /nvme --older 7d --dry-run")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    #[command(flatten)]
    OfTask(TaskAction),
    /// Remove copies of chunks from a folder of --tiers, of the datasets that no agent has open
    Clean(clean::Clean),
}

/// An action for the agent of a task.
#[derive(Debug, Subcommand)]
enum TaskAction {
    /// Start the agent, unless running, and return when the dataset is served
    Start(Start),
    /// Run the agent in the foreground
    Run(Settings),
    /// Show the state of the agent
    Status,
    /// Have the agent fetch files ahead, as far as memory goes
    Prefetch(prefetch::Prefetch),
    /// Stop the agent: processes of the task then read from the servers, or start another agent
    Stop,
    /// Start the agent process
    #[command(hide = true)]
    Spawn(Settings),
    /// Run the agent with the listener at stdin and the lock at stdout
    #[command(hide = true)]
    Serve(Settings),
}

#[derive(Debug, Args)]
struct Start {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Address,

    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
struct Settings {
    /// Memory for chunks, as in 64GiB [default: half of the free memory]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Memory and folders on local disks for chunks, each with its size, as in
    /// memory:8GiB,/nvme/diesel:200GiB. Each folder is shared with the other jobs of the user
    #[arg(long, value_name = "TIERS", env = "DIESEL_AGENT_TIERS")]
    tiers: Option<String>,

    /// Which dataset leaves a full folder of --tiers, among those that no agent has open: keep
    /// (none), lru, lfu or fifo [default: lru]
    #[arg(long, value_name = "WHICH", env = "DIESEL_AGENT_DISK_EVICT")]
    disk_evict: Option<Eviction>,

    /// When chunks are fetched: ahead along the order, all at once as far as memory goes, or only
    /// for a waiting process [default: on-demand]
    #[arg(long, value_name = "POLICY", value_enum)]
    policy: Option<PolicyName>,

    /// Which kept chunk leaves memory for a chunk that is read in no order: keep (none), lru, lfu or
    /// fifo. Along an order none leaves [default: keep]
    #[arg(long, value_name = "WHICH", env = "DIESEL_AGENT_EVICT")]
    evict: Option<Eviction>,

    /// Address for the agents of other machines, as HOST or HOST:PORT; none for no connections
    /// between agents [default: the address of this machine on the route to the servers]
    #[arg(long, value_name = "HOST:PORT", env = "DIESEL_PEER_ADDRESS")]
    peer_address: Option<String>,

    /// Whether the agents of the task use TLS with each other, the same for all agents: auto
    /// follows the scheme of the servers
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", env = "DIESEL_PEER_TLS")]
    peer_tls: PeerTlsName,

    /// How long the agent lives without a process of the task [default: 10m, or 10s for an agent
    /// started by a process of the task]
    #[arg(long, value_name = "TIME")]
    idle: Option<String>,
}

/// The choice of the chunks that an agent keeps.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PolicyName {
    Oneshot,
    OnDemand,
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PeerTlsName {
    Auto,
    On,
    Off,
}

/// Default lifetime of an agent without processes.
const IDLE: Duration = Duration::from_secs(10 * 60);
const IDLE_OF_WORKERS: Duration = Duration::from_secs(10);

/// The settings of an agent.
#[derive(Debug)]
struct AgentPlan {
    memory: Budget,
    /// Whether no memory was given.
    is_memory_usual: bool,
    tiers: Tiers,
    disk_eviction: Eviction,
    policy: Policy,
    eviction: Eviction,
    peers: PeerConfig,
    idle: Option<Duration>,
}

impl Settings {
    fn plan(&self) -> Result<AgentPlan, Failure> {
        let tiers = self.tiers.as_deref().map(Tiers::parse).transpose()?.unwrap_or_default();
        let memory = self.memory.as_ref().map(|text| {
            units::size(text).ok_or_else(|| {
                let text = escaped(text.as_bytes());
                Failure::usage(format!("--memory {text}: type a size such as 512MiB or 64GiB"))
            })
        });
        // A size on the command line is meant more than the environment's tiers.
        let memory = memory.transpose()?.or(tiers.memory);
        let idle = self.idle.as_ref().map(|text| {
            units::duration(text).ok_or_else(|| {
                let text = escaped(text.as_bytes());
                Failure::usage(format!("--idle {text}: type a time such as 30s, 10m or 2h"))
            })
        });
        let policy = match self.policy {
            Some(PolicyName::Oneshot) => Policy::OneShot,
            Some(PolicyName::OnDemand) | None => Policy::OnDemand,
            Some(PolicyName::None) => Policy::None,
        };
        let address = match &self.peer_address {
            None => PeerAddress::default(),
            Some(text) => text.parse().map_err(|why| {
                Failure::usage(format!("--peer-address {}: {why}", escaped(text.as_bytes())))
            })?,
        };
        let tls = match self.peer_tls {
            PeerTlsName::Auto => PeerTls::AsServers,
            PeerTlsName::On => PeerTls::On,
            PeerTlsName::Off => PeerTls::Off,
        };
        Ok(AgentPlan {
            memory: memory.map_or_else(Budget::default, Budget),
            is_memory_usual: memory.is_none(),
            tiers,
            disk_eviction: self.disk_evict.unwrap_or(Eviction::Lru),
            policy,
            eviction: self.evict.unwrap_or_default(),
            peers: PeerConfig { address, tls },
            idle: idle.transpose()?,
        })
    }

    /// The settings as arguments of another process.
    fn arguments(&self, idle: Option<&str>) -> Vec<String> {
        let name = |value: PossibleValue| value.get_name().to_owned();
        let policy = self.policy.as_ref().and_then(PolicyName::to_possible_value);
        let given = [
            ("--policy", policy.map(name)),
            ("--evict", self.evict.map(|eviction| eviction.name().to_owned())),
            ("--peer-tls", self.peer_tls.to_possible_value().map(name)),
            ("--memory", self.memory.clone()),
            ("--tiers", self.tiers.clone()),
            ("--disk-evict", self.disk_evict.map(|eviction| eviction.name().to_owned())),
            ("--idle", idle.map(str::to_owned)),
            ("--peer-address", self.peer_address.clone()),
        ];
        let given = given.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().collect()
    }
}

/// Runs the command.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    match arguments.action {
        Action::Clean(arguments) => clean::run(arguments, context, out),
        Action::OfTask(action) => run_for_task(action, context, out),
    }
}

fn run_for_task(
    action: TaskAction,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let task = task(context)?;
    match action {
        TaskAction::Start(Start { dataset, settings }) => {
            whole_dataset("agent start", &dataset)?;
            let plan = settings.plan()?;
            plan.tiers.missing().map_or(Ok(()), |why| Err(Failure::usage(why)))?;
            let idle = format!("{}s", plan.idle.unwrap_or(IDLE).as_secs());
            let task = TaskOptions { arguments: settings.arguments(Some(&idle)), ..task };
            let notes = agent::start(&context.options, &task, &dataset.dataset)?;
            notes.iter().for_each(|note| context.notes.note(note));
            started::report(&settings, context, &task, out)
        }
        TaskAction::Run(settings) => {
            let plan = settings.plan()?;
            plan.tiers.missing().map_or(Ok(()), |why| Err(Failure::usage(why)))?;
            serve::in_foreground(plan, context, &task)
        }
        TaskAction::Spawn(settings) => serve::spawn(&settings, &task),
        TaskAction::Serve(settings) => serve::from_worker(settings.plan()?, context, &task),
        TaskAction::Status => show::run(context, &task, out),
        TaskAction::Prefetch(arguments) => prefetch::run(arguments, context, &task, out),
        TaskAction::Stop => {
            agent::stop(&context.options, &task)?;
            Ok(Exit::Done)
        }
    }
}

/// The state of the task's agent.
pub(crate) fn status(context: &Context) -> Result<Status, Failure> {
    show::status(context, &task(context)?)
}

/// The task on the command line, else the task of this session.
fn task(context: &Context) -> Result<TaskOptions, Failure> {
    let task = context.task.clone().or_else(TaskOptions::of_process);
    task.ok_or_else(|| Failure::usage("name the training job: --task NAME"))
}
