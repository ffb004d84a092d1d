//! How much memory this process has, as the kernel tells it.
//!
//! Must hold: no thread that answers requests waits for that.

use dl_runtime::blocking;

/// Bytes that are in use; none when nobody can tell.
pub(crate) async fn resident() -> Option<u64> {
    told_as("VmRSS:").await
}

/// The most that ever were.
pub(crate) async fn peak() -> Option<u64> {
    told_as("VmHWM:").await
}

async fn told_as(name: &'static str) -> Option<u64> {
    let told = blocking::run(move || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix(name))?.trim();
        kib.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    });
    told.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_that_was_taken_is_in_use_and_then_part_of_the_most_that_was() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let resident = resident().await.unwrap();
        drop(block);
        let peak = peak().await.unwrap();
        assert!(resident >= 64 << 20 && peak >= 64 << 20, "{resident} of {peak}");
    }
}
