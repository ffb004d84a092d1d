//! `dlcmd user`: the users of a server started with `--users FILE`.
//!
//! Must hold: a key is shown once, on stdout, and stored nowhere; a key becomes valid only after
//! being shown.

mod file;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dl_runtime::{OsRandom, Random};
use libdiesel::admin::{Grant, Key, KeyHash, User, UserName, Users};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Add, remove or list the users of a server, or give them other keys
///
/// Changes the file given to dlserver with --users; a running server applies changes within
/// seconds. Keys are random, and only a hash of each is stored.
#[derive(Debug, Args)]
#[command(after_help = "Roles are read, write (read, put and delete files, create datasets) and \
admin (delete and recover datasets as well), on the datasets whose names match a pattern.

Examples:
  dlcmd user --users /etc/diesel/users add ann --role 'read:*' --role 'write:ann-*' > ann.key
  dlcmd user --users /etc/diesel/users rekey ann --keep-old > ann.new.key
  dlcmd user --users /etc/diesel/users drop-old ann
  dlcmd user --users /etc/diesel/users remove ann")]
pub(crate) struct Arguments {
    /// The users file; created by the first add
    #[arg(long, global = true, value_name = "FILE")]
    users: Option<PathBuf>,

    #[command(subcommand)]
    change: Change,
}

/// The change of the users file.
#[derive(Debug, Subcommand)]
enum Change {
    /// Add a user and print the key, which is shown only once
    Add {
        /// The user
        name: UserName,
        /// The rights of the user: a role on the datasets that match, where * stands for any
        /// letters
        #[arg(long = "role", value_name = "ROLE:PATTERN", required = true)]
        roles: Vec<Grant>,
    },
    /// Give a user another key and print it; the old key ends
    Rekey {
        /// The user
        name: UserName,
        /// Keep the old key valid until `drop-old`
        #[arg(long)]
        keep_old: bool,
    },
    /// End the old key kept by `rekey --keep-old`
    DropOld {
        /// The user
        name: UserName,
    },
    /// Remove a user
    Remove {
        /// The user
        name: UserName,
    },
    /// List the users and their roles
    List,
}

/// A line of `list`.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    roles: Vec<String>,
    keys: usize,
}

/// The line of `add` and `rekey`.
#[derive(Debug, Serialize)]
struct Added<'a> {
    name: &'a str,
    key: &'a str,
}

/// Runs the command.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Some(path) = arguments.users else {
        return Err(Failure::usage("user: no users file is given; type --users FILE"));
    };
    // The address may hold a password, so the error leaves it out.
    if ["etcd:", "etcds:"].iter().any(|scheme| path.to_string_lossy().starts_with(scheme)) {
        return Err(Failure::usage(
            "user: users in etcd are changed in a file, which is then stored under their key: \
             --users FILE, then `etcdctl put KEY < FILE`",
        ));
    }
    let notes = &context.notes;
    match arguments.change {
        Change::Add { name, roles } => {
            file::change(&path, |users| add(users, &name, roles, out))?;
            notes.note(format_args!("user {name} added; the key is not shown again"));
        }
        Change::Rekey { name, keep_old } => {
            file::change(&path, |users| rekey(users, &name, keep_old, out))?;
            let old = if keep_old { "is valid until `drop-old`" } else { "is no longer valid" };
            let new = "has another key, which is not shown again";
            notes.note(format_args!("user {name} {new}; the old key {old}"));
        }
        Change::DropOld { name } => {
            file::change(&path, |users| match known(users, &name)?.drop_old_key() {
                true => Ok(()),
                false => Err(Failure::not_found(format!("user {name} has no old key"))),
            })?;
            notes.note(format_args!("the old key of user {name} is no longer valid"));
        }
        Change::Remove { name } => {
            file::change(&path, |users| match users.0.remove(&name) {
                Some(_) => Ok(()),
                None => Err(unknown(&name)),
            })?;
            notes.note(format_args!("user {name} removed"));
        }
        Change::List => list(&file::read(&path)?, out)?,
    }
    Ok(Exit::Done)
}

fn add(
    users: &mut Users,
    name: &UserName,
    roles: Vec<Grant>,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    if users.0.contains_key(name) {
        let why = "exists already; `rekey` gives another key, and for other roles remove the user \
                   first";
        return Err(Failure::failed(format!("user {name} {why}")));
    }
    users.0.insert(name.clone(), User::new(print_key(name, out)?, roles));
    Ok(())
}

fn rekey(
    users: &mut Users,
    name: &UserName,
    keep_old: bool,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let user = known(users, name)?;
    if keep_old && user.keys().len() > 1 {
        let why = "has an old key already, which `drop-old` ends; do that first";
        return Err(Failure::failed(format!("user {name} {why}")));
    }
    let key = print_key(name, out)?;
    // Of two keys, the older is dropped.
    user.drop_old_key();
    user.add_key(key);
    if !keep_old {
        user.drop_old_key();
    }
    Ok(())
}

fn list(users: &Users, out: &mut Output<'_>) -> Result<(), Failure> {
    for (name, user) in &users.0 {
        let roles: Vec<_> = user.grants.iter().map(Grant::to_string).collect();
        let keys = user.keys().len();
        if out.is_json() {
            out.json("user", &Listed { name: name.as_str(), roles, keys })?;
        } else {
            let more = if keys > 1 { " (and an old key)" } else { "" };
            out.line(format_args!("{name} {}{more}", roles.join(" ")))?;
        }
    }
    Ok(())
}

fn known<'a>(users: &'a mut Users, name: &UserName) -> Result<&'a mut User, Failure> {
    users.0.get_mut(name).ok_or_else(|| unknown(name))
}

fn unknown(name: &UserName) -> Failure {
    Failure::not_found(format!("there is no user {name}"))
}

/// Draws a key and prints it before the key becomes valid.
fn print_key(name: &UserName, out: &mut Output<'_>) -> Result<KeyHash, Failure> {
    let (mut bits, mut salt) = ([0; 32], [0; 16]);
    OsRandom.fill(&mut bits);
    OsRandom.fill(&mut salt);
    let key = Key::from_random(bits);
    let printed = if out.is_json() {
        out.json("key", &Added { name: name.as_str(), key: key.as_str() })
    } else {
        out.line(format_args!("{}", key.as_str()))
    };
    match printed.and_then(|()| out.flush()) {
        Ok(()) => Ok(KeyHash::of(&key, salt)),
        Err(Failure::StdoutClosed) => Err(Failure::failed("print the key: stdout is closed")),
        Err(failure) => Err(failure.while_doing(format!("print the key of {name}"))),
    }
}
