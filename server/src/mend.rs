//! What a metadata store lost on its own, while servers run: noticed, and brought back from the
//! chunk store where its extent is known (paper, 4.1.2).
//!
//! Must hold: nothing is taken for mended before all that may be missing was appended again; what
//! needs a recovery of everything is told, and left to an administrator. Metadata that turns out to be
//! that of another chunk store is touched no more.

use std::time::Duration;

use dl_meta::Damage;

use crate::error::Error;
use crate::identity::Tie;
use crate::parts::Parts;
use crate::recover;

/// How often is looked; a store that tells its losses by time counts on it.
const PERIOD: Duration = Duration::from_secs(1);

/// Looks after the metadata for as long as it is that of the chunk store; otherwise the server has
/// to end. Of several servers each does: what one of them appends again, the others find there.
pub(crate) async fn watch(parts: &Parts) -> Error {
    let (mut told, mut tie) = (None, Tie::default());
    loop {
        parts.clock.sleep(PERIOD).await;
        if let Err(foreign) = tie.check(parts).await {
            return foreign;
        }
        let damage = match parts.meta.damage().await {
            Ok(damage) => damage,
            // It is told to everybody who asks anything.
            Err(error) => {
                tracing::debug!(%error, "metadata can't be looked at");
                continue;
            }
        };
        let is_new = damage != told;
        told = damage;
        match damage {
            Some(Damage { since: Some(since) }) => {
                let since_micros = since.get();
                tracing::warn!(
                    since_micros,
                    "metadata may lack its last writes: appending them again"
                );
                match recover::append_again(parts, since).await {
                    Ok(adopted) => tracing::info!(adopted, "metadata is whole again"),
                    Err(error) => tracing::error!(error = error.chain(), "metadata is not whole"),
                }
            }
            Some(Damage { since: None }) if is_new => {
                tracing::error!("metadata was lost: run `dlcmd recover --all`");
            }
            Some(Damage { since: None }) | None => {}
        }
    }
}
