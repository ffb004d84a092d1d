//! `dlcmd mount`: a dataset as a folder that any program reads.
//!
//! Must hold: the command returns when files can be read, or leaves nothing. The same arguments make
//! the command, the holder and the server, so a server of a mount is always started alike.

mod hold;
mod list;
mod options;
mod place;
mod unmount;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::address::Address;
use crate::context::{Context, Global};
use crate::exit::{Exit, Failure};
use crate::output::Output;
pub(crate) use list::{Arguments as ListArguments, run as list};
use options::MountOptions;
pub(crate) use options::arguments_of_helper;
pub(crate) use unmount::{Arguments as UnmountArguments, run as unmount};

/// Show a dataset, or a folder of a dataset, as a folder of this machine
///
/// All programs read the files of one version, through the cache of this machine. The mount goes on
/// without the command until `dlcmd umount`.
#[derive(Debug, Args)]
#[command(after_help = "Options for -o:
  allow_other               other users may enter, by the permissions of the files
  uid=N, gid=N, umask=NNN   owner and permissions of all files
  timeout=TIME              a read of absent files fails after this time [default: 25s]
  nonempty                  hide the files that are in DIR
  server=, user=, keyfile=, ca=, task=, memory=   as the options of the command, for /etc/fstab
  ro, _netdev, auto, noauto, nofail, defaults, x-*   no effect

Examples:
  dlcmd mount dl://imagenet /data/imagenet
  dlcmd mount dl://imagenet/train /mnt --task resnet-7 --memory 64GiB
  dlcmd umount /data/imagenet
  /etc/fstab: dl://imagenet /data/imagenet diesel ro,_netdev,allow_other,keyfile=/etc/diesel/key 0 0")]
pub(crate) struct Arguments {
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
}

/// The part of a process of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Keeps the connection with the kernel.
    Hold,
    /// Answers the kernel.
    Serve,
}

impl Arguments {
    /// Moves the options for the connection to their place.
    pub(crate) fn complete(&self, global: &mut Global) -> Result<(), Failure> {
        MountOptions::parse(&self.options)?.complete(global);
        Ok(())
    }
}

/// Runs the part of this process.
pub(crate) fn run(
    arguments: &Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let options = MountOptions::parse(&arguments.options)?;
    match arguments.role {
        Some(Role::Serve) => hold::serve(arguments, &options, context),
        Some(Role::Hold) => hold::in_background(arguments, &options, context),
        None => {
            let Some(_place) = place::prepare(arguments, &options, context)? else {
                return Ok(Exit::Done);
            };
            match arguments.foreground {
                true => hold::in_foreground(arguments, &options, context),
                false => hold::start(arguments, &options, context, out),
            }
        }
    }
}
