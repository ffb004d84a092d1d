//! Errors of messages.
//!
//! Must hold: an error names the wrong field of diesel.proto, never its contents.

/// A message that breaks the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A mandatory field is missing.
    #[error("the message lacks {0}")]
    Missing(&'static str),
    /// A field has an invalid value.
    #[error("{field} is not valid: {problem}")]
    Invalid {
        /// The field of diesel.proto.
        field: &'static str,
        /// The problem.
        problem: String,
    },
}

impl WireError {
    pub(crate) fn invalid(field: &'static str, problem: impl ToString) -> Self {
        Self::Invalid { field, problem: problem.to_string() }
    }
}
