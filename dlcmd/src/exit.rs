//! Exit codes of dlcmd, and the mapping from kinds of errors.
//!
//! Must hold: every kind has an explicit code, none by default. An error is printed once, with its
//! causes, at the end of the program.

use std::error::Error as _;
use std::fmt;
use std::process::ExitCode;

use libdiesel::Kind;

/// The exit codes, as documented in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was done.
    Done = 0,
    /// The command failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A dataset or file is missing.
    NotFound = 3,
    /// Done in part; the failed part is listed on stderr.
    Partly = 4,
    /// No server answers.
    Unreachable = 5,
    /// Stopped by SIGHUP.
    HungUp = 129,
    /// Stopped by Ctrl-C.
    Interrupted = 130,
    /// Stopped by SIGTERM.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// Exhaustive on purpose: a new kind needs a decision.
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

/// Part of the system's text for an address without a listener.
const REFUSED: &str = "onnection refused";

/// The advice for an address without a listener.
const START: &str = "start one with `dlserver`, or name another with --server";

/// The reason for an early end of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of stdout has stopped reading, which is no error.
    StdoutClosed,
    /// Any other reason.
    Because {
        /// The exit code.
        exit: Exit,
        /// The error to print.
        error: anyhow::Error,
    },
}

impl Failure {
    /// Wrong usage not found by the argument parser.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Usage, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A missing dataset or file.
    pub(crate) fn not_found(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::NotFound, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A failure.
    pub(crate) fn failed(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Failed, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A refusal because a part of the request can't be done.
    pub(crate) fn partly(text: impl fmt::Display) -> Self {
        Self::Because { exit: Exit::Partly, error: anyhow::Error::msg(text.to_string()) }
    }

    /// A local error during `action`.
    pub(crate) fn local(
        action: impl fmt::Display,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        let error = anyhow::Error::new(source).context(action.to_string());
        Self::Because { exit: Exit::Failed, error }
    }

    /// Adds `action` as the context of a failure.
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
        // The reason is the last part of a chain, followed by the advice.
        let text = advised(format!("{:#}", anyhow::Error::new(error)), kind);
        Self::Because { exit: Exit::of(kind), error: anyhow::Error::msg(text) }
    }
}

/// The cause of an error and its remedy without the object, for grouping by cause.
pub(crate) fn cause(error: &libdiesel::Error) -> String {
    let Some(first) = error.source() else { return advised(error.to_string(), error.kind()) };
    let chain: Vec<String> = anyhow::Chain::new(first).map(ToString::to_string).collect();
    advised(chain.join(": "), error.kind())
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

/// Whether a text already ends with advice that starts with the same verb.
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
