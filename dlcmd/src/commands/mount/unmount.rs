//! `dlcmd umount`: the end of a mount.
//!
//! Must hold: nothing of the mount is left when the command returns, unless `--lazy` leaves it to
//! its users, or other mount namespaces, which are named, keep it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use dl_fuse::{absolute, end_of, mount_at, unmount_at};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::text::shown;

/// Processes named in an error, at most.
const NAMED_MAX: usize = 5;

/// End a mount
///
/// Returns when all processes of the mount have ended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd umount /data/imagenet
  dlcmd umount --lazy /data/imagenet")]
pub(crate) struct Arguments {
    /// The folder
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Take the mount away from its place at once; it ends with its last user
    #[arg(long, short)]
    lazy: bool,
}

/// Ends a mount.
pub(crate) fn run(arguments: &Arguments, context: &Context) -> Result<Exit, Failure> {
    let Arguments { dir, lazy } = arguments;
    let failed = |why| Failure::local(format!("umount {}", shown(dir)), why);
    let dir = absolute(dir).map_err(failed)?;
    let Some(mounted) = mount_at(&dir).map_err(failed)? else {
        return Err(Failure::not_found(format!(
            "umount {}: no dataset is mounted there; dlcmd mounts lists the mounts",
            shown(&dir)
        )));
    };
    if *lazy {
        unmount_at(&dir, true).map_err(failed)?;
        return Ok(Exit::Done);
    }
    match end_of(&mounted, |dir| unmount_at(dir, false)) {
        Ok(keepers) => {
            if !keepers.is_empty() {
                let keepers: Vec<_> = keepers.into_iter().take(NAMED_MAX).map(name_of).collect();
                let (dir, keepers) = (shown(&dir), keepers.join(", "));
                context.notes.note(format_args!(
                    "{dir} is unmounted here, and goes on in the containers or mount namespaces of \
                     {keepers}; its processes end with them"
                ));
            }
            Ok(Exit::Done)
        }
        Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {
            let users = users_of(&dir);
            let named = match users.as_slice() {
                [] => "processes that this user can't see".to_owned(),
                users => users.join(", "),
            };
            let dir = shown(&dir);
            Err(Failure::failed(format!(
                "umount {dir}: the mount is in use by {named}; end them, or use --lazy"
            )))
        }
        Err(why) => Err(failed(why)),
    }
}

/// The processes with an open file or their working folder in a mount, as `name (PID)`.
fn users_of(dir: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| is_user(*process, dir)).take(NAMED_MAX).map(name_of).collect()
}

/// `name (PID)`.
fn name_of(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("{} ({process})", crate::text::escaped(name.trim().as_bytes()))
}

fn is_user(process: u32, dir: &Path) -> bool {
    let process = PathBuf::from(format!("/proc/{process}"));
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = ["cwd", "root", "exe"].map(|name| process.join(name)).into_iter();
    let is_inside = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    if links.any(is_inside) || files.map(|file| file.path()).any(is_inside) {
        return true;
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let inside = [b" ", dir.as_os_str().as_encoded_bytes(), b"/"].concat();
    maps.windows(inside.len()).any(|window| window == inside)
}
