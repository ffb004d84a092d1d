//! The service for workers, and the membership in the job.
//!
//! Must hold: only processes of the agent's user, and members of the job, are served.

mod member;
mod opening;
mod peers;
mod readiness;
mod workers;

pub(crate) use member::Member;
pub(crate) use readiness::watch;
pub(crate) use workers::WorkerServer;
