//! What is told of objects that are lost or damaged, and of the files that need them.
//!
//! Must hold: each finding says what to do now, not after the metadata is gone as well.

use std::collections::{HashMap, HashSet};

use dl_format::{ChunkId, EntryVersion, FilePath, FileRecord, ObjectKind};
use dl_meta::{Found, ListEntry};

use super::{Doubt, Verify, everything};
use crate::error::Error;
use crate::survey::Survey;

/// An object of the log whose files are lost.
pub(super) struct Lost {
    /// In the log; none of a part that only a chunk names.
    pub(super) number: Option<usize>,
    /// Why its header can't be used; of an object that is gone, nothing.
    pub(super) damage: Option<String>,
    /// Of one that only has more bytes than it was written with: how many are its own.
    pub(super) whole: Option<u64>,
}

impl Verify<'_> {
    /// Which of these files the metadata has as deleted, though no tombstone does that can be read.
    pub(super) async fn undone(
        &self,
        survey: &Survey,
        expected: &[(FilePath, Option<FileRecord>)],
        found: &[Found],
    ) -> Result<Vec<bool>, Error> {
        let mut undone = vec![false; expected.len()];
        let absent = expected.iter().zip(found).enumerate().filter_map(|(number, (one, found))| {
            let version = one.1.as_ref()?.version;
            let is_absent = !matches!(found, Found::File(_));
            is_absent.then(|| (number, (one.0.clone(), version)))
        });
        let (numbers, files): (Vec<usize>, Vec<(FilePath, EntryVersion)>) = absent.unzip();
        let are_ended = survey.are_ended(self.parts, &files).await?;
        for (number, is_ended) in numbers.into_iter().zip(are_ended) {
            if let Some(is_undone) = undone.get_mut(number) {
                *is_undone = is_ended;
            }
        }
        Ok(undone)
    }

    /// Names the files whose bytes are gone, by what the metadata says of them.
    pub(super) async fn name_lost(
        &mut self,
        survey: &Survey,
        lost: &HashMap<ChunkId, Lost>,
    ) -> Result<(), Error> {
        self.lost.extend(lost.keys());
        let mut in_use: HashSet<ChunkId> = HashSet::new();
        let mut parts_of: HashMap<ChunkId, Vec<ChunkId>> = HashMap::new();
        for (number, extent) in &survey.extents {
            if let Some(chunk) = survey.objects.get(*number)
                && lost.contains_key(&extent.part)
            {
                parts_of.entry(chunk.id).or_default().push(extent.part);
            }
        }
        let mut query = everything();
        loop {
            let page = self.parts.meta.list(self.id, &query).await;
            let page = page.map_err(|error| Error::meta("list dataset", self.id, error))?;
            for entry in &page {
                let ListEntry::File(path, record) = entry else { continue };
                let chunk = record.holder.chunk;
                let parts = parts_of.get(&chunk).map(Vec::as_slice).unwrap_or_default();
                if !lost.contains_key(&chunk) && parts.is_empty() {
                    continue;
                }
                in_use.insert(chunk);
                in_use.extend(parts);
                let holder = lost.get(&chunk);
                let damage = holder.and_then(|lost| lost.damage.as_ref());
                let part = parts.first().and_then(|part| lost.get(part));
                let whole = holder.or(part).and_then(|lost| lost.whole);
                let problem = match (damage, parts.first()) {
                    // What is left of it may be read for as long as the metadata knows where.
                    (Some(_), _) => format!(
                        "{path} is lost, or will be with the metadata: its chunk {chunk} is damaged"
                    ),
                    (None, Some(part)) if !lost.contains_key(&chunk) => {
                        format!("{path} is lost: its part {part} is missing or damaged")
                    }
                    (None, _) => format!("{path} is lost: its chunk {chunk} is not in the store"),
                };
                // One that has the bytes already is not put again.
                let remedy = whole.map_or_else(|| self.put_again(path), cut_off);
                self.find(problem, format!("restore the object, or {remedy}")).await?;
            }
            self.tell().await?;
            query.after = page.last().map(ListEntry::key);
            if query.is_last(&page) {
                break;
            }
        }
        let mut lost: Vec<(&ChunkId, &Lost)> = lost.iter().collect();
        lost.sort_unstable_by_key(|(id, _)| **id);
        for (id, Lost { number, damage, whole }) in lost {
            // A purge removes parts before the chunks that name them.
            let Some(object) = number.and_then(|number| survey.objects.get(number)) else {
                continue;
            };
            if object.kind == ObjectKind::Tombstone {
                self.name_tombstone(survey, *id, damage.as_deref()).await?;
                continue;
            }
            let (problem, remedy) = match damage {
                Some(damage) if in_use.contains(id) => (
                    format!(
                        "{damage}; the files that need it are lost, or will be with the metadata"
                    ),
                    match whole {
                        Some(whole) => format!("restore the object, or {}", cut_off(*whole)),
                        None => "restore the object, or put these files again".to_owned(),
                    },
                ),
                Some(damage) => {
                    self.name_unneeded(damage).await?;
                    continue;
                }
                None if in_use.contains(id) => continue,
                None => {
                    let first = match survey.has_unread_chunks() {
                        // They may hold what it hid.
                        true => "mend what else is wrong, then ",
                        false => "",
                    };
                    (
                        format!("object {id} is not in the store; no file needs it"),
                        format!("{first}run `dlcmd purge {}`", self.name()),
                    )
                }
            };
            self.find(problem, remedy).await?;
        }
        Ok(())
    }

    /// Tells of a tombstone that nobody can read any more.
    async fn name_tombstone(
        &mut self,
        survey: &Survey,
        id: ChunkId,
        damage: Option<&str>,
    ) -> Result<(), Error> {
        let lost = format!("tombstone {id} is not in the store");
        let (problem, purge) =
            (damage.unwrap_or(&lost), format!("run `dlcmd purge {}`", self.name()));
        let (files, _) = self.undone;
        let (costs, remedy) = match damage {
            _ if files > 0 => {
                self.is_undone_told = true;
                (
                    format!("{files} deleted files come back if the metadata is lost"),
                    format!(
                        "restore the object; or {purge}, which deletes them again, then verify again"
                    ),
                )
            }
            // They may hold what it deleted.
            _ if survey.has_unread_chunks() => (
                "which files it deleted is not known, as chunks can't be read".to_owned(),
                "restore the object; or mend what else is wrong, then verify again".to_owned(),
            ),
            Some(_) => (
                "no deleted file needs it".to_owned(),
                format!("remove it from the chunk store, then {purge}"),
            ),
            None => ("no deleted file needs it".to_owned(), purge),
        };
        self.find(format!("{problem}; {costs}"), remedy).await
    }

    /// Tells of files that only the metadata has as deleted, where no tombstone was told that they were
    /// deleted by.
    pub(super) async fn name_undone(&mut self, survey: &Survey) -> Result<(), Error> {
        let (files, _) = self.undone;
        if files == 0 || self.is_undone_told {
            return Ok(());
        }
        let problem = format!("{files} deleted files come back if the metadata is lost, as ");
        if !survey.has_losses() {
            let problem = problem + "a chunk of theirs that had been purged is in the store again";
            let remedy = format!("run `dlcmd purge {}`, which deletes them again", self.name());
            self.doubt(Doubt { problem, holder: None, remedy: Some(remedy) });
            return Ok(());
        }
        // A newer version, itself deleted, hid them.
        let problem = problem + "what was put over them is lost or damaged";
        let remedy = format!(
            "restore that; or run `dlcmd purge {}`, which deletes them again, then verify again",
            self.name()
        );
        self.find(problem, remedy).await
    }
}

pub(super) fn cut_off(whole: u64) -> String {
    format!("cut off what is behind its first {whole} bytes")
}
