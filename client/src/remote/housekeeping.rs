//! Purge and verify, which work through whole datasets on a server.
//!
//! Must hold: a request that broke off is asked again, and nothing is told twice; what comes back
//! is the last word, with all that was told before.

use std::cell::RefCell;
use std::collections::BTreeMap;

use dl_proto::{Finding, PurgeProgress, PurgeRequest, VerifyProgress, VerifyRequest, pb};

use crate::error::Error;
use crate::remote::client::Client;
use crate::remote::lookup::dataset_address;
use crate::remote::once::Once;

impl Client {
    /// Gives back the space of what was overwritten and deleted (paper, DL_purge), while readers
    /// and writers go on. `progress` is told how far it is; the last word on each dataset comes
    /// back, with all problems of it.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when there is no such dataset,
    /// [`Kind::NeedsRecovery`](crate::Kind::NeedsRecovery) while metadata may be missing. What
    /// could not be read is no error: it is in [`PurgeProgress::problems`].
    pub fn purge(
        &self,
        request: PurgeRequest,
        progress: &mut dyn FnMut(&PurgeProgress),
    ) -> Result<Vec<PurgeProgress>, Error> {
        let session = self.shared.session()?;
        let subject = || match &request.dataset {
            Some(name) => dataset_address(name),
            None => "all datasets".to_owned(),
        };
        let message = pb::PurgeRequest::from(request.clone());
        let told = RefCell::new((BTreeMap::<String, PurgeProgress>::new(), Once::default()));
        let progress = RefCell::new(progress);
        session.wait(session.connections.call(
            "purge",
            subject,
            session.connections.long(),
            |mut server, this| {
                let request = this.request(message.clone());
                let (told, progress) = (&told, &progress);
                async move {
                    let mut stream = this.answer(server.purge(request)).await?;
                    while let Some(message) = this.message(&mut stream).await? {
                        let mut step = PurgeProgress::from(message);
                        (progress.borrow_mut())(&step);
                        let (told, once) = &mut *told.borrow_mut();
                        step.problems.retain(|problem| once.is_new((&step.dataset, problem)));
                        if let Some(mut before) = told.remove(&step.dataset) {
                            before.problems.append(&mut step.problems);
                            step.problems = before.problems;
                        }
                        told.insert(step.dataset.clone(), step);
                    }
                    Ok(())
                }
            },
        ))?;
        Ok(told.into_inner().0.into_values().collect())
    }

    /// Compares a dataset's metadata with the chunk store; changes nothing. `found` is told what is
    /// wrong as it is found, once; the last word on how far it went comes back.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when there is no such dataset. What is wrong with
    /// it is no error.
    pub fn verify(
        &self,
        request: &VerifyRequest,
        progress: &mut dyn FnMut(&VerifyProgress),
        found: &mut dyn FnMut(Finding),
    ) -> Result<VerifyProgress, Error> {
        let session = self.shared.session()?;
        let message = pb::VerifyRequest::from(request.clone());
        let (progress, found) = (RefCell::new(progress), RefCell::new(found));
        let once = RefCell::new(Once::default());
        let last = RefCell::new(VerifyProgress::default());
        session.wait(session.connections.call(
            "verify",
            || dataset_address(&request.dataset),
            session.connections.long(),
            |mut server, this| {
                let request = this.request(message.clone());
                let (once, last) = (&once, &last);
                let (progress, found) = (&progress, &found);
                async move {
                    let mut stream = this.answer(server.verify(request)).await?;
                    while let Some(message) = this.message(&mut stream).await? {
                        let mut step = VerifyProgress::from(message);
                        for finding in step.findings.drain(..) {
                            if once.borrow_mut().is_new(&finding.problem) {
                                (found.borrow_mut())(finding);
                            }
                        }
                        (progress.borrow_mut())(&step);
                        *last.borrow_mut() = step;
                    }
                    Ok(())
                }
            },
        ))?;
        Ok(last.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::remote::testing::{Script, info, options, start};

    #[test]
    fn a_purge_and_a_verification_tell_everything_once() {
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
        let last = client.verify(&request, &mut |_| steps += 1, &mut |one| found.push(one));
        assert_eq!((steps, last.unwrap().files), (2, 9));
        let problems: Vec<_> = found.iter().map(|finding| finding.problem.as_str()).collect();
        assert_eq!(problems, ["one", "two"]);
    }
}
