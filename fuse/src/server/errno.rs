//! The error numbers of reads.
//!
//! Must hold: programs learn from the number whether another try may help.

use libdiesel::Kind;
use rustix::io::Errno;

/// The error number for programs. Exhaustive on purpose: a new kind needs a decision.
pub(crate) fn of(kind: Kind) -> Errno {
    match kind {
        Kind::NotFound => Errno::STALE,
        Kind::Unavailable | Kind::TimedOut | Kind::Unreachable => Errno::TIMEDOUT,
        Kind::Denied => Errno::ACCESS,
        Kind::Full => Errno::NOSPC,
        Kind::Cancelled => Errno::INTR,
        Kind::Corrupt
        | Kind::Conflict
        | Kind::NeedsRecovery
        | Kind::Invalid
        | Kind::Internal
        | Kind::Local => Errno::IO,
    }
}
