//! The command line: help, manual and completions come from one definition.
//!
//! Must hold: global flags stand before or after the command. Arguments are only parsed here; each
//! command validates its own.

use clap::{Parser, Subcommand};

use crate::commands::{
    agent, cat, completions, csi, datasets, delete_dataset, du, get, lease, ls, man, mount, purge,
    put, recover, rm, shuffle, snapshot, stat, top, user, verify, why,
};
use crate::context::Global;

/// Datasets of many small files: put them in, list, read and delete them
#[derive(Debug, Parser)]
#[command(
    name = "dlcmd",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "A dataset is addressed as dl://DATASET, a file or folder in it as \
dl://DATASET/PATH. Names are bytes and are taken as typed.

Examples:
  dlcmd put train/ dl://imagenet/train
  dlcmd ls -l dl://imagenet/train
  dlcmd get dl://imagenet /data/imagenet

Environment:
  DIESEL_SERVER       as --server
  DIESEL_USER         as --user
  DIESEL_KEY          the key itself; --key-file goes before it
  DIESEL_CA           as --ca
  DIESEL_CLIENT_CERT  as --client-cert
  DIESEL_CLIENT_KEY   as --client-key
  DIESEL_TASK         as --task

Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    the dataset or file is not there
  4    partly done; what is missing is listed on stderr
  5    no server can be reached
  129  stopped by SIGHUP
  130  stopped by Ctrl-C
  143  stopped by SIGTERM"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Command {
    /// Whether the command reads through the agent of a task.
    pub(crate) fn reads_of_task(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Cat(_) | Self::Shuffle(_))
    }

    /// Whether the command reads only metadata found in a snapshot.
    pub(crate) fn takes_snapshot(&self) -> bool {
        match self {
            Self::Get(_)
            | Self::Cat(_)
            | Self::Ls(_)
            | Self::Stat(_)
            | Self::Du(_)
            | Self::Shuffle(_) => true,
            Self::Put(_)
            | Self::Rm(_)
            | Self::Datasets(_)
            | Self::Snapshot(_)
            | Self::DeleteDataset(_)
            | Self::Purge(_)
            | Self::Recover(_)
            | Self::User(_)
            | Self::Lease(_)
            | Self::Mount(_)
            | Self::Umount(_)
            | Self::Mounts(_)
            | Self::Agent(_)
            | Self::Csi(_)
            | Self::Why(_)
            | Self::Top(_)
            | Self::Verify(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Put(put::Arguments),
    Get(get::Arguments),
    Cat(cat::Arguments),
    Ls(ls::Arguments),
    Stat(stat::Arguments),
    Du(du::Arguments),
    Rm(rm::Arguments),
    Datasets(datasets::Arguments),
    Snapshot(snapshot::Arguments),
    Shuffle(shuffle::Arguments),
    Mount(mount::Arguments),
    Umount(mount::UnmountArguments),
    Mounts(mount::ListArguments),
    Agent(agent::Arguments),
    Csi(csi::Arguments),
    Why(why::Arguments),
    Top(top::Arguments),
    Lease(lease::Arguments),
    DeleteDataset(delete_dataset::Arguments),
    Purge(purge::Arguments),
    Recover(recover::Arguments),
    User(user::Arguments),
    Verify(verify::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

#[cfg(test)]
mod tests;
