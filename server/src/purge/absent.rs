//! What the log has and the store has lost: taken off the log once nothing needs it any more.
//!
//! Must hold: what had files deleted or hid them is taken off only when all that the metadata takes for
//! deleted are so without it, and no object is left that may hold others.

use std::collections::HashSet;

use bytes::Bytes;
use dl_format::{
    ChunkId, ChunkIdMaker, DatasetId, Deletions, EntryVersion, Extent, FilePath, ObjectKind,
};
use dl_proto::Kind;
use dl_store::Key;

use super::Purge;
use super::plan::Ledger;
use crate::error::Error;
use crate::headers::read_header;
use crate::parts::Parts;
use crate::survey::{Rows, Survey};

impl Purge<'_> {
    /// Takes winners that no tombstone names any more and that the metadata has as deleted, or as hidden
    /// by what is: the last moment is before that goes off the log.
    pub(super) async fn find_undone(
        &self,
        survey: &Survey,
        rows: &Rows,
        undone: &mut Deletions,
    ) -> Result<(), Error> {
        let winners = rows.paths().map(|(path, winner, _)| (path, winner.record.version));
        let winners = winners.filter(|(_, version)| !survey.named.contains(version));
        let winners = winners.map(|(path, version)| {
            let path = FilePath::new(Bytes::copy_from_slice(path));
            path.map(|path| (path, version))
                .map_err(|error| Error::new(Kind::Internal, "look up", "a path", error))
        });
        let winners: Vec<(FilePath, EntryVersion)> = winners.collect::<Result<_, _>>()?;
        let are_ended = survey.are_ended(self.parts, &winners).await?;
        for ((_, version), is_ended) in winners.iter().zip(are_ended) {
            if is_ended {
                undone.insert(version);
            }
        }
        Ok(())
    }

    /// How many files the metadata has; none where it was written to, or purged by others, since the survey.
    pub(super) async fn counted(
        &self,
        dataset: DatasetId,
        survey: &Survey,
    ) -> Result<Option<u64>, Error> {
        let info = self.parts.meta.dataset(dataset).await;
        let info = info.map_err(|error| Error::meta("describe dataset", dataset, error))?;
        Ok(info.filter(|info| info.version == survey.version()).map(|info| info.files))
    }

    /// Deletes again what only the metadata has as deleted.
    pub(super) async fn delete_again(
        &self,
        dataset: DatasetId,
        undone: Deletions,
        ids: &mut ChunkIdMaker,
    ) -> Result<(), Error> {
        let files = undone.count();
        tracing::warn!(dataset = %self.name, files, "deleted again what lost objects had deleted or hid");
        self.put_tombstones(dataset, undone, ids).await
    }

    /// Takes objects off the log that are not in the store any more and that no file needs: a
    /// metadata store that lost its last writes may have brought them back, or somebody who had
    /// read them before they were removed. Whether there were any.
    pub(super) async fn retire_absent(
        &mut self,
        dataset: DatasetId,
        survey: &Survey,
        ledger: &Ledger,
    ) -> Result<bool, Error> {
        let (mut unneeded, mut tombstones) = (Vec::new(), Vec::new());
        let is_needed = |(chunk, _): &&(usize, Extent)| {
            ledger.states.get(*chunk).is_none_or(|state| state.kept.count() > 0)
        };
        let needed = survey.extents.iter().filter(is_needed).map(|(_, extent)| extent.part);
        let needed: HashSet<ChunkId> = needed.collect();
        let is_known =
            survey.unlogged() == 0 && !survey.has_unread_chunks() && ledger.undone.is_empty();
        for (number, object) in survey.objects.iter().enumerate() {
            if survey.stored.contains_key(&object.id) {
                continue;
            }
            let is_gone = match survey.unread.get(&number) {
                Some(why) => why.kind == Kind::NotFound,
                None if object.kind == ObjectKind::Part => {
                    is_gone(self.parts, &survey.key(object)).await?
                }
                None => false,
            };
            match object.kind {
                _ if !is_gone => {}
                ObjectKind::Tombstone => tombstones.push(object.id),
                ObjectKind::Part if needed.contains(&object.id) => {}
                // The last trace of what it hid, which may be there and not be read this time.
                ObjectKind::Chunk if !is_known => {}
                ObjectKind::Chunk | ObjectKind::Part => unneeded.push(object.id),
            }
        }
        if !tombstones.is_empty()
            && self.are_unneeded(dataset, &tombstones, survey, is_known, ledger.files).await?
        {
            unneeded.append(&mut tombstones);
        }
        if unneeded.is_empty() {
            return Ok(false);
        }
        self.refuse_read_only()?;
        Ok(!self.retire(dataset, &unneeded).await?.is_empty())
    }

    /// Whether all files that the metadata takes for deleted are so without these tombstones, which
    /// nobody can read any more; `files` are there by all that is left, if that `is_known`.
    async fn are_unneeded(
        &mut self,
        dataset: DatasetId,
        tombstones: &[ChunkId],
        survey: &Survey,
        is_known: bool,
        files: u64,
    ) -> Result<bool, Error> {
        let Some(counted) = self.counted(dataset, survey).await? else {
            // The next purge will tell.
            return Ok(false);
        };
        if is_known && counted == files {
            return Ok(true);
        }
        for id in tombstones {
            let name = self.name;
            let problem =
                format!("tombstone {id} is not in the store; run `dlcmd verify dl://{name}`");
            self.problem(problem).await;
        }
        Ok(false)
    }
}

pub(super) async fn is_gone(parts: &Parts, key: &Key) -> Result<bool, Error> {
    match read_header(parts, key).await {
        Err(error) if error.kind == Kind::NotFound => Ok(true),
        Err(error) if error.kind.is_retryable() => Err(error),
        Ok(_) | Err(_) => Ok(false),
    }
}
