//! How dlcmd ends: its exit codes, and which kind of error gives which.
//!
//! Must hold: every kind has its code by decision, none by default; an error is printed once,
//! with its causes, by whoever ends the program.

use std::error::Error as _;
use std::fmt;
use std::process::ExitCode;

use libdiesel::Kind;

/// The exit codes, as documented in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was done.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A dataset or file is not there.
    NotFound = 3,
    /// The rest was done; what was not is listed on stderr.
    Partly = 4,
    /// No server answers.
    Unreachable = 5,
    /// Stopped by Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// Exhaustive on purpose: a new kind must decide.
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::NotFound => Self::NotFound,
            Kind::Invalid => Self::Usage,
            Kind::Unreachable | Kind::TimedOut => Self::Unreachable,
            Kind::Unavailable
            | Kind::Conflict
            | Kind::NeedsRecovery
            | Kind::Full
            | Kind::Corrupt
            | Kind::Denied
            | Kind::Cancelled
            | Kind::Internal
            | Kind::Local => Self::Failed,
        }
    }
}

/// In the words of the system: nothing listens at an address.
const REFUSED: &str = "onnection refused";

/// The advice for an address where nothing listens.
const START: &str = "start one with `dlserver`, or name another with --server";

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody reads stdout any more: the reader has seen enough, which is no error.
    StdoutClosed,
    /// All else.
    Because {
        /// The code to end with.
        exit: Exit,
        /// What to print.
        error: anyhow::Error,
    },
}

impl Failure {
    /// Wrong usage that only shows when the arguments are looked at together.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Usage, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A dataset or file that is not there.
    pub(crate) fn not_found(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::NotFound, error: anyhow::Error::msg(text.to_string()) }
    }

    /// Something that can't be done.
    pub(crate) fn failed(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Failed, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A refusal because something that was asked for can't be done beside the rest.
    pub(crate) fn partly(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Partly, error: anyhow::Error::msg(text.to_string()) }
    }

    /// An error of this machine, while `action`.
    pub(crate) fn local(
        action: impl fmt::Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let error = anyhow::Error::new(source).context(action.to_string());
        Self::Because { exit: Exit::Failed, error }
    }

    /// The same, said to have happened during `action`.
    pub(crate) fn while_doing(self, action: impl fmt::Display) -> Self {
        match self {
            Self::StdoutClosed => Self::StdoutClosed,
            Self::Because { exit, error } => {
                Self::Because { exit, error: error.context(action.to_string()) }
            }
        }
    }
}

impl From<libdiesel::Error> for Failure {
    fn from(error: libdiesel::Error) -> Self {
        let kind = error.kind();
        // The reason comes last in a chain, and what to do about it after that.
        let text = advised(format!("{:#}", anyhow::Error::new(error)), kind);
        Self::Because { exit: Exit::of(kind), error: anyhow::Error::msg(text) }
    }
}

/// The cause of an error and its remedy, without the object: the same for all files that share it.
pub(crate) fn cause(error: &libdiesel::Error) -> String {
    let Some(first) = error.source() else { return advised(error.to_string(), error.kind()) };
    let (mut text, mut next) = (first.to_string(), first.source());
    while let Some(why) = next {
        text = format!("{text}: {why}");
        next = why.source();
    }
    advised(text, error.kind())
}

fn advised(text: String, kind: Kind) -> String {
    let advice = match kind {
        Kind::Unreachable if text.contains(REFUSED) => Some(START),
        kind => kind.advice(),
    };
    match advice.filter(|advice| !says(&text, advice)) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// Whether a text already ends with an advice of this kind: to put, to free, to check something.
fn says(text: &str, advice: &str) -> bool {
    let first = |text: &str| text.split(' ').next().map(str::to_owned);
    first(text.rsplit("; ").next().unwrap_or_default()) == first(advice)
}

/// The whole chain, in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StdoutClosed => f.write_str("stdout is closed"),
            Self::Because { error, .. } => write!(f, "{error:#}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advice_is_given_once() {
        let busy = "read 3 files: other requests have its memory; try again, or ask for less";
        assert!(says(busy, "try again later"));
        assert!(!says("read 3 files: other requests have its memory", "try again later"));
        assert!(!says("read f; it says try again", "try again later"));
    }
}
