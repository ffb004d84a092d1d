//! File systems that are no local disk.
//!
//! Must hold: an unknown file system counts as a local disk.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstatfs;

/// Network file systems and FUSE, by the numbers in statfs(2) and of their own headers.
const KINDS: [(u64, &str); 11] = [
    (0x6969, "NFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x6573_5546, "FUSE"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x00C3_6400, "Ceph"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x0102_1997, "9P"),
    (0x5346_414F, "AFS"),
];

/// The kind of the network file system on which a folder is, if it is on one.
pub(super) fn network_of(folder: impl AsFd) -> io::Result<Option<&'static str>> {
    // Some of the numbers are signed on some machines.
    Ok(kind(fstatfs(folder)?.f_type as u64 & u64::from(u32::MAX)))
}

fn kind(number: u64) -> Option<&'static str> {
    KINDS.iter().find(|(of, _)| *of == number).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn network_file_systems_are_told_from_disks() {
        assert_eq!(kind(0x6969), Some("NFS"));
        assert_eq!(kind(0xEF53), None, "ext4");
        // proc is none of them.
        assert_eq!(network_of(File::open("/proc/self").unwrap()).unwrap(), None);
    }
}
