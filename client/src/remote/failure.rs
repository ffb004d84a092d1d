//! The failure of a single try of a request, as a text without further sources.
//!
//! Must hold: failures of the connection differ from answers of a server. A failed connection is
//! always worth another try.

use std::error::Error;
use std::time::Duration;

use dl_format::ChunkId;
use dl_proto::WireError;
use rustls::CertificateError;
use tonic::{Code, Status};

use crate::error::Kind;

/// The cause of an error about damaged bytes.
pub(crate) const DAMAGED: &str = "its checksum does not match its bytes";

#[derive(Debug, Clone, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    problem: String,
    /// Whether the server sent nothing.
    pub(crate) is_silence: bool,
    /// Whether the text names the object of the chunk store.
    pub(crate) names_object: bool,
    /// Whether the server has never answered.
    is_first: bool,
}

impl Failure {
    pub(crate) fn new(kind: Kind, problem: impl Into<String>) -> Self {
        let (is_silence, names_object, is_first) = (false, false, false);
        Self { kind, problem: problem.into(), is_silence, names_object, is_first }
    }

    /// A failure with the object of the chunk store in its text.
    pub(crate) fn of_object(kind: Kind, problem: impl Into<String>) -> Self {
        Self { names_object: true, ..Self::new(kind, problem) }
    }

    pub(crate) fn damaged(chunk: ChunkId) -> Self {
        Self::of_object(Kind::Corrupt, format!("chunk {chunk}: {DAMAGED}"))
    }

    pub(crate) fn silence(problem: String) -> Self {
        Self { is_silence: true, ..Self::new(Kind::TimedOut, problem) }
    }

    /// The silence of a server for some time.
    pub(crate) fn silent_for(time: Duration) -> Self {
        Self::silence(format!("no answer for {} s", time.as_secs()))
    }

    /// Marks the failure of a server that has never answered.
    pub(crate) fn before_any_answer(self) -> Self {
        Self { is_first: true, ..self }
    }

    /// Adds the address of the server.
    pub(crate) fn at(self, server: &str) -> Self {
        let mut problem = format!("{server}: {}", self.problem);
        let is_broken = BROKEN.iter().any(|end| problem.contains(end));
        if self.kind == Kind::Unreachable && is_broken {
            problem += match server.starts_with("https://") {
                true => {
                    "; the server may require a client certificate of a trusted CA (--client-cert)"
                }
                false if self.is_first => CLOSED,
                false => "",
            };
        }
        Self { problem, ..self }
    }
}

/// The remedy for a connection closed before any answer.
const CLOSED: &str = "; use the port of --listen, not the port of --http";

/// Whether a server sent the status, and not the local transport.
pub(crate) fn is_answer(status: &Status) -> bool {
    status.source().is_none() && !is_foreign(status)
}

/// Whether the peer speaks HTTP and no gRPC, by texts of the gRPC library.
fn is_foreign(status: &Status) -> bool {
    let is_no_message = status.message().contains("invalid compression flag")
        && status.message().contains("while receiving response with status: 4");
    status.message().starts_with("grpc-status header missing") || is_no_message
}

pub(crate) fn is_refused(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
}

/// The last source of an error.
pub(crate) fn deepest<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// The cause of a failed connection, with the remedy where there is one.
fn transport(error: &(dyn Error + 'static)) -> String {
    let cause = deepest(error);
    let text = cause.to_string();
    let advice = match tls_error(cause) {
        Some(rustls::Error::InvalidMessage(_)) => {
            return "that port speaks no TLS: write http:// before the host".to_owned();
        }
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer => {
                "nobody trusted here has signed it: give its CA's certificate (--ca, DIESEL_CA)"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server needs a new certificate; or is this machine's clock wrong?"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "write the server as its certificate names it"
            }
            _ => return text,
        },
        // For some reasons of TLS and of our servers, HTTP/2 passes on only the text.
        _ if text.contains(SPEAKS_TLS) => {
            return "that port speaks TLS: write https:// before the host".to_owned();
        }
        _ if text.contains(NO_FRAME) => return FOREIGN.to_owned(),
        _ if REFUSED.iter().any(|alert| text.ends_with(alert)) => {
            "the server requires a client certificate of a trusted CA (--client-cert)"
        }
        _ => return text,
    };
    format!("{text}; {advice}")
}

/// The answer of a server with TLS to a client without.
const SPEAKS_TLS: &str = "this port speaks TLS";

/// The HTTP/2 library's text for bytes other than a frame.
const NO_FRAME: &str = "frame with invalid size";

const FOREIGN: &str = "this is no dlserver: something else listens there";

/// The alerts of a server that requires another client certificate.
const REFUSED: [&str; 4] = [
    "fatal alert: CertificateRequired",
    "fatal alert: UnknownCA",
    "fatal alert: BadCertificate",
    "fatal alert: CertificateExpired",
];

/// Texts of a connection refused in the middle of a request.
const BROKEN: [&str; 2] = ["broken pipe", "onnection reset"];

fn tls_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match inner {
        Some(inner) => inner.downcast_ref(),
        None => cause.downcast_ref(),
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        if let Some(cause) = status.source() {
            return Self::new(Kind::Unreachable, transport(cause));
        }
        if is_foreign(&status) {
            return Self::new(Kind::Unreachable, FOREIGN);
        }
        let problem = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        Self::new(dl_proto::Kind::of(status.code()).into(), problem)
    }
}

/// An answer against the protocol.
impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::new(Kind::Internal, format!("the answer makes no sense: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_unreachable_with_its_last_cause() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::from(Status::from_error(Box::new(refused)));
        assert_eq!(failure.kind, Kind::Unreachable);
        assert!(failure.to_string().contains("connection refused"), "{failure}");
    }

    #[test]
    fn an_http_server_without_grpc_is_recognized() {
        for words in [
            "grpc-status header missing, mapped from HTTP status code 404",
            "protocol error: received message with invalid compression flag: 60 (valid flags are 0 \
             and 1) while receiving response with status: 400 Bad Request",
        ] {
            let failure = Failure::from(Status::internal(words));
            assert_eq!(failure.kind, Kind::Unreachable);
            assert!(failure.to_string().contains("no dlserver"), "{failure}");
        }
    }

    #[test]
    fn the_status_of_a_server_keeps_its_kind_and_text() {
        let failure = Failure::from(Status::resource_exhausted("the disk is full"));
        assert_eq!((failure.kind, failure.to_string().as_str()), (Kind::Full, "the disk is full"));
        assert_eq!(Failure::from(Status::unavailable("")).kind, Kind::Unavailable);
    }
}
