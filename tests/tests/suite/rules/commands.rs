//! The programs accept the commands in README.md and docs/*.md, and the pages install existing
//! programs.
//!
//! Must hold: no command is executed. `dlcmd ... --help` checks words, flags and values, but not
//! missing or conflicting arguments. The settings of dlserver are parsed, and nothing is opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;
use dl_server::config::{self, Config, Flags};
use dl_tests::program::{dlcmd, run};
use dl_tests::workspace::{self, Package};
use regex::Regex;

use super::hold;

const RULE: &str = "Every dlserver and dlcmd in a block for a shell is understood by the program:";

const INSTALLED: &str = "`cargo install` in a page installs all programs, from this workspace:";

/// A place and its command.
type Shown = (String, Vec<String>);

#[test]
fn the_commands_in_the_documents_are_understood() -> Result<()> {
    let mut shown = Vec::new();
    for (file, text) in documents()? {
        shown.extend(commands_of(&file, &text, ours)?);
    }
    ensure!(shown.len() > 20, "only {} commands were found", shown.len());
    hold(RULE, &breaches(&shown)?);
    Ok(())
}

#[test]
fn an_unknown_command_is_found() -> Result<()> {
    let text = "\
```sh
dlcmd ls -lR dl://ds       # fine
dlcmd lsx dl://ds
sudo -u diesel dlserver --data /data --no-such-flag
A=1 dlcmd purge \\
      --no-such-flag
find . | dlcmd put -0 - no-address > out; dlcmd user add ann --role 'own:*'
(umask 077; dlcmd user add ann --role 'read:*')
runuser -u diesel -- dlserver --listen 0.0.0.0:7420
dlcmd ls -- dl://ds
cargo install --path dlcmd --no-such-flag
```
dlcmd in no block
```
$ dlcmd shuffle dl://ds --seed x
dlcmd says this
```
";
    let found = breaches(&commands_of(Path::new("page.md"), text, ours)?)?;
    let expected = [
        (3, "unrecognized subcommand"),
        (4, "unexpected argument"),
        (5, "unexpected argument"),
        (7, "invalid value 'no-address'"),
        (7, "invalid value 'own:*'"),
        (9, "say --without-keys"),
        (10, "would be carried out"),
        (15, "invalid value 'x'"),
    ];
    ensure!(found.len() == expected.len(), "{found:#?}");
    for (breach, (line, told)) in found.iter().zip(expected) {
        ensure!(breach.starts_with(&format!("page.md:{line}: ")), "{breach}");
        ensure!(breach.contains(told), "{told} is not in {breach}");
    }
    Ok(())
}

#[test]
fn the_documents_install_existing_programs() -> Result<()> {
    let (packages, mut pages, mut found) = (workspace::packages()?, 0, Vec::new());
    for (file, text) in documents()? {
        let installs = commands_of(&file, &text, installs)?;
        pages += usize::from(!installs.is_empty());
        found.extend(missing(&installs, &packages));
    }
    ensure!(pages > 1, "{pages} pages have installation commands");
    hold(INSTALLED, &found);
    Ok(())
}

/// README.md and the pages of docs/, with their text.
fn documents() -> Result<Vec<(PathBuf, String)>> {
    let mut documents = Vec::new();
    for file in workspace::files()? {
        let is_page = file.starts_with("docs") && file.extension().is_some_and(|end| end == "md");
        if is_page || file == Path::new("README.md") {
            let text = workspace::text(&file)?.unwrap_or_default();
            documents.push((file, text));
        }
    }
    Ok(documents)
}

/// The problems of a page's installation commands.
fn missing(installs: &[Shown], packages: &[Package]) -> Vec<String> {
    let (mut found, mut programs) = (Vec::new(), BTreeSet::new());
    for (place, words) in installs {
        let folder = words.iter().skip_while(|word| *word != "--path").nth(1);
        let manifest = folder.map(|folder| Path::new(folder).join("Cargo.toml"));
        match packages.iter().find(|package| Some(&package.manifest) == manifest.as_ref()) {
            Some(package) => programs.extend(package.programs.iter().map(String::as_str)),
            None => found.push(format!("{place}: {}: there is no such package", words.join(" "))),
        }
    }
    if let Some((place, _)) = installs.first()
        && programs != BTreeSet::from(["dlcmd", "dlserver"])
    {
        found.push(format!("{place}: the page installs only {programs:?}"));
    }
    found
}

fn breaches(shown: &[Shown]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (place, words) in shown {
        let problem = match words.as_slice() {
            [program, ..] if program == "dlserver" => settings(words).err(),
            [_, arguments @ ..] => help(arguments)?,
            [] => None,
        };
        found.extend(problem.map(|problem| format!("{place}: {}: {problem}", words.join(" "))));
    }
    Ok(found)
}

/// Parses the settings of a dlserver command.
fn settings(words: &[String]) -> Result<(), String> {
    let flags = Flags::try_parse_from(words).map_err(|refused| first_line(&refused.to_string()))?;
    if let Some(place) = &flags.config {
        config::source("config", place).map_err(|refused| refused.to_string())?;
    }
    Config::load(flags, None).map(drop).map_err(|refused| refused.to_string())
}

/// dlcmd's objection to these arguments, if any.
fn help(arguments: &[String]) -> Result<Option<String>> {
    if arguments.iter().any(|argument| argument == "--") {
        return Ok(Some(
            "behind -- the flag --help has no effect; the command would be carried out".to_owned(),
        ));
    }
    let asked = run(dlcmd()?.args(arguments).arg("--help"))?;
    Ok((asked.code != 0).then(|| first_line(&asked.stderr)))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The wanted commands in the shell blocks of a page.
fn commands_of(
    file: &Path,
    text: &str,
    wanted: fn(&[String]) -> Option<&[String]>,
) -> Result<Vec<Shown>> {
    let mut shown = Vec::new();
    for (number, line) in shell_lines(text) {
        for words in commands(&line)? {
            if let Some(wanted) = wanted(&words) {
                shown.push((format!("{}:{number}", file.display()), wanted.to_vec()));
            }
        }
    }
    Ok(shown)
}

/// The shell lines of a text with their line numbers; continued lines are joined. In a block
/// without a language, only lines behind a prompt are commands.
fn shell_lines(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut language, mut begun) = (Vec::new(), None, None);
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix("```") {
            language = if language.is_none() { Some(name) } else { None };
            continue;
        }
        let line = match (language, &begun, line.strip_prefix("$ ")) {
            (Some("sh" | ""), None, Some(command)) => command,
            (Some("sh"), _, _) | (Some(""), Some(_), _) => line,
            _ => continue,
        };
        let (number, before) = begun.take().unwrap_or((index + 1, String::new()));
        match line.strip_suffix('\\') {
            Some(part) => begun = Some((number, before + part)),
            None => lines.push((number, before + line)),
        }
    }
    lines
}

