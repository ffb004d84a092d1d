//! The options behind `-o`, and the arguments of mount(8).
//!
//! Must hold: an unknown option is refused. A line of /etc/fstab needs no flags.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use dl_runtime::units;

use crate::context::Global;
use crate::exit::Failure;
use crate::text::escaped;

/// Time for a read of absent files.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Time between two looks for a newer version.
const FOLLOW: Duration = Duration::from_secs(30);

/// Of a time that is none, or too short.
const SHORT: &str = "give a time of at least 1s, such as 30s or 5m";

/// A time of at least a second.
fn interval(text: &str) -> Option<Duration> {
    units::duration(text).filter(|time| *time >= Duration::from_secs(1))
}

/// The value of `--follow`.
pub(super) fn follow_interval(text: &str) -> Result<Duration, &'static str> {
    interval(text).ok_or(SHORT)
}

/// Options that mount(8) and the kernel understand, without effect here.
const IGNORED: [&str; 14] = [
    "ro",
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "defaults",
    "nosuid",
    "nodev",
    "exec",
    "relatime",
    "noatime",
    "nouser",
    "default_permissions",
    "",
];

/// The options of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MountOptions {
    pub(super) allow_other: bool,
    pub(super) nonempty: bool,
    pub(super) no_exec: bool,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) umask: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) memory: Option<String>,
    pub(super) follow: Option<Duration>,
    servers: Vec<String>,
    user: Option<String>,
    key_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    task: Option<String>,
}

impl MountOptions {
    pub(super) fn parse(given: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        for option in given {
            options.add(option)?;
        }
        Ok(options)
    }

    fn add(&mut self, option: &str) -> Result<(), Failure> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let wrong = |why: &str| {
            let option = escaped(option.as_bytes());
            Failure::usage(format!("-o {option}: {why}; dlcmd mount --help lists the options"))
        };
        let number = |radix| {
            let number = value.and_then(|value| u32::from_str_radix(value, radix).ok());
            number.ok_or_else(|| wrong("give a number"))
        };
        let text = || value.filter(|value| !value.is_empty()).ok_or_else(|| wrong("give a value"));
        match name {
            "allow_other" => self.allow_other = true,
            "noexec" => self.no_exec = true,
            "nonempty" => self.nonempty = true,
            "uid" => self.uid = Some(number(10)?),
            "gid" => self.gid = Some(number(10)?),
            "umask" => self.umask = number(8)? & 0o777,
            "timeout" => self.timeout = Some(interval(text()?).ok_or_else(|| wrong(SHORT))?),
            "follow" => {
                let time = value.map_or(Some(FOLLOW), interval);
                self.follow = Some(time.ok_or_else(|| wrong(SHORT))?);
            }
            "memory" => self.memory = Some(text()?.to_owned()),
            // A comma would end the option.
            "server" => self.servers.push(text()?.to_owned()),
            "user" => self.user = Some(text()?.to_owned()),
            "keyfile" => self.key_file = Some(text()?.into()),
            "ca" => self.ca = Some(text()?.into()),
            "task" => self.task = Some(text()?.to_owned()),
            "rw" => return Err(wrong("a mount only reads; write with dlcmd put")),
            name if IGNORED.contains(&name)
                || name.starts_with("x-")
                || name.starts_with("comment") => {}
            _ => return Err(wrong("there is no such option")),
        }
        Ok(())
    }

    /// Moves the options for the connection to their place; flags go before options.
    pub(super) fn complete(self, global: &mut Global) {
        if global.server.is_empty() {
            global.server = self.servers;
        }
        let Self { user, key_file, ca, task, .. } = self;
        global.user = global.user.take().or(user);
        global.key_file = global.key_file.take().or(key_file);
        global.ca = global.ca.take().or(ca);
        global.task = global.task.take().or(task);
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }
}

/// The arguments of `dlcmd mount` for those of `mount.diesel`, which mount(8) runs:
/// `SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. None for another program.
pub(crate) fn arguments_of_helper(given: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = given.split_first()?;
    let name = program.as_bytes().rsplit(|byte| *byte == b'/').next()?;
    if name != b"mount.diesel" {
        return None;
    }
    let mut arguments: Vec<OsString> = vec!["dlcmd".into(), "mount".into()];
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match word.as_bytes() {
            b"-o" => arguments.extend(["-o".into()].into_iter().chain(rest.next().cloned())),
            b"-N" | b"-t" => _ = rest.next(),
            // Of mount(8): sloppy, verbose and the like.
            flags if flags.starts_with(b"-") => {}
            other => arguments.push(OsStr::from_bytes(other).to_owned()),
        }
    }
    Some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<MountOptions, String> {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        MountOptions::parse(&options).map_err(|why| why.to_string())
    }

    #[test]
    fn options_are_taken_or_refused() {
        let options =
            parse(&["ro", "allow_other", "uid=7", "umask=022", "timeout=3s", "follow", "x-a=b"])
                .unwrap();
        let wanted = MountOptions {
            allow_other: true,
            uid: Some(7),
            umask: 0o022,
            timeout: Some(Duration::from_secs(3)),
            follow: Some(FOLLOW),
            ..MountOptions::default()
        };
        assert_eq!(options, wanted);
        for (option, why) in [
            ("rw", "a mount only reads"),
            ("uid", "give a number"),
            ("uid=x", "give a number"),
            ("timeout=0s", "at least 1s"),
            ("follow=", "at least 1s"),
            ("keyfile=", "give a value"),
            ("speed", "there is no such option"),
        ] {
            let refused = parse(&[option]).unwrap_err();
            assert!(refused.contains(why) && refused.contains(option), "{refused}");
        }
    }

    #[test]
    fn the_arguments_of_mount_are_understood() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let helper =
            words(&["/sbin/mount.diesel", "dl://ds", "/mnt", "-v", "-o", "rw,x", "-t", "diesel"]);
        let wanted = words(&["dlcmd", "mount", "dl://ds", "/mnt", "-o", "rw,x"]);
        assert_eq!(arguments_of_helper(&helper), Some(wanted));
        assert_eq!(arguments_of_helper(&words(&["dlcmd", "mount"])), None);
    }
}
