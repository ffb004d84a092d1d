//! Datasets that a purge refuses: objects are lost or unreadable, or the metadata disagrees with them.
//!
//! Must hold: a missing object leaves the log only if the dataset has the same files without the object.

use std::collections::HashSet;

use dl_format::{ChunkId, DatasetId, ObjectKind};
use dl_meta::ObjectRecord;
use dl_proto::Kind;
use dl_store::Key;

use super::Purge;
use super::plan::Ledger;
use crate::datasets::headers::read_header;
use crate::datasets::survey::{Survey, is_logged};
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// The reason for an early end of a purge.
#[derive(Debug)]
pub(super) enum Stop {
    /// The dataset is damaged; the text names the damage and the remedy.
    Damaged(String),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Purge<'_> {
    /// Ends the purge of a damaged dataset. `flags` are the options with which `dlcmd verify` finds the damage.
    pub(super) fn damaged(&self, found: &str, flags: &str) -> Stop {
        let name = self.name;
        Stop::Damaged(format!(
            "{found}; a damaged dataset is not purged: run `dlcmd verify {flags}dl://{name}`, mend the \
             dataset as it says, and purge again"
        ))
    }

    /// Refuses a dataset with problems; reports the first problem.
    pub(super) fn refuse_problems(&self, problems: &[String]) -> Result<(), Stop> {
        let Some((first, others)) = problems.split_first() else { return Ok(()) };
        let found = match others.len() {
            0 => first.clone(),
            count => format!("{first}; and {count} more such problems"),
        };
        Err(self.damaged(&found, ""))
    }

    /// Refuses a dataset whose log, metadata and chunk store disagree. Missing objects that no file needs leave
    /// the log: metadata that lost its last writes has such objects. True if there were any.
    pub(super) async fn check_agreement(
        &mut self,
        dataset: DatasetId,
        survey: &Survey,
        ledger: &Ledger,
    ) -> Result<bool, Stop> {
        let unread = survey.unread.values().filter(|error| error.kind != Kind::NotFound);
        self.refuse_problems(&unread.map(Error::chain).collect::<Vec<_>>())?;
        let counted = self.counted(dataset, survey).await?;
        let absent = self.absent(survey).await?;
        let Some(first) = absent.first() else {
            return match counted {
                Some(files) if files != ledger.files => {
                    let held = ledger.files;
                    let found =
                        format!("the metadata has {files} files, and the chunks have {held}");
                    Err(self.damaged(&found, ""))
                }
                Some(_) | None => Ok(false),
            };
        };
        let (id, count) = (first.id, absent.len());
        let lost = format!("objects of the log are not in the chunk store: {count}, such as {id}");
        let needed = needed_parts(survey, ledger);
        match counted {
            Some(files) if files == ledger.files => {}
            Some(_) => return Err(self.damaged(&lost, "")),
            // A client writes, or another purge has removed the objects. The next purge can compare.
            None => {
                if is_logged(self.context, dataset, id).await? {
                    let name = self.name;
                    self.problem(format!("{lost}; run `dlcmd verify dl://{name}`"));
                }
                return Ok(false);
            }
        }
        if absent.iter().any(|object| needed.contains(&object.id)) {
            return Err(self.damaged(&lost, ""));
        }
        if self.is_dry_run {
            return Ok(false);
        }
        self.refuse_read_only()?;
        let ids: Vec<ChunkId> = absent.iter().map(|object| object.id).collect();
        self.retire(dataset, &ids).await?;
        Ok(true)
    }

    /// The number of files in the metadata; none if the log has changed, or is about to change.
    async fn counted(&self, dataset: DatasetId, survey: &Survey) -> Result<Option<u64>, Error> {
        if survey.unlogged() > 0 {
            return Ok(None);
        }
        let info = self.context.meta.dataset(dataset).await.doing("describe dataset", dataset)?;
        let is_same =
            |info: &dl_meta::DatasetInfo| info.is_settled && info.version == survey.version();
        Ok(info.filter(is_same).map(|info| info.files))
    }

    /// Objects of the log missing in the chunk store.
    async fn absent<'s>(&self, survey: &'s Survey) -> Result<Vec<&'s ObjectRecord>, Error> {
        let mut absent = Vec::new();
        for (number, object) in survey.objects.iter().enumerate() {
            let is_absent = match survey.unread.get(&number) {
                Some(error) => error.kind == Kind::NotFound,
                // The survey reads no headers of parts.
                None => {
                    object.kind == ObjectKind::Part
                        && !survey.stored.contains_key(&object.id)
                        && is_gone(self.context, &survey.key(object)).await?
                }
            };
            if is_absent {
                absent.push(object);
            }
        }
        Ok(absent)
    }
}

/// The parts of live large files.
fn needed_parts(survey: &Survey, ledger: &Ledger) -> HashSet<ChunkId> {
    let is_alive =
        |chunk: usize| ledger.states.get(chunk).is_none_or(|state| state.kept.count() > 0);
    let needed = survey.extents.iter().filter(|(chunk, _)| is_alive(*chunk));
    needed.map(|(_, extent)| extent.part).collect()
}

pub(super) async fn is_gone(context: &ServerContext, key: &Key) -> Result<bool, Error> {
    match read_header(context, key).await {
        Err(error) if error.kind == Kind::NotFound => Ok(true),
        Err(error) if error.kind.is_retryable() => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}
