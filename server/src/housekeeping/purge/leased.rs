//! Leases of training jobs on versions of a dataset under a purge.
//!
//! Must hold: a purge without a grace time takes no chunk from a job, unless its caller insists.

use dl_format::DatasetId;
use dl_proto::Kind;

use super::{ACTION, Purge};
use crate::error::Error;
use crate::snapshot::leases;

impl Purge<'_> {
    /// Refuses a purge without a grace time while training jobs lease a version.
    pub(super) async fn refuse_leased(&self, id: DatasetId) -> Result<(), Error> {
        if !self.grace.is_zero() || self.force {
            return Ok(());
        }
        let holders = leases::holders(self.context, id).await?;
        if holders.is_empty() {
            return Ok(());
        }
        let why = format!(
            "training jobs lease versions of it: {}; purge with a grace time, which keeps these versions, or \
             with --force, which takes away chunks that the jobs read",
            holders.join(", ")
        );
        Err(Error::new(Kind::Conflict, ACTION, self.name, why))
    }

    /// Names the jobs with leases; with a grace time the sweep has kept their versions.
    pub(super) async fn name_leases(&mut self, id: DatasetId) {
        match leases::holders(self.context, id).await {
            Ok(holders) => self.state.leased_by = holders,
            Err(error) => self.problem(error.chain()),
        }
    }
}
