//! `dlcmd csi`: the processes of the driver for Kubernetes.
//!
//! Must hold: each process runs in the foreground, for a container.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use dl_csi::{Driver, Holder, LAUNCHER, Launcher, greet_holder, launch, probe, serve};

use crate::context::Context;
use crate::exit::{Exit, Failure};

const ENDPOINT: &str = "/var/lib/kubelet/plugins/csi.diesel/csi.sock";
const STATE: &str = "/var/lib/kubelet/plugins/csi.diesel";
const HOLDER: &str = "/run/diesel-csi/holder.sock";
const LAUNCHER_SOCKET: &str = "/run/diesel-csi/server.sock";

/// Run the parts of the driver for volumes of Kubernetes
///
/// The chart deploy/helm/diesel-csi runs them: the driver, which answers the kubelet and mounts; the
/// holder, which keeps the mounts; and the servers, which answer the pods and have the cache.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd csi driver --node node1 --registration /var/lib/kubelet/plugins_registry/csi.diesel-reg.sock
  dlcmd csi holder
  dlcmd csi server
  dlcmd csi probe")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Answer the kubelet: mount datasets, and show them in pods
    Driver {
        /// The socket for the kubelet
        #[arg(long, value_name = "PATH", default_value = ENDPOINT)]
        endpoint: PathBuf,
        /// The socket by which the kubelet finds the driver
        #[arg(long, value_name = "PATH")]
        registration: Option<PathBuf>,
        /// The folder of the sessions; its mounts have to reach the host
        #[arg(long, value_name = "DIR", default_value = STATE)]
        state: PathBuf,
        /// The socket of the holder
        #[arg(long, value_name = "PATH", default_value = HOLDER)]
        holder: PathBuf,
        /// The socket of the part `server`
        #[arg(long, value_name = "PATH", default_value = LAUNCHER_SOCKET)]
        launcher: PathBuf,
        /// The name of the node
        #[arg(long, value_name = "NAME", env = "NODE_NAME")]
        node: String,
    },
    /// Keep the connections of mounts with the kernel
    Holder {
        /// The own socket
        #[arg(long, value_name = "PATH", default_value = HOLDER)]
        socket: PathBuf,
        /// The socket of the part `server`
        #[arg(long, value_name = "PATH", default_value = LAUNCHER_SOCKET)]
        launcher: PathBuf,
    },
    /// Run the servers of mounts
    Server {
        /// The own socket
        #[arg(long, value_name = "PATH", default_value = LAUNCHER_SOCKET)]
        socket: PathBuf,
    },
    /// Ask whether the driver is ready, or whether the holder lives
    Probe {
        /// The socket of the driver
        #[arg(long, value_name = "PATH", default_value = ENDPOINT)]
        endpoint: PathBuf,
        /// Ask only whether the driver lives
        #[arg(long)]
        live: bool,
        /// Ask the holder at this socket
        #[arg(long, value_name = "PATH", conflicts_with = "endpoint")]
        holder: Option<PathBuf>,
    },
    /// Have a server run elsewhere
    #[command(hide = true)]
    Launch {
        /// Its arguments
        #[arg(last = true, value_name = "WORD")]
        arguments: Vec<OsString>,
    },
}

/// Runs a part until its end.
pub(crate) fn run(arguments: Arguments, context: &Context) -> Result<Exit, Failure> {
    let failed = |what: &'static str| move |why| Failure::local(what, why);
    if matches!(arguments.part, Part::Driver { .. } | Part::Holder { .. } | Part::Server { .. }) {
        begin_log();
    }
    match arguments.part {
        Part::Driver { endpoint, registration, state, holder, launcher, node } => {
            let servers = env::var("DIESEL_SERVER").ok().filter(|servers| !servers.is_empty());
            let driver = Driver { endpoint, registration, state, holder, launcher, node, servers };
            let served = runtime()?.block_on(serve(driver, context.shutdown.clone()));
            served.map_err(failed("serve the kubelet"))?;
        }
        Part::Holder { socket, launcher } => {
            let holder = Holder { socket, launcher, program: program()? };
            holder.serve().map_err(failed("hold mounts"))?;
        }
        Part::Server { socket } => {
            Launcher { socket }.serve().map_err(failed("run servers"))?;
        }
        Part::Probe { holder: Some(holder), .. } => {
            greet_holder(&holder).map_err(failed("ask the holder"))?;
        }
        Part::Probe { endpoint, live, holder: None } => {
            let is_ready = runtime()?.block_on(probe(&endpoint, live));
            if !is_ready.map_err(failed("ask the driver"))? {
                let why = "the driver waits for the holder and the servers".to_owned();
                return Err(Failure::failed(why));
            }
        }
        Part::Launch { arguments } => return launched(arguments),
    }
    Ok(Exit::Done)
}

/// Sends the messages of this process to the log of its container.
pub(crate) fn begin_log() {
    // A process has a single subscriber.
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .try_init();
}

fn launched(arguments: Vec<OsString>) -> Result<Exit, Failure> {
    let socket = env::var_os(LAUNCHER).unwrap_or_else(|| LAUNCHER_SOCKET.into());
    let arguments = arguments.into_iter().map(OsString::into_vec).collect();
    let code = launch(socket.as_ref(), arguments);
    match code.map_err(|why| Failure::local("run a server", why))? {
        0 => Ok(Exit::Done),
        _ => Ok(Exit::Failed),
    }
}

fn program() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|why| Failure::local("find the own program", why))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|why| Failure::local("start", why))
}
