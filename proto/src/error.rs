//! What can be wrong with a message.
//!
//! Must hold: an error names the field of diesel.proto that is wrong, never what was in it.

/// A message that breaks the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field that must be set is not.
    #[error("the message lacks {0}")]
    Missing(&'static str),
    /// A field holds what it can't.
    #[error("{field} is not valid: {problem}")]
    Invalid {
        /// The field of diesel.proto.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl WireError {
    pub(crate) fn invalid(field: &'static str, problem: impl ToString) -> Self {
        Self::Invalid { field, problem: problem.to_string() }
    }
}
