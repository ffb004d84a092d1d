//! Which folders of a machine are its own.
//!
//! Must hold: nothing is kept where another machine may remove what is mapped here, nor where
//! another user may have put it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::process::getuid;

/// File systems of networks, as `statfs` calls them: a file that one machine removes is gone for the
/// others, also where they have it mapped. NFS, SMB, CIFS, SMB 2, AFS, Ceph, Lustre, GPFS, BeeGFS,
/// 9P, OrangeFS, and whatever a FUSE daemon stands for.
const SHARED: [u32; 12] = [
    0x0000_6969,
    0x0000_517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x5346_414f,
    0x00c3_6400,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x0102_1997,
    0x2003_0528,
    0x6573_5546,
];

/// Whether other machines may have the folder, too.
pub(super) fn is_shared(folder: &Path) -> bool {
    // What is not there, nobody shares.
    statfs(folder).is_ok_and(|found| is_of_network(found.f_type as u32))
}

fn is_of_network(kind: u32) -> bool {
    SHARED.contains(&kind)
}

/// A folder for temporary files that is this user's alone.
pub(super) fn own_temporary() -> Option<PathBuf> {
    let user = getuid().as_raw();
    own(std::env::temp_dir().join(format!("diesel-{user}")), user)
}

fn own(folder: PathBuf, user: u32) -> Option<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    // A link that somebody put there is none.
    let found = fs::symlink_metadata(&folder).ok()?;
    let is_own = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    (is_own && !is_shared(&folder)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn disks_and_memory_are_of_this_machine_and_network_file_systems_are_not() {
        let disk = tempfile::tempdir().unwrap();
        assert!(!is_shared(disk.path()) && !is_shared(&disk.path().join("none")));
        // ext4, XFS, btrfs, tmpfs, overlay.
        for own in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert!(!is_of_network(own), "{own:#x}");
        }
        assert!(is_of_network(0x6969) && is_of_network(0x6573_5546));
    }

    #[test]
    fn a_temporary_folder_is_taken_only_if_nobody_else_can_write_there() {
        let scene = tempfile::tempdir().unwrap();
        let user = getuid().as_raw();
        let folder = scene.path().join("own");
        for _ in 0..2 {
            assert_eq!(own(folder.clone(), user), Some(folder.clone()));
        }
        assert_eq!(own(folder.clone(), user + 1), None, "another user's");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(own(folder.clone(), user), None, "open to others");
        let link = scene.path().join("link");
        symlink(scene.path(), &link).unwrap();
        assert_eq!(own(link, user), None, "a link");
        assert_eq!(own(scene.path().join("none/own"), user), None, "it can't be made");
    }
}
