//! `dlcmd agent`: the process that holds the cache of a training job on this machine.
//!
//! Must hold: `start` returns when the agent serves the dataset; an agent that was started lives on
//! without the command.

mod prefetch;
mod serve;
mod show;

use std::time::Duration;

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use dl_agent::{Budget, PeerAddress, PeerConfig, PeerTls, Policy, Status};
use libdiesel::{TaskOptions, agent};

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{bytes_of, escaped};
use crate::time;

/// Hold the chunks of datasets in memory for the processes of a training job on this machine
///
/// Processes that name the same task read out of one copy in shared memory, which the agent fills. The
/// first process of a task starts the agent by itself, which ends 10 s after the last one: `start` is
/// for an agent that is there before, or with other settings than the usual ones.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd agent start dl://imagenet --task resnet-7 --memory 64GiB --policy oneshot
  dlcmd agent prefetch dl://imagenet/val --task resnet-7 --wait
  dlcmd agent status --task resnet-7
  dlcmd agent stop --task resnet-7")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the agent, unless it runs, and return when it serves the dataset
    Start(Start),
    /// Be the agent, until it is stopped
    Run(Settings),
    /// Show what the agent does
    Status,
    /// Have the agent bring files into memory before they are read, as far as memory goes
    Prefetch(prefetch::Prefetch),
    /// End the agent: processes of the task read from the servers from then on, or start another one
    Stop,
    /// Start the process that is the agent
    #[command(hide = true)]
    Spawn(Settings),
    /// Be the agent, with the listener at stdin and the lock at stdout
    #[command(hide = true)]
    Serve(Settings),
}

#[derive(Debug, Args)]
struct Start {
    /// The dataset
    #[arg(
        value_name = "dl://DS",
        value_parser = OsStringValueParser::new().try_map(Address::from_argument)
    )]
    dataset: Address,

    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Args)]
struct Settings {
    /// Memory for chunks, as in 64GiB [default: half of what is free]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// When chunks are fetched: those that are read or about to be, all at once as far as memory
    /// goes, or only those that a process waits for
    #[arg(long, value_name = "POLICY", value_enum, default_value = "on-demand")]
    policy: PolicyName,

    /// Where the agents of other machines reach this one, as HOST or HOST:PORT; none for an agent that
    /// speaks to no other one [default: the address of this machine on the way to the servers]
    #[arg(long, value_name = "HOST:PORT", env = "DIESEL_PEER_ADDRESS")]
    peer_address: Option<String>,

    /// Whether the agents of the task speak TLS with each other, the same for all of them: where a
    /// server is reached by https, always or never
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto", env = "DIESEL_PEER_TLS")]
    peer_tls: PeerTlsName,

    /// How long the agent lives without a process of the task [default: 10m, or 10s where a process
    /// of the task starts it]
    #[arg(long, value_name = "TIME")]
    idle: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicyName {
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

/// How long an agent that nobody else keeps alive waits for processes.
const IDLE: Duration = Duration::from_secs(10 * 60);
const IDLE_OF_WORKERS: Duration = Duration::from_secs(10);

/// What an agent is told.
#[derive(Debug)]
struct Plan {
    memory: Budget,
    policy: Policy,
    peers: PeerConfig,
    idle: Option<Duration>,
}

impl Settings {
    fn plan(&self) -> Result<Plan, Failure> {
        let memory = match &self.memory {
            None => Budget::default(),
            Some(text) => Budget(bytes_of(text).ok_or_else(|| {
                let text = escaped(text.as_bytes());
                Failure::usage(format!("--memory {text}: type a size such as 512MiB or 64GiB"))
            })?),
        };
        let idle = self.idle.as_ref().map(|text| {
            time::duration(text).ok_or_else(|| {
                let text = escaped(text.as_bytes());
                Failure::usage(format!("--idle {text}: type a time such as 30s, 10m or 2h"))
            })
        });
        let policy = match self.policy {
            PolicyName::Oneshot => Policy::OneShot,
            PolicyName::OnDemand => Policy::OnDemand,
            PolicyName::None => Policy::None,
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
        Ok(Plan { memory, policy, peers: PeerConfig { address, tls }, idle: idle.transpose()? })
    }

    /// The choices that have a name, as arguments.
    fn named(&self) -> [String; 4] {
        let name = |value: Option<PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let policy = name(self.policy.to_possible_value());
        let tls = name(self.peer_tls.to_possible_value());
        ["--policy".to_owned(), policy, "--peer-tls".to_owned(), tls]
    }

    /// The same as arguments of another process.
    fn arguments(&self) -> Result<Vec<String>, Failure> {
        let Plan { idle, .. } = self.plan()?;
        let idle = idle.unwrap_or(IDLE).as_secs();
        let mut arguments = Vec::from(self.named());
        arguments.extend(["--idle".to_owned(), format!("{idle}s")]);
        if let Some(memory) = &self.memory {
            arguments.extend(["--memory".to_owned(), memory.clone()]);
        }
        if let Some(address) = &self.peer_address {
            arguments.extend(["--peer-address".to_owned(), address.clone()]);
        }
        Ok(arguments)
    }
}

/// Does it.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let task = task(context)?;
    match arguments.action {
        Action::Start(Start { dataset, settings }) => {
            whole_dataset("agent start", &dataset)?;
            let task = TaskOptions { arguments: settings.arguments()?, ..task };
            agent::start(&context.options, &task, &dataset.dataset)?;
            Ok(Exit::Done)
        }
        Action::Run(settings) => serve::in_foreground(settings.plan()?, context, &task),
        Action::Spawn(settings) => serve::spawn(&settings, &task),
        Action::Serve(settings) => serve::from_worker(settings.plan()?, context, &task),
        Action::Status => show::run(context, &task, out),
        Action::Prefetch(arguments) => prefetch::run(arguments, context, &task, out),
        Action::Stop => {
            agent::stop(&context.options, &task)?;
            Ok(Exit::Done)
        }
    }
}

/// The state of the agent of the task.
pub(crate) fn status(context: &Context) -> Result<Status, Failure> {
    show::status(context, &task(context)?)
}

/// The task that was named, else that of this session.
fn task(context: &Context) -> Result<TaskOptions, Failure> {
    let task = context.task.clone().or_else(TaskOptions::of_process);
    task.ok_or_else(|| Failure::usage("name the training job: --task NAME"))
}
