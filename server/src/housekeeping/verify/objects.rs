//! Objects of the log missing in the store, and objects of the store missing in the log.
//!
//! Must hold: an object removed by a purge or added by a writer meanwhile is no finding; each folder of the store
//! is listed at most once more, however many objects are missing in it, and the client hears of the progress
//! all the time.

use std::collections::{BTreeMap, HashMap, HashSet};

use dl_format::{ChunkId, Header, ObjectKind, hash_byte, hash_prefix, parse_object_key};
use dl_proto::Kind;
use dl_store::{Key, StoreExt};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::lost::{Lost, cut_off};
use super::{Away, Remedy, Verify};
use crate::datasets::headers::read_header;
use crate::datasets::survey::{Survey, cut, is_logged};
use crate::error::{Doing, Error};
use crate::shared::context::prefix;

/// The most objects outside of the log whose headers are read: of more objects, most can be recovered.
const LOOKED_INTO: usize = 1_000;
/// Objects looked up in the log in parallel.
const ASKED_AT_ONCE: usize = 16;

impl Verify<'_> {
    /// Compares the log with the store.
    pub(super) async fn objects(&mut self, survey: &Survey) -> Result<(), Error> {
        for key in &survey.strays {
            let problem = format!("{key} in the chunk store is no object of a dataset");
            self.find(problem, "move it away, if nobody else needs it").await?;
        }
        let mut lost = self.unlogged(survey).await?;
        for (number, object) in survey.objects.iter().enumerate() {
            let damage = match survey.unread.get(&number) {
                Some(error) if error.kind == Kind::Corrupt => error.chain(),
                // Removed since the listing: looked for below.
                Some(error) if error.kind == Kind::NotFound => continue,
                Some(error) => {
                    self.lost.insert(object.id);
                    let problem = format!("{}; its files can't be read", error.chain());
                    self.find(problem, "make the object readable, then verify again").await?;
                    continue;
                }
                // The headers of parts are read apart.
                None if object.kind == ObjectKind::Part => match survey.cut(object) {
                    Some(cut) => Error::new(Kind::Corrupt, "read", survey.key(object), cut).chain(),
                    None => continue,
                },
                None => continue,
            };
            let is_grown = survey.is_grown(object, &damage);
            let whole = is_grown.then_some(object.object_length);
            lost.insert(object.id, Lost { number: Some(number), damage: Some(damage), whole });
        }
        for number in self.gone(survey).await? {
            if let Some(object) = survey.objects.get(number) {
                lost.insert(object.id, Lost { number: Some(number), damage: None, whole: None });
            }
        }
        for (_, extent) in &survey.extents {
            let part = extent.part;
            if survey.is_logged(&part) || survey.stored.contains_key(&part) {
                continue;
            }
            // The part may have come after the log was read.
            if !is_logged(self.context, self.id, part).await? {
                lost.insert(part, Lost { number: None, damage: None, whole: None });
            }
        }
        if !lost.is_empty() {
            self.name_lost(survey, &lost).await?;
        }
        self.tell().await
    }

    /// Reads the headers of the parts of large files. The survey has read the other headers.
    pub(super) async fn part_headers(&mut self, survey: &Survey) -> Result<(), Error> {
        let numbers = survey.of_kind(ObjectKind::Part);
        let numbers = numbers.into_iter().filter(|number| {
            let object = survey.objects.get(*number);
            // Lost parts were reported before.
            object.is_some_and(|object| !self.lost.contains(&object.id))
        });
        let (context, mut away, mut damaged) = (self.context, Away::default(), Vec::new());
        let mut headers = std::pin::pin!(survey.headers(context, numbers.collect()));
        while let Some((number, header)) = headers.next().await {
            let Some(object) = survey.objects.get(number) else { continue };
            match away.note(context, header).await? {
                Ok(header) if self.can_be_adopted(survey, object.id, &header) => {}
                // Removed since the listing, or reported before.
                Err(error) if error.kind == Kind::NotFound => {}
                Err(error) if error.kind != Kind::Corrupt => {
                    self.lost.insert(object.id);
                    let remedy = "make the object readable, then verify again";
                    self.find(error.chain(), remedy).await?;
                }
                Ok(_) => damaged.push((object.id, another(&survey.key(object)))),
                Err(error) => damaged.push((object.id, error.chain())),
            }
            self.mention(self.state.checked)?;
        }
        let is_whole = damaged.is_empty() || survey.is_whole();
        for (part, damage) in damaged {
            self.lost.insert(part);
            self.mention(self.state.checked)?;
            let is_told = self.name_damaged_part(survey, part).await?;
            if is_told || !is_logged(self.context, self.id, part).await? {
                continue;
            }
            if is_whole {
                self.name_unneeded(survey, part, Some(&damage)).await?;
            } else {
                // A chunk that can't be read may name it.
                let remedy = "restore the object; or mend what else is wrong, then verify again";
                self.find(damage, remedy).await?;
            }
        }
        self.tell().await
    }

    /// Reports objects missing in the log; gives the objects beyond recovery.
    async fn unlogged(&mut self, survey: &Survey) -> Result<HashMap<ChunkId, Lost>, Error> {
        let unlogged = survey.stored.keys().filter(|id| !survey.is_logged(id));
        let unlogged: HashSet<ChunkId> = unlogged.copied().collect();
        let folders: HashSet<u8> = unlogged.iter().map(|id| hash_byte(*id)).collect();
        let (mut damaged, mut others) = (HashMap::new(), 0);
        for folder in folders {
            // A purge removes an object soon after it took the object off the log.
            for key in self.listed(folder).await? {
                let named = parse_object_key(key.as_str());
                let Some((_, id, _)) = named.filter(|(_, id, _)| unlogged.contains(id)) else {
                    continue;
                };
                let Some((damage, whole)) = self.damage(survey, unlogged.len(), id, &key).await
                else {
                    others += 1;
                    continue;
                };
                let problem = format!("{damage}; no recovery brings it back");
                let is_part = survey.extents.iter().any(|(_, extent)| extent.part == id);
                let remedy = match whole {
                    Some(whole) => {
                        format!("restore the object, or {}, and {}", cut_off(whole), self.recover())
                    }
                    None if is_part => {
                        "restore the object; or put the file again that it is a part of".to_owned()
                    }
                    None => "restore the object; or move it away, if no file needs it".to_owned(),
                };
                self.find(problem, remedy).await?;
                damaged.insert(id, Lost { number: None, damage: Some(damage), whole });
            }
        }
        if others > 0 {
            let problem = format!("{others} objects in the chunk store are not in the metadata");
            self.doubt(problem, None, Remedy::Other(self.recover()));
        }
        Ok(damaged)
    }

    /// The damage of an object missing in the log, if the object is beyond recovery; and its own bytes, if only
    /// more bytes follow them.
    async fn damage(
        &self,
        survey: &Survey,
        unlogged: usize,
        id: ChunkId,
        key: &Key,
    ) -> Option<(String, Option<u64>)> {
        if unlogged > LOOKED_INTO {
            return None;
        }
        match read_header(self.context, key).await {
            Ok(header) if self.can_be_adopted(survey, id, &header) => None,
            Ok(header) => {
                let own = header.object_length();
                let size = survey.stored.get(&id).copied().unwrap_or_default();
                let is_it = (header.dataset(), header.id()) == (self.id, id);
                if is_it && size > own && header.committed().is_ok() {
                    let why = cut(size, own).unwrap_or_default();
                    let why = Error::new(Kind::Corrupt, "read", key, why).chain();
                    return Some((why, Some(own)));
                }
                Some((another(key), None))
            }
            Err(error) => (error.kind == Kind::Corrupt).then(|| (error.chain(), None)),
        }
    }

    fn can_be_adopted(&self, survey: &Survey, id: ChunkId, header: &Header) -> bool {
        let is_it = (header.dataset(), header.id()) == (self.id, id);
        // The length of an object after the listing was checked by its server.
        let size = survey.stored.get(&id);
        let is_whole = size.is_none_or(|size| *size == header.object_length());
        is_it && is_whole && header.clone().committed().is_ok()
    }

    /// The numbers of the objects missing in the store, without objects removed by a purge meanwhile or made
    /// after the listing.
    async fn gone(&self, survey: &Survey) -> Result<Vec<usize>, Error> {
        let mut missed: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (number, object) in survey.objects.iter().enumerate() {
            let unread = survey.unread.get(&number);
            if !survey.stored.contains_key(&object.id)
                || unread.is_some_and(|error| error.kind == Kind::NotFound)
            {
                missed.entry(hash_byte(object.id)).or_default().push(number);
            }
        }
        let mut gone = Vec::new();
        for (folder, missed) in missed {
            // By the listing: this process can read a removed file that it has open.
            let listed: HashSet<Key> = self.listed(folder).await?.into_iter().collect();
            let missed = missed.into_iter().filter_map(|number| {
                let object = survey.objects.get(number)?;
                (!listed.contains(&survey.key(object))).then_some((number, object.id))
            });
            let missed: Vec<(usize, ChunkId)> = missed.collect();
            let asked = stream::iter(missed).map(|(number, id)| async move {
                let is_logged = is_logged(self.context, self.id, id).await?;
                Ok::<_, Error>(is_logged.then_some(number))
            });
            let mut asked = std::pin::pin!(asked.buffered(ASKED_AT_ONCE));
            while let Some(number) = asked.try_next().await? {
                gone.extend(number);
            }
        }
        Ok(gone)
    }

    /// The objects in a folder of the dataset now.
    async fn listed(&self, folder: u8) -> Result<Vec<Key>, Error> {
        self.mention(self.state.checked)?;
        let below = prefix(hash_prefix(self.id, folder));
        let listed =
            self.context.store.list_sorted(&below).await.storing("list objects below", &below)?;
        Ok(listed.into_iter().map(|object| object.key).collect())
    }
}

fn another(key: &Key) -> String {
    format!("{key} is another object than its key and length say")
}
