//! Huge pages for the arena, taken beside the work of the agent.
//!
//! Must hold: no fill waits for a huge page, since the kernel may have to free 2 MiB in one piece
//! first. Collapses take a tenth of the time of one core, at most.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, SystemClock, blocking, since_boot};

use crate::cache::Cache;

/// The pause after a collapse, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 9;

/// Interval between two looks for more memory.
const LOOK: Duration = Duration::from_millis(200);

/// The time before a page without success is tried again.
const AGAIN: Duration = Duration::from_secs(60);

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
    let mut left = Vec::from_iter((0..arena.huge_pages()).rev());
    let mut failed = VecDeque::new();
    while !left.is_empty() || !failed.is_empty() {
        let is_due = |(at, _): &mut (Duration, usize)| *at <= since_boot();
        let page = failed.pop_front_if(is_due).map(|(_, page)| page).or_else(|| left.pop());
        let Some(page) = page else {
            clock.sleep(LOOK).await;
            continue;
        };
        let (began, memory) = (since_boot(), Arc::clone(&arena));
        let done = blocking::run(move || memory.collapse(page)).await;
        let pause = PAUSE_FACTOR * since_boot().saturating_sub(began);
        let pause = match done {
            Ok(Ok(true)) => pause,
            Ok(Ok(false)) => {
                left.push(page);
                LOOK
            }
            Ok(Err(why)) if why.kind() == io::ErrorKind::InvalidInput => {
                tracing::info!(%why, "the kernel gives the arena no huge pages");
                return;
            }
            // For example without 2 MiB in one piece.
            Ok(Err(_)) => {
                failed.push_back((since_boot().saturating_add(AGAIN), page));
                pause.max(LOOK)
            }
            Err(_) => return,
        };
        clock.sleep(pause).await;
    }
}
