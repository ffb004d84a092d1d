//! `dlcmd mount`: a dataset as a folder that any program reads.
//!
//! Must hold: the command returns when files can be read, or leaves nothing. The same arguments make
//! the command, the holder and the server, so a server of a mount is always started alike.

mod hold;
mod list;
mod options;
mod place;
mod unmount;

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use dl_format::Version;
use dl_fuse::{absolute, mount_at, refresh};

use crate::address::Address;
use crate::commands::agent::PolicyName;
use crate::context::{Context, Global};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::shown;
pub(crate) use list::{Arguments as ListArguments, run as list};
pub(crate) use options::arguments_of_helper;
use options::{MountOptions, follow_interval};
pub(crate) use unmount::{Arguments as UnmountArguments, run as unmount};

/// Show a dataset, or a folder of a dataset, as a folder of this machine
///
/// All programs read the files of one version, through the cache of this machine. The mount goes on
/// without the command until `dlcmd umount`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Options for -o:
  allow_other               other users may enter, by the permissions of the files
  uid=N, gid=N, umask=NNN   owner and permissions of all files
  timeout=TIME              a read of absent files fails after this time [default: 25s]
  noexec                    no program of the dataset may run
  nonempty                  hide the files that are in DIR
  follow, follow=TIME       as --follow
  server=, user=, keyfile=, ca=, task=, memory=   as the options of the command, for /etc/fstab
  ro, _netdev, auto, noauto, nofail, defaults, x-*   no effect

Examples:
  dlcmd mount dl://imagenet /data/imagenet
  dlcmd mount dl://imagenet/train /mnt --task resnet-7 --memory 64GiB
  dlcmd mount dl://logs /data/logs --follow=1m
  dlcmd mount --refresh /data/imagenet
  dlcmd umount /data/imagenet
  /etc/fstab: dl://imagenet /data/imagenet diesel ro,_netdev,allow_other,keyfile=/etc/diesel/key 0 0"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Option<Settings>,

    /// Show the newest version at the mount in this folder; files that are open stay at their version
    #[arg(long, value_name = "DIR", conflicts_with = "Settings")]
    refresh: Option<PathBuf>,
}

/// The settings of a mount.
#[derive(Debug, Args)]
struct Settings {
    /// The dataset, or a folder in a dataset
    #[arg(value_name = "dl://DS[/DIR]")]
    address: Address,

    /// An empty folder; or /dev/fd/N for an open connection of a mount
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Options of the mount, separated by commas
    #[arg(short = 'o', value_name = "OPT[,OPT...]", value_delimiter = ',')]
    options: Vec<String>,

    /// Stay in the foreground until the end of the mount
    #[arg(long)]
    foreground: bool,

    /// Memory of a new agent for the mount, as in 64GiB [default: half of the free memory]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// The choice of chunks that a new agent keeps [default: on-demand]
    #[arg(long, value_name = "POLICY", value_enum)]
    policy: Option<PolicyName>,

    /// The version to show, as printed by dlcmd mounts and dlcmd snapshot [default: the newest, or that of
    /// the task]
    #[arg(long, value_name = "VERSION", conflicts_with = "follow")]
    at: Option<Version>,

    /// Look for a newer version each TIME, as in 30s or 5m, and show it [default: 30s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s",
          value_parser = follow_interval)]
    follow: Option<Duration>,

    /// Threads that answer the kernel [default: the number of cores, up to 4]
    #[arg(long, value_name = "N", value_parser = crate::from_one::<NonZeroUsize>)]
    threads: Option<NonZeroUsize>,

    /// Append the messages of the mount to this file, of two parts of 1 MiB
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// The part of this process
    #[arg(long, value_name = "ROLE", value_enum, hide = true)]
    role: Option<Role>,

    /// The holder of this server
    #[arg(long, value_name = "NAME", hide = true)]
    instance: Option<String>,

    /// The mount of the program before in this process
    #[arg(long, value_name = "TEXT", hide = true)]
    legacy: Option<String>,
}

/// The part of a process of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Keeps the connection with the kernel.
    Hold,
    /// Answers the kernel.
    Serve,
}

impl Settings {
    /// Whether the process goes on with the next program on SIGHUP. For a mount in the foreground of a
    /// terminal, the signal means the end of the terminal.
    fn is_upgradable(&self) -> bool {
        match self.role {
            Some(Role::Hold) => true,
            Some(Role::Serve) => false,
            None => self.foreground && File::open("/dev/tty").is_err(),
        }
    }
}

impl Arguments {
    /// Whether SIGHUP lets the process go on with the next program.
    pub(crate) fn is_upgradable(&self) -> bool {
        self.settings.as_ref().is_some_and(Settings::is_upgradable)
    }

    /// Moves the options for the connection to their place.
    pub(crate) fn complete(&self, global: &mut Global) -> Result<(), Failure> {
        if let Some(settings) = &self.settings {
            MountOptions::parse(&settings.options)?.complete(global);
        }
        Ok(())
    }
}

/// Runs the part of this process.
pub(crate) fn run(
    arguments: &Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    if let Some(dir) = &arguments.refresh {
        return refresh_at(dir, context);
    }
    let Some(settings) = &arguments.settings else {
        return Err(Failure::usage("give a dataset and a folder; dlcmd mount --help".to_owned()));
    };
    let options = MountOptions::parse(&settings.options)?;
    if settings.at.is_some() && options.follow.is_some() {
        return Err(Failure::usage("--at and -o follow exclude each other"));
    }
    match settings.role {
        Some(Role::Serve) => hold::serve(settings, &options, context),
        Some(Role::Hold) => hold::in_background(settings, &options, context),
        None if settings.legacy.is_some() => hold::in_foreground(settings, &options, context),
        None => {
            let Some(_place) = place::prepare(settings, &options, context)? else {
                return Ok(Exit::Done);
            };
            match settings.foreground {
                true => hold::in_foreground(settings, &options, context),
                false => hold::start(settings, &options, context, out),
            }
        }
    }
}

/// Shows the newest version at a mount.
fn refresh_at(dir: &Path, context: &Context) -> Result<Exit, Failure> {
    let failed = |why| Failure::local(format!("refresh the mount at {}", shown(dir)), why);
    let dir = absolute(dir).map_err(failed)?;
    let Some(mounted) = mount_at(&dir).map_err(failed)? else {
        let dir = shown(&dir);
        return Err(Failure::not_found(format!("no dataset is mounted at {dir}")));
    };
    match refresh(&mounted).map_err(failed)? {
        Ok(version) => {
            let dir = shown(&dir);
            context.notes.note(format_args!("{} at {dir} shows {version}", mounted.source));
            Ok(Exit::Done)
        }
        Err(why) => Err(failed(std::io::Error::other(why))),
    }
}
