//! Huge pages for the arena, taken beside the work of the agent.
//!
//! Must hold: no fill waits for a huge page, since the kernel may have to free 2 MiB in one piece
//! first. Collapses take a tenth of the time of one core, at most.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::blocking;

use super::Cache;

/// The pause after a collapse, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 9;

/// Interval between two looks for more memory.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The time before a page without success is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Moves the arena into huge pages, page by page, until all are huge or the kernel refuses.
pub(crate) async fn collapse_all(cache: Arc<Cache>) {
    let clock = Arc::clone(&cache.clock);
    let arena = loop {
        if let Some(arena) = cache.state().slots.arena() {
            break arena;
        }
        clock.sleep(POLL_INTERVAL).await;
    };
    let mut left = Vec::from_iter((0..arena.huge_pages()).rev());
    let mut failed = VecDeque::new();
    while !left.is_empty() || !failed.is_empty() {
        let is_due = |(at, _): &mut (Duration, usize)| *at <= clock.monotonic();
        let page = failed.pop_front_if(is_due).map(|(_, page)| page).or_else(|| left.pop());
        let Some(page) = page else {
            clock.sleep(POLL_INTERVAL).await;
            continue;
        };
        let (began, memory) = (clock.monotonic(), Arc::clone(&arena));
        let done = blocking::run(move || memory.collapse(page)).await;
        let pause = PAUSE_FACTOR * clock.monotonic().saturating_sub(began);
        let pause = match done {
            Ok(Ok(true)) => pause,
            Ok(Ok(false)) => {
                left.push(page);
                POLL_INTERVAL
            }
            Ok(Err(why)) if why.kind() == io::ErrorKind::InvalidInput => {
                tracing::info!(%why, "the kernel gives the arena no huge pages");
                return;
            }
            // For example without 2 MiB in one piece.
            Ok(Err(_)) => {
                failed.push_back((clock.monotonic().saturating_add(RETRY_DELAY), page));
                pause.max(POLL_INTERVAL)
            }
            Err(_) => return,
        };
        clock.sleep(pause).await;
    }
}
