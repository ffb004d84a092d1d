//! Findings about lost or damaged objects, and about their files.
//!
//! Must hold: each finding has a remedy for now, not for a time after the metadata is gone as well.

use std::collections::{HashMap, HashSet};

use dl_format::{ChunkId, FilePath, ObjectKind};
use dl_meta::ListEntry;

use super::{Verify, everything};
use crate::datasets::survey::Survey;
use crate::error::{Doing, Error};

pub(super) struct Lost {
    /// The number in the log; none of a part outside of the log.
    pub(super) number: Option<usize>,
    /// The damage of the header; none for a missing object.
    pub(super) damage: Option<String>,
    /// The original length in bytes, if the only damage is more bytes.
    pub(super) whole: Option<u64>,
}

impl Verify<'_> {
    /// Names the files with lost bytes, by the rows of the metadata, and then the objects.
    pub(super) async fn name_lost(
        &mut self,
        survey: &Survey,
        lost: &HashMap<ChunkId, Lost>,
    ) -> Result<(), Error> {
        self.lost.extend(lost.keys());
        let in_use = self.name_lost_files(survey, lost).await?;
        let mut lost: Vec<(&ChunkId, &Lost)> = lost.iter().collect();
        lost.sort_unstable_by_key(|(id, _)| **id);
        for (id, lost) in lost {
            // A part outside of the log is named with its file: a purge removes parts before their chunks.
            if lost.number.and_then(|number| survey.objects.get(number)).is_none() {
                continue;
            }
            match &lost.damage {
                Some(damage) if in_use.contains(id) => {
                    let problem = format!(
                        "{damage}; the files that need it are lost, or will be with the metadata"
                    );
                    let remedy = match lost.whole {
                        Some(whole) => format!("restore the object, or {}", cut_off(whole)),
                        None => "restore the object, or put these files again".to_owned(),
                    };
                    self.find(problem, remedy).await?;
                }
                None if in_use.contains(id) => {}
                damage => self.name_unneeded(survey, *id, damage.as_deref()).await?,
            }
        }
        Ok(())
    }

    /// Names the files with lost bytes; gives their objects.
    async fn name_lost_files(
        &mut self,
        survey: &Survey,
        lost: &HashMap<ChunkId, Lost>,
    ) -> Result<HashSet<ChunkId>, Error> {
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
            let page =
                self.context.meta.list(self.id, &query).await.doing("list dataset", self.id)?;
            for entry in &page {
                let ListEntry::File(path, record) = entry else { continue };
                let chunk = record.holder.chunk;
                let parts = parts_of.get(&chunk).map(Vec::as_slice).unwrap_or_default();
                if lost.contains_key(&chunk) || !parts.is_empty() {
                    in_use.insert(chunk);
                    in_use.extend(parts);
                    self.name_lost_file(path, chunk, parts.first(), lost).await?;
                }
            }
            self.tell().await?;
            query.after = page.last().map(ListEntry::key);
            if query.is_last(&page) {
                return Ok(in_use);
            }
        }
    }

    async fn name_lost_file(
        &mut self,
        path: &FilePath,
        chunk: ChunkId,
        part: Option<&ChunkId>,
        lost: &HashMap<ChunkId, Lost>,
    ) -> Result<(), Error> {
        let holder = lost.get(&chunk);
        let whole = holder.or(part.and_then(|part| lost.get(part))).and_then(|lost| lost.whole);
        let problem = match (holder, part) {
            // As long as the metadata knows the place, intact bytes can be read.
            (Some(Lost { damage: Some(_), .. }), _) => {
                format!(
                    "{path} is lost, or will be with the metadata: its chunk {chunk} is damaged"
                )
            }
            (None, Some(part)) => {
                format!("{path} is lost: its part {part} is missing or damaged")
            }
            (_, _) => format!("{path} is lost: its chunk {chunk} is not in the store"),
        };
        // `put` skips a file whose bytes are there.
        let remedy = match whole {
            Some(whole) => cut_off(whole),
            None => format!("{}, or delete the file", self.put_again(path)),
        };
        self.find(problem, format!("restore the object, or {remedy}")).await
    }

    /// Names a lost or damaged object without live files, which a recovery needs as well.
    pub(super) async fn name_unneeded(
        &mut self,
        survey: &Survey,
        id: ChunkId,
        damage: Option<&str>,
    ) -> Result<(), Error> {
        let number = survey.objects.binary_search_by_key(&id, |object| object.id);
        let object = number.ok().and_then(|number| survey.objects.get(number));
        let noun = match object.map(|object| object.kind) {
            Some(ObjectKind::Tombstone) => "tombstone",
            _ => "object",
        };
        let lost = format!("{noun} {id} is not in the store");
        // The object may have deleted or replaced files still in other chunks.
        let is_needed = self.missing > 0 || damage.is_none() && survey.has_unread_chunks();
        let first = match is_needed {
            true => "mend what else is found, then ",
            false => "",
        };
        let remove = if damage.is_some() { "remove it from the chunk store, then " } else { "" };
        let problem = format!("{}; no file needs it", damage.unwrap_or(&lost));
        let remedy =
            format!("restore the object; or {first}{remove}run `dlcmd purge {}`", self.name());
        self.find(problem, remedy).await
    }
}

pub(super) fn cut_off(whole: u64) -> String {
    format!("cut off what is behind its first {whole} bytes")
}