/// The commands of a line, split into words, without redirections and comments.
fn commands(line: &str) -> Result<Vec<Vec<String>>> {
    let tokens = Regex::new(r#"#.*|[|;&()<>]|(?:'[^']*'|"[^"]*"|[^ \t|;&()<>'"])+"#)?;
    let (mut commands, mut words, mut is_file) = (Vec::new(), Vec::new(), false);
    for token in tokens.find_iter(line).map(|found| found.as_str()) {
        match token {
            "|" | ";" | "&" | "(" | ")" => commands.push(std::mem::take(&mut words)),
            "<" | ">" => is_file = true,
            _ if token.starts_with('#') => break,
            _ if is_file => is_file = false,
            word => words.push(word.replace(['\'', '"'], "")),
        }
    }
    commands.push(words);
    Ok(commands)
}

/// The program and its arguments, if the program is ours; variables and `sudo` in front are
/// skipped.
fn ours(words: &[String]) -> Option<&[String]> {
    let is_variable = |word: &&String| {
        let is_letter = |letter: char| letter.is_ascii_uppercase() || letter == '_';
        word.split_once('=').is_some_and(|(name, _)| name.chars().all(is_letter))
    };
    let command = words.get(words.iter().take_while(is_variable).count()..)?;
    let at = command.iter().position(|word| word == "dlserver" || word == "dlcmd")?;
    let is_as_user = command.first().is_some_and(|first| first == "sudo" || first == "runuser");
    if at == 0 || is_as_user { command.get(at..) } else { None }
}

/// The arguments of `cargo install`.
fn installs(words: &[String]) -> Option<&[String]> {
    match words {
        [cargo, install, what @ ..] if cargo == "cargo" && install == "install" => Some(what),
        _ => None,
    }
}
