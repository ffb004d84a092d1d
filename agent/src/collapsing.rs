//! Huge pages for the arena, taken beside the work of the agent.
//!
//! Must hold: no fill waits for a huge page, since the kernel may have to free 2 MiB in one piece
//! first. Collapses take a tenth of the time of one core, at most.

use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, SystemClock, blocking, since_boot};

use crate::cache::Cache;

/// The pause after a collapse, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 9;

/// Interval between two looks for more memory.
const LOOK: Duration = Duration::from_millis(200);

/// The pause before pages without success are tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Refusals in a row that mean a kernel without huge pages for shared memory.
const REFUSALS_MAX: usize = 16;

/// Moves the arena into huge pages, page by page, until all are huge or the kernel refuses.
pub(crate) async fn collapse_all(cache: Arc<Cache>) {
    let clock = SystemClock::new();
    let arena = loop {
        let arena = cache.state().arena.as_ref().map(|(arena, _)| Arc::clone(arena));
        if let Some(arena) = arena {
            break arena;
        }
        clock.sleep(LOOK).await;
    };
    let (mut left, mut refusals) = (Vec::from_iter((0..arena.huge_pages()).rev()), 0);
    let mut failed = Vec::new();
    loop {
        let Some(page) = left.pop() else {
            if failed.is_empty() {
                return;
            }
            left = std::mem::take(&mut failed);
            clock.sleep(AGAIN).await;
            continue;
        };
        let (began, memory) = (since_boot(), Arc::clone(&arena));
        let pause = match blocking::run(move || memory.collapse(page)).await {
            Ok(Ok(true)) => {
                refusals = 0;
                PAUSE_FACTOR * since_boot().saturating_sub(began)
            }
            Ok(Ok(false)) => {
                left.push(page);
                LOOK
            }
            Ok(Err(why)) => {
                refusals += 1;
                if refusals >= REFUSALS_MAX {
                    tracing::info!(%why, "the kernel gives the arena no huge pages");
                    return;
                }
                failed.push(page);
                PAUSE_FACTOR * since_boot().saturating_sub(began)
            }
            Err(_) => return,
        };
        clock.sleep(pause).await;
    }
}
