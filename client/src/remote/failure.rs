//! Why one try of a request failed, in words that need no further source.
//!
//! Must hold: what the transport says and what a server says are told apart; the former is always
//! worth another try.

use std::error::Error as _;

use dl_proto::WireError;
use tonic::Status;

use crate::error::Kind;

/// One failed try.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    problem: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, problem: impl Into<String>) -> Self {
        Self { kind, problem: problem.into() }
    }

    /// The same, saying which server it was.
    pub(crate) fn at(self, server: &str) -> Self {
        Self { problem: format!("{server}: {}", self.problem), ..self }
    }
}

/// Whether a server sent the status; else the transport on this side made it up.
pub(crate) fn is_answer(status: &Status) -> bool {
    status.source().is_none() && !is_foreign(status)
}

/// Whether what answered speaks HTTP and no gRPC; the words are those of the gRPC library.
fn is_foreign(status: &Status) -> bool {
    status.message().starts_with("grpc-status header missing")
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        if let Some(mut cause) = status.source() {
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            return Self::new(Kind::Unreachable, cause.to_string());
        }
        if is_foreign(&status) {
            let problem = "this is no dlserver: something else listens there";
            return Self::new(Kind::Unreachable, problem);
        }
        let problem = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        Self::new(dl_proto::Kind::of(status.code()).into(), problem)
    }
}

/// The other side broke the contract.
impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::new(Kind::Internal, format!("an answer that makes no sense: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_unreachable_and_names_its_deepest_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::from(Status::from_error(Box::new(refused)));
        assert_eq!(failure.kind, Kind::Unreachable);
        assert!(failure.to_string().contains("connection refused"), "{failure}");
    }

    #[test]
    fn another_server_that_speaks_http_is_told_from_ours() {
        let words = "grpc-status header missing, mapped from HTTP status code 404";
        let failure = Failure::from(Status::unimplemented(words));
        assert_eq!(failure.kind, Kind::Unreachable);
        assert!(failure.to_string().contains("no dlserver"), "{failure}");
    }

    #[test]
    fn what_a_server_says_keeps_its_kind_and_its_words() {
        let failure = Failure::from(Status::resource_exhausted("the disk is full"));
        assert_eq!((failure.kind, failure.to_string().as_str()), (Kind::Full, "the disk is full"));
        assert_eq!(Failure::from(Status::unavailable("")).kind, Kind::Unavailable);
    }
}
