//! `dlcmd man`: the manual page.
//!
//! Must hold: the definition of the help is also the source of the manual. One page has all
//! commands, each with its examples.

use std::io::{self, Write};

use clap::{Arg, Args, Command};
use clap_mangen::Man;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Print the manual page
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd man | man -l -")]
pub(crate) struct Arguments {}

/// Lines that the generator emits before each section; a page needs them once.
const PREAMBLE: [&str; 2] = [".ie \\n(.g .ds Aq \\(aq", ".el .ds Aq '"];

/// Prints the manual of the program defined by `command`.
pub(crate) fn run(command: Command, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let page = Man::new(with_synopsis(command.clone())).section("1");
    out.write(|out| {
        PREAMBLE.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        piece(out, "SH", |out| page.render_title(out))?;
        piece(out, "SH", |out| page.render_name_section(out))?;
        piece(out, "SH", |out| page.render_synopsis_section(out))?;
        piece(out, "SH", |out| page.render_description_section(out))?;
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let is_titled = |block: &&str| title(block).is_some();
        let (titled, text): (Vec<_>, Vec<_>) = after.split("\n\n").partition(is_titled);
        text.iter().try_for_each(|block| help(out, "SH", block))?;
        piece(out, "SH", |out| page.render_options_section(out))?;
        // Subcommands are printed without the global flags, which are listed above.
        command.get_subcommands().try_for_each(|sub| write_command(out, "dlcmd", sub))?;
        titled.iter().try_for_each(|block| help(out, "SH", block))
    })?;
    Ok(Exit::Done)
}

fn write_command(out: &mut dyn Write, above: &str, command: &Command) -> io::Result<()> {
    let name = format!("{above} {}", command.get_name());
    writeln!(out, ".SH \"{}\"", name.to_uppercase())?;
    let page = command.clone().disable_help_flag(true).bin_name(&name);
    let page = Man::new(with_synopsis(page));
    piece(out, "SS", |out| page.render_description_section(out))?;
    piece(out, "SS", |out| page.render_synopsis_section(out))?;
    piece(out, "SS", |out| page.render_options_section(out))?;
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    after.split("\n\n").try_for_each(|block| help(out, "SS", block))?;
    command.get_subcommands().try_for_each(|sub| write_command(out, &name, sub))
}

/// The command with all options and their values in its usage. The generator leaves out the values,
/// and clap leaves out all options.
fn with_synopsis(mut command: Command) -> Command {
    command.build();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let is_left_out = |option: &&Arg| {
        let shown = option.get_long().map(|long| format!("--{long}"));
        !option.is_hide_set() && shown.is_none_or(|shown| !usage.contains(&shown))
    };
    let options: Vec<_> = command
        .get_arguments()
        .filter(|argument| !argument.is_positional())
        .filter(is_left_out)
        .map(|option| format!("[{}]", flags_and_value(option)))
        .collect();
    let usage = usage.replacen("[OPTIONS]", &options.join(" "), 1);
    command.override_usage(usage)
}

/// An option in the form of a synopsis: `-q|--quiet`, `--grace <TIME>`.
fn flags_and_value(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("-{short}"));
    let long = option.get_long().map(|long| format!("--{long}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join("|");
    let takes_value = option.get_num_args().is_some_and(|count| count.takes_values());
    match option.get_value_names() {
        Some(names) if takes_value => format!("{flags} <{}>", names.join("> <")),
        _ => flags,
    }
}

/// A section of the generator, with the given heading macro.
fn piece(
    out: &mut dyn Write,
    heading: &str,
    render: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut made = Vec::new();
    render(&mut made)?;
    let made = String::from_utf8_lossy(&made);
    for line in made.lines().filter(|line| !PREAMBLE.contains(line)) {
        match line.strip_prefix(".SH ") {
            Some(title) => writeln!(out, ".{heading} {title}")?,
            None => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

/// A block of the text below the help: a titled block becomes a section with its lines unchanged.
fn help(out: &mut dyn Write, heading: &str, block: &str) -> io::Result<()> {
    let Some(title) = title(block) else {
        let words: Vec<_> = block.split_whitespace().collect();
        return if words.is_empty() {
            Ok(())
        } else {
            writeln!(out, ".PP\n{}", plain(&words.join(" ")))
        };
    };
    writeln!(out, ".{heading} \"{title}\"\n.nf")?;
    block.lines().skip(1).try_for_each(|line| writeln!(out, "{}", plain(line.trim_start())))?;
    writeln!(out, ".fi")
}

/// The title of a block, in the words of manuals.
fn title(block: &str) -> Option<String> {
    let title = block.lines().next()?.strip_suffix(':')?;
    Some(match title {
        "Example" => "EXAMPLES".to_owned(),
        "Exit codes" => "EXIT STATUS".to_owned(),
        title => title.to_uppercase(),
    })
}

/// A line of text, escaped for the formatter.
fn plain(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn page() -> String {
        let mut page = Vec::new();
        run(Cli::command(), &mut Output::new(&mut page, false)).expect("into memory");
        String::from_utf8(page).expect("text")
    }

    #[test]
    fn the_preamble_is_printed_once_and_sections_are_standard() {
        let page = page();
        assert_eq!(page.lines().take(2).collect::<Vec<_>>(), PREAMBLE);
        assert_eq!(page.matches(".ie ").count(), 1);
        let titles: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let own = titles.iter().filter(|title| !title.starts_with("\"DLCMD "));
        let own: Vec<_> = own.map(|title| title.trim_matches('"')).collect();
        assert_eq!(
            own,
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "GLOBAL OPTIONS",
                "EXAMPLES",
                "ENVIRONMENT",
                "EXIT STATUS"
            ]
        );
        assert!(titles.contains(&"\"DLCMD USER ADD\""), "{titles:?}");
    }

    #[test]
    fn every_command_shows_options_values_and_examples() {
        fn check(page: &str, command: &Command) {
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                for value in argument.get_possible_values() {
                    let name = plain(value.get_name());
                    assert!(page.contains(&name), "{argument}: {name}");
                }
                if argument.is_positional() || argument.is_hide_set() {
                    continue;
                }
                let usage = plain(&flags_and_value(argument));
                assert!(page.contains(&format!("[{usage}]")) || page.contains(&usage), "{usage}");
                for default in argument.get_default_values() {
                    let default = plain(&format!("[default: {}]", default.to_string_lossy()));
                    let takes_value = argument.get_num_args().is_some_and(|of| of.takes_values());
                    assert!(!takes_value || page.contains(&default), "{argument}: {default}");
                }
            }
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for example in after.lines().filter(|line| line.starts_with("  ")) {
                let line = plain(example.trim_start());
                assert!(page.lines().any(|it| it == line), "{example}");
            }
            command.get_subcommands().for_each(|sub| check(page, sub));
        }
        let (page, mut command) = (page(), Cli::command());
        command.build();
        check(&page, &command);
        for shown in ["[--grace <TIME>]", "[--server <ADDR[,ADDR...]>]", "<dl://DS|--all>"] {
            assert!(page.contains(&plain(shown)), "{shown}");
        }
        for sub in Cli::command().get_subcommands() {
            let heading = format!(".SH \"DLCMD {}\"\n", sub.get_name().to_uppercase());
            let (_, section) = page.split_once(&heading).expect("each has a section");
            let section = section.split(".SH ").next().unwrap_or_default();
            assert!(section.contains("EXAMPLES"), "{heading}{section}");
        }
    }
}
