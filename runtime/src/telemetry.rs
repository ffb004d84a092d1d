//! Logs of a process, on stderr: stdout carries results and nothing else.
//!
//! Must hold: a stderr without a reader stops no process.

use std::error::Error;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The level is no filter.
    #[error(
        "read log level {level:?}: {problem}; give error, warn, info, debug, trace, or \
         TARGET=LEVEL,..."
    )]
    Level {
        /// The given level.
        level: String,
        /// The mistake in the level. No source: the text contains the text of its own source.
        problem: ParseError,
    },
    /// The process has a subscriber already.
    #[error("start logging")]
    Started(#[source] Box<dyn Error + Send + Sync>),
}

/// Sends the process's events to stderr, as text or as JSON lines.
///
/// `level` is a level (`info`) or a list of filters (`info,dl_server=debug`).
///
/// # Errors
/// When `level` is no filter, or logging has been started before.
pub fn init(level: &str, json: bool) -> Result<(), InitError> {
    let refused = |problem| InitError::Level { level: level.to_owned(), problem };
    for word in level.split(',').filter(|word| !word.contains(['=', '['])) {
        // A word that is no level would pass for a target, and turn all other events off.
        EnvFilter::builder().parse(format!("target={word}")).map_err(refused)?;
    }
    let filter = EnvFilter::builder().parse(level).map_err(refused)?;
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Internal errors would be reported on a stderr without a reader, and panic. Colours, a feature that
    // a dependency of tests switches on, would make logs hard to search.
    let events = events.log_internal_errors(false).with_ansi(false);
    if json { events.json().try_init() } else { events.try_init() }.map_err(InitError::Started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_no_filter_is_named_in_the_error() {
        for level in ["dl=loud", "loud", "info,loud"] {
            let error = init(level, false).unwrap_err();
            assert!(error.to_string().contains(level), "{error}");
            assert!(error.source().is_none());
        }
    }

    #[test]
    fn a_second_start_is_an_error_and_no_panic() {
        init("info", true).unwrap();
        assert!(matches!(init("info", false), Err(InitError::Started(_))));
    }
}
