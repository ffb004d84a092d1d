//! `dlcmd man`: the manual page.
//!
//! Must hold: made from the same definition as the help, so that they can't disagree; one page
//! holds all commands.

use clap::{Args, Command};
use clap_mangen::Man;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Print the manual page
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd man | man -l -")]
pub(crate) struct Arguments {}

/// Prints it for the program that `command` defines.
pub(crate) fn run(command: Command, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let page = Man::new(command.clone()).section("1");
    out.write(|out| {
        page.render_title(out)?;
        page.render_name_section(out)?;
        page.render_synopsis_section(out)?;
        page.render_description_section(out)?;
        page.render_options_section(out)?;
        // Each by itself, without the global flags: those stand above.
        for sub in command.get_subcommands() {
            let name = format!("dlcmd {}", sub.get_name());
            writeln!(out, ".SH \"{}\"", name.to_uppercase())?;
            let page = Man::new(sub.clone().disable_help_flag(true).bin_name(name));
            page.render_description_section(out)?;
            page.render_synopsis_section(out)?;
            page.render_options_section(out)?;
        }
        page.render_extra_section(out)
    })?;
    Ok(Exit::Done)
}
