//! Delays answers to peers that show wrong keys, longer each time.
//!
//! Must hold: memory is bounded for any number of peers. Right keys from the same address never wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::{Clock, locked};
use tokio::sync::Semaphore;

/// Most addresses in memory.
const PEERS_MAX: usize = 4_096;
/// Memory of an address after its last failure.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The wait after the second failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait: clients, which may ask many servers in turn, wait as long for an answer.
const LONGEST_WAIT: Duration = Duration::from_millis(800);
/// Most waiting answers; further answers come at once, as each costs only a hash.
const WAITING_MAX: usize = 256;

/// Recent failures by address.
#[derive(Debug)]
pub(crate) struct Failures {
    peers: Mutex<HashMap<IpAddr, Failed>>,
    waiting: Semaphore,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Clone, Copy)]
struct Failed {
    times: u32,
    last: Duration,
}

impl Failures {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { peers: Mutex::default(), waiting: Semaphore::new(WAITING_MAX), clock }
    }

    /// Counts a failure; gives the number of recent failures of the peer.
    pub(crate) fn count(&self, peer: IpAddr) -> u32 {
        let now = self.clock.monotonic();
        let peer = neighbourhood(peer);
        let mut peers = locked(&self.peers);
        let is_late = |failed: &Failed| now.saturating_sub(failed.last) < REMEMBERED;
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.retain(|_, failed| is_late(failed));
            if peers.len() >= PEERS_MAX {
                // So many peers at once are no typing errors; all counts begin again.
                peers.clear();
            }
        }
        let failed = peers.entry(peer).or_insert(Failed { times: 0, last: now });
        if !is_late(failed) {
            failed.times = 0;
        }
        *failed = Failed { times: failed.times.saturating_add(1), last: now };
        failed.times
    }

    /// Waits before the answer to a failure with this count.
    pub(crate) async fn wait(&self, times: u32) {
        let doubled = times.saturating_sub(2).min(16);
        if times > 1
            && let Ok(_place) = self.waiting.try_acquire()
        {
            self.clock.sleep((FIRST_WAIT * (1 << doubled)).min(LONGEST_WAIT)).await;
        }
    }
}

/// The address, or its /64 network for IPv6, as a peer may own a whole network.
fn neighbourhood(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;

    use super::*;

    fn failures(clock: &Arc<ManualClock>) -> Failures {
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        Failures::new(clock)
    }

    #[tokio::test]
    async fn each_wait_is_longer_than_the_one_before_up_to_a_bound() {
        let clock = Arc::new(ManualClock::jumping(UNIX_EPOCH));
        let failures = failures(&clock);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let before = clock.monotonic();
            failures.wait(failures.count([10, 0, 0, 1].into())).await;
            waits.push((clock.monotonic() - before).as_millis());
        }
        assert_eq!(waits, [0, 50, 100, 200, 400, 800, 800, 800]);
        assert_eq!(failures.count([10, 0, 0, 2].into()), 1);
        clock.advance(REMEMBERED);
        assert_eq!(failures.count([10, 0, 0, 1].into()), 1);
    }

    #[test]
    fn however_many_addresses_fail_few_are_remembered() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let failures = failures(&clock);
        for number in 0..3 * PEERS_MAX as u128 {
            failures.count(IpAddr::V6(Ipv6Addr::from_bits(number << 64)));
        }
        assert!(failures.peers.lock().unwrap().len() <= PEERS_MAX);
        // One network is one peer.
        assert_eq!(failures.count("2001:db8::1".parse().unwrap()), 1);
        assert_eq!(failures.count("2001:db8::2".parse().unwrap()), 2);
    }
}
