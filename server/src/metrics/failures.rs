//! The last requests that failed for a reason in the servers.
//!
//! Must hold: a bounded number is kept, and equal failures take one place. A lock is taken for failures alone.

use std::collections::VecDeque;
use std::sync::Mutex;

use dl_format::Stamp;
use dl_proto::FailedRequest;
use dl_runtime::locked;
use tonic::Code;

/// Most failures kept.
const KEPT: usize = 16;

/// Most characters of a reason.
const WHY_CHARS: usize = 300;

/// The last failures, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<VecDeque<FailedRequest>>);

impl Failures {
    /// Notes a failed request. Wrong requests and refused callers are no failures of a server.
    pub(crate) fn note(
        &self,
        now: Stamp,
        method: &str,
        (code, name): (Code, &str),
        why: impl FnOnce() -> String,
    ) {
        if !is_failure(code) {
            return;
        }
        let why = why();
        let failure = FailedRequest {
            at: now.get(),
            method: method.to_owned(),
            code: name.to_owned(),
            why: why.chars().take(WHY_CHARS).collect(),
        };
        let mut kept = locked(&self.0);
        let is_same = |other: &FailedRequest| {
            (&other.method, &other.code, &other.why)
                == (&failure.method, &failure.code, &failure.why)
        };
        kept.retain(|other| !is_same(other));
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(failure);
    }

    /// The last failures.
    pub(crate) fn all(&self) -> Vec<FailedRequest> {
        let kept = locked(&self.0);
        kept.iter().cloned().collect()
    }
}

/// Whether a code is for a failure in the servers.
pub(crate) fn is_failure(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failures_are_kept_and_equal_ones_once() {
        let failures = Failures::default();
        let note = |at, code, why: &str| {
            failures.note(Stamp::new(at), "Read", (code, "CODE"), || why.to_owned());
        };
        note(1, Code::NotFound, "no such file");
        note(2, Code::Internal, "a");
        note(3, Code::Internal, "b");
        note(4, Code::Internal, "a");
        let kept: Vec<_> = failures.all().into_iter().map(|one| (one.at, one.why)).collect();
        assert_eq!(kept, [(3, "b".to_owned()), (4, "a".to_owned())]);
        (0..50).for_each(|at| {
            note(at, Code::Unavailable, &format!("{at}{}", "x".repeat(at as usize * 100)))
        });
        let kept = failures.all();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().all(|one| one.why.len() <= WHY_CHARS));
    }
}
