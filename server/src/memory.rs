//! The memory of the process, read from the kernel.
//!
//! Must hold: no answering thread waits for the kernel.

use dl_runtime::blocking;

/// Bytes in use; none where the kernel gives no number.
pub(crate) async fn resident() -> Option<u64> {
    let told = blocking::run(|| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim();
        kib.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    });
    told.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_that_was_taken_is_in_use() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let resident = resident().await.unwrap();
        drop(block);
        assert!(resident >= 64 << 20, "{resident}");
    }
}
