//! The turn to rebuild, which keeps several servers from the same work.
//!
//! Must hold: the turn ends by itself when its owner renews it no longer. No answer depends on the turn: several
//! rebuilds at once don't disturb each other.

use std::time::Duration;

use super::Shared;
use super::command::{Ask, number};
use super::failure::Failure;
use super::keys;
use super::scripts::TURN;
use super::slots::Shard;

impl Shared {
    pub(super) async fn rebuild_turn(&self, owner: u64, lasts: Duration) -> Result<bool, Failure> {
        let turn = Ask::script(&TURN, &keys::shard_mark(Shard::FIRST), &[&keys::rebuild_turn()])
            .arg(owner)
            .arg(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        Ok(number(&self.router.ask_one(turn).await?)? == 1)
    }
}
