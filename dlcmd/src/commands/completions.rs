//! `dlcmd completions`: completion scripts for shells.
//!
//! Must hold: the definition of the help is also the source of the completions.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd completions bash > ~/.local/share/bash-completion/completions/dlcmd")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the completions of the program defined by `command`.
pub(crate) fn run(
    arguments: &Arguments,
    mut command: Command,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    generate(arguments.shell, &mut command, name, &mut text);
    out.write(|out| out.write_all(&text))?;
    Ok(Exit::Done)
}
