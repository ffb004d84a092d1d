//! `dlcmd user`: who may ask a server that was started with `--users FILE`.
//!
//! Must hold: a key is shown once, on stdout, and kept nowhere.

mod file;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dl_runtime::{OsRandom, Random};
use libdiesel::{Grant, Key, KeyHash, User, UserName};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Add, remove or list the users of a server
///
/// Works on the file that dlserver is given with --users; a running server takes a change over
/// within seconds. Keys are random, and only a hash of each is kept.
#[derive(Debug, Args)]
#[command(after_help = "Roles are read, write (read, put and delete files, create datasets) and \
admin (delete and recover datasets as well), on the datasets whose names match a pattern.

Examples:
  dlcmd user --users /etc/diesel/users add ann --role 'read:*' --role 'write:ann-*' > ann.key
  dlcmd user --users /etc/diesel/users remove ann")]
pub(crate) struct Arguments {
    /// The users file; made by the first add
    #[arg(long, global = true, value_name = "FILE")]
    users: Option<PathBuf>,

    #[command(subcommand)]
    change: Change,
}

/// What to do with it.
#[derive(Debug, Subcommand)]
enum Change {
    /// Add a user and print the key, which is not shown again
    Add {
        /// The user
        name: UserName,
        /// What the user may do: a role on the datasets that match, where * is any letters
        #[arg(long = "role", value_name = "ROLE:PATTERN", required = true)]
        roles: Vec<Grant>,
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
}

/// The line of `add`.
#[derive(Debug, Serialize)]
struct Added<'a> {
    name: &'a str,
    key: &'a str,
}

/// Does it.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Some(path) = arguments.users else {
        return Err(Failure::usage("user: say which file: --users FILE"));
    };
    match arguments.change {
        Change::Add { name, roles } => {
            let (mut bits, mut salt) = ([0; 32], [0; 16]);
            OsRandom.fill(&mut bits);
            OsRandom.fill(&mut salt);
            let key = Key::from_random(bits);
            let user = User { key: KeyHash::of(&key, salt), grants: roles };
            file::change(&path, |users| {
                if users.0.contains_key(&name) {
                    let why = "is there already; remove it first for another key or other roles";
                    return Err(Failure::failed(format!("user {name} {why}")));
                }
                users.0.insert(name.clone(), user);
                Ok(())
            })?;
            if out.is_json() {
                out.json("key", &Added { name: name.as_str(), key: key.as_str() })?;
            } else {
                out.line(format_args!("{}", key.as_str()))?;
            }
            context.notes.note(format_args!("user {name} added; the key is not shown again"));
        }
        Change::Remove { name } => {
            file::change(&path, |users| match users.0.remove(&name) {
                Some(_) => Ok(()),
                None => Err(Failure::not_found(format!("there is no user {name}"))),
            })?;
            context.notes.note(format_args!("user {name} removed"));
        }
        Change::List => {
            for (name, user) in &file::read(&path)?.0 {
                let roles: Vec<_> = user.grants.iter().map(Grant::to_string).collect();
                if out.is_json() {
                    out.json("user", &Listed { name: name.as_str(), roles })?;
                } else {
                    out.line(format_args!("{name} {}", roles.join(" ")))?;
                }
            }
        }
    }
    Ok(Exit::Done)
}
