//! Members of training jobs: an expiring hash for each job and dataset.
//!
//! Must hold: each call is a single script with a single key. After a loss, heartbeats restore the members.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dl_format::{MemberId, Stamp, Version};
use redis::Value;

use super::Shared;
use super::command::{Ask, decimal, pairs};
use super::failure::Failure;
use super::keys;
use super::scripts::{CROWDED, MEMBERS};
use crate::tasks::{SECRET_LENGTH, is_alive, now_of};
use crate::{Error, Heartbeat, TaskGroup, TaskKey, TaskTerms};

/// A job without heartbeats expires after so many times the life of a member.
const EXPIRES_AFTER: u64 = 2;

impl Shared {
    pub(super) async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Result<Option<TaskGroup>, Error>, Failure> {
        match self.members(beat, terms, false).await? {
            Value::Int(CROWDED) => Ok(Err(beat.crowded())),
            value => Ok(Ok(group(value)?.map(Group::all))),
        }
    }

    pub(super) async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Failure> {
        let left = group(self.members(beat, None, true).await?)?;
        Ok(left.map(|group| group.terms))
    }

    pub(super) async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Failure> {
        let value = self.router.ask_one(Ask::to(&keys::task(task), "HGETALL")).await?;
        Ok(group(value)?.and_then(|group| group.living(now, dead_after)))
    }

    async fn members(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
        is_leaving: bool,
    ) -> Result<Value, Failure> {
        let dead_after = beat.dead_after_micros();
        let (fixed, until) = terms.map_or((Vec::new(), 0), |terms| {
            let fixed = [&terms.version.to_bytes()[..], &terms.secret[..]].concat();
            (fixed, terms.leased_until.get())
        });
        let ask = Ask::script(&MEMBERS, &keys::task(&beat.task), &[])
            .arg([b"m", &beat.member.as_bytes()[..]].concat())
            .arg(&beat.record[..])
            .arg(beat.now.get())
            .arg(dead_after)
            .arg((dead_after / 1_000).saturating_mul(EXPIRES_AFTER).max(1))
            .arg(beat.most)
            .arg(fixed)
            .arg(until)
            .arg(u8::from(is_leaving));
        self.router.ask_one(ask).await
    }
}

/// A job in its hash.
struct Group {
    terms: TaskTerms,
    /// The last heartbeat and the record of each member.
    members: BTreeMap<MemberId, (Stamp, Bytes)>,
}

impl Group {
    fn all(self) -> TaskGroup {
        let members = self.members.into_iter().map(|(id, (_, record))| (id, record)).collect();
        TaskGroup { terms: self.terms, members }
    }

    fn living(mut self, now: Stamp, dead_after: Duration) -> Option<TaskGroup> {
        let now = now_of(self.members.values().map(|(seen, _)| *seen), now);
        self.members.retain(|_, (seen, _)| is_alive(*seen, now, dead_after));
        (!self.members.is_empty()).then(|| self.all())
    }
}

/// A job from its hash; none without a hash.
fn group(value: Value) -> Result<Option<Group>, Failure> {
    let corrupt = || Failure::corrupt("a training job in Redis can't be read");
    let pairs = if value == Value::Nil { Vec::new() } else { pairs(value)? };
    if pairs.is_empty() {
        return Ok(None);
    }
    let (mut terms, mut until, mut members) = (None, None, BTreeMap::new());
    for (field, value) in pairs {
        match field.split_first() {
            Some((b't', [])) => {
                let (version, secret) =
                    value.split_at_checked(Version::LENGTH).ok_or_else(corrupt)?;
                let version = Version::from_bytes(version).map_err(|_| corrupt())?;
                let secret: [u8; SECRET_LENGTH] = secret.try_into().map_err(|_| corrupt())?;
                terms = Some((version, secret));
            }
            Some((b'u', [])) => until = Some(Stamp::new(decimal(Some(&value))?)),
            Some((b'm', id)) => {
                let id = MemberId::from_bytes(id.try_into().map_err(|_| corrupt())?);
                let space = value.iter().position(|byte| *byte == b' ').ok_or_else(corrupt)?;
                let seen = Stamp::new(decimal(value.get(..space).map(<[u8]>::to_vec).as_ref())?);
                members.insert(id, (seen, Bytes::from(value).slice(space + 1..)));
            }
            _ => return Err(corrupt()),
        }
    }
    let ((version, secret), leased_until) = terms.zip(until).ok_or_else(corrupt)?;
    Ok(Some(Group { terms: TaskTerms { version, secret, leased_until }, members }))
}
