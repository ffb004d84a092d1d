//! A dry run: the forecast of a purge.
//!
//! Must hold: nothing is written or removed, in either store; the decisions come from the plan of a purge.

use dl_format::DatasetId;

use super::Purge;
use super::damage::Stop;
use crate::datasets::catalog;
use crate::datasets::survey::Survey;

impl Purge<'_> {
    /// Counts the steps of the first round of a purge, without objects to be adopted first.
    pub(super) async fn estimate(&mut self, id: DatasetId) -> Result<(), Stop> {
        let _turn = self.turns.survey(self.context, || self.is_awaited()).await?;
        let record = catalog::by_id(self.context, id).await?;
        let now = self.context.clock.now();
        let mut survey = Survey::read(self.context, id).await?;
        let older = self.older(id).await;
        let (ledger, held) = self.look(&mut survey, &record).await?;
        self.check_agreement(id, &survey, &ledger).await?;
        let (rules, kept) = self.rules(&record, &survey, older, now, true);
        let plan = ledger.plan(&survey, rules, &held);
        let object = |number: &usize| survey.objects.get(*number).map(|object| (*number, object));
        let removed = plan.remove.iter().filter_map(object);
        self.state.removed = plan.remove.len() as u64;
        self.state.removed_bytes = removed.map(|(_, object)| object.object_length).sum();
        self.state.rewritten = plan.rewrite.len() as u64;
        let states = plan.rewrite.iter().filter_map(|number| ledger.states.get(*number));
        self.state.merged = states.filter(|state| !state.has_holes()).count() as u64;
        let all = plan.remove.iter().chain(&plan.rewrite).chain(&plan.waiting).filter_map(object);
        self.state.reclaimable_bytes =
            all.map(|(number, object)| ledger.dead_bytes(number, object)).sum();
        self.wait_for(&survey, &plan, &plan.rewrite, kept);
        self.name_leases(id).await;
        Ok(())
    }
}
