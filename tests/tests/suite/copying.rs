//! A checked copy gives the bytes and the checksum of two separate passes.

use anyhow::{Result, ensure};
use dl_format::Crc32c;
use dl_runtime::copy_checked;
use dl_tests::dice::Dice;
use dl_tests::skip;

#[test]
fn copy_and_checksum_match_two_separate_passes() -> Result<()> {
    let Some(copy) = copy_checked() else {
        return skip("no checked copy exists for this processor");
    };
    let bytes = Dice::new(1).bytes(70_000);
    for length in (0..=1_100).chain([4_095, 4_096, 4_097, 65_536, 69_900]) {
        for (from, before) in [(0, 0), (1, 3), (63, 64)] {
            let data = &bytes[from..from + length];
            let mut to = bytes[..before].to_vec();
            let crc = copy(data, &mut to);
            ensure!(crc == Crc32c::of(data).value(), "the checksum of {length} bytes from {from}");
            ensure!(to == [&bytes[..before], data].concat(), "{length} bytes from {from}");
        }
    }
    Ok(())
}
