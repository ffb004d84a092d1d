//! Purge and verify, which work through whole datasets on a server.
//!
//! Must hold: after a break the request is sent again, and no report is passed on twice. The result
//! is the last step, with all problems reported before.

use std::collections::BTreeMap;

use dl_proto::{Finding, PurgeProgress, PurgeRequest, VerifyProgress, VerifyRequest, pb};

use crate::error::Error;
use crate::remote::client::Client;
use crate::remote::connections::{Connection, Try};
use crate::remote::lookup::{address_of, dataset_address};
use crate::remote::report_filter::ReportFilter;

impl Client {
    /// Reclaims the space of overwritten and deleted files (paper, DL_purge), while readers and
    /// writers go on. `progress` receives each step. Gives the last step of each dataset, with all
    /// its problems.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) for an unknown dataset,
    /// [`Kind::NeedsRecovery`](crate::Kind::NeedsRecovery) while metadata may be missing.
    /// Unreadable objects are no error: see [`PurgeProgress::problems`].
    pub fn purge(
        &self,
        request: PurgeRequest,
        progress: &mut dyn FnMut(&PurgeProgress),
    ) -> Result<Vec<PurgeProgress>, Error> {
        let message = pb::PurgeRequest::from(request.clone());
        let mut last = BTreeMap::<String, PurgeProgress>::new();
        let mut filter = ReportFilter::default();
        let open = |mut server: Connection, this: &Try| {
            let request = this.request(message.clone());
            async move { server.purge(request).await }
        };
        self.follow(
            "purge",
            || address_of(request.dataset.as_ref()),
            open,
            |message| {
                let mut step = PurgeProgress::from(message);
                progress(&step);
                step.problems.retain(|problem| filter.is_new((&step.dataset, problem)));
                if let Some(mut before) = last.remove(&step.dataset) {
                    before.problems.append(&mut step.problems);
                    step.problems = before.problems;
                }
                last.insert(step.dataset.clone(), step);
            },
        )?;
        Ok(last.into_values().collect())
    }

    /// Compares a dataset's metadata with the chunk store; changes nothing. `found` receives each
    /// problem once, at its discovery. Gives the last step.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) for an unknown dataset. Problems of the dataset
    /// are no error.
    pub fn verify(
        &self,
        request: &VerifyRequest,
        progress: &mut dyn FnMut(&VerifyProgress),
        found: &mut dyn FnMut(Finding),
    ) -> Result<VerifyProgress, Error> {
        let message = pb::VerifyRequest::from(request.clone());
        let (mut filter, mut last) = (ReportFilter::default(), VerifyProgress::default());
        let open = |mut server: Connection, this: &Try| {
            let request = this.request(message.clone());
            async move { server.verify(request).await }
        };
        self.follow(
            "verify",
            || dataset_address(&request.dataset),
            open,
            |mut step: VerifyProgress| {
                let findings = step.findings.drain(..);
                findings.filter(|finding| filter.is_new(&finding.problem)).for_each(&mut *found);
                progress(&step);
                last = step;
            },
        )?;
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::remote::testing::{Script, info, options, start};

    #[test]
    fn a_purge_and_a_verification_report_everything_once() {
        let client = Client::connect(options(&[start(Script::default())])).unwrap();
        let name = info().name;
        let mut steps = 0;
        let request = PurgeRequest {
            dataset: Some(name.clone()),
            grace: Duration::ZERO,
            dry_run: false,
            force: false,
        };
        let done = client.purge(request, &mut |_| steps += 1).unwrap();
        assert_eq!((steps, done.len(), done[0].removed), (2, 1, 7));
        assert_eq!(done[0].problems, ["one", "two"]);

        let (mut steps, mut found) = (0, Vec::new());
        let request = VerifyRequest { dataset: name, checksums: true };
        let mut report = |finding| found.push(finding);
        let last = client.verify(&request, &mut |_| steps += 1, &mut report);
        assert_eq!((steps, last.unwrap().files), (2, 9));
        let problems: Vec<_> = found.iter().map(|finding| finding.problem.as_str()).collect();
        assert_eq!(problems, ["one", "two"]);
    }
}
