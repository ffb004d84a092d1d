//! Folders of the local machine that suit a cache.
//!
//! Must hold: no cache lies in a folder where another machine may remove a mapped file, or where
//! another user may place files.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::process::getuid;

/// The types of network file systems, by `statfs`. After another machine removes a file, a mapping
/// of the file fails. NFS, SMB, CIFS, SMB 2, AFS, Ceph, Lustre, GPFS, BeeGFS, 9P, OrangeFS, and all
/// of FUSE.
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

/// Whether other machines may share the folder.
pub(super) fn is_shared(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| is_of_network(found.f_type as u32))
}

fn is_of_network(kind: u32) -> bool {
    SHARED.contains(&kind)
}

/// A folder for temporary files of the user alone.
pub(super) fn own_temporary() -> Option<PathBuf> {
    let user = getuid().as_raw();
    own(std::env::temp_dir().join(format!("diesel-{user}")), user)
}

fn own(folder: PathBuf, user: u32) -> Option<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    // A symbolic link from another user is refused.
    let found = fs::symlink_metadata(&folder).ok()?;
    let is_own = found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0;
    (is_own && !is_shared(&folder)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_network_file_systems_are_shared() {
        let disk = tempfile::tempdir().unwrap();
        assert!(!is_shared(disk.path()) && !is_shared(&disk.path().join("none")));
        // ext4, XFS, btrfs, tmpfs, overlay.
        for own in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert!(!is_of_network(own), "{own:#x}");
        }
        assert!(is_of_network(0x6969) && is_of_network(0x6573_5546));
    }

    #[test]
    fn a_temporary_folder_must_be_writable_for_its_owner_alone() {
        let scene = tempfile::tempdir().unwrap();
        let user = getuid().as_raw();
        let folder = scene.path().join("own");
        for _ in 0..2 {
            assert_eq!(own(folder.clone(), user), Some(folder.clone()));
        }
        assert_eq!(own(folder.clone(), user + 1), None, "another user's");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(own(folder.clone(), user), None, "open to other users");
        let link = scene.path().join("link");
        symlink(scene.path(), &link).unwrap();
        assert_eq!(own(link, user), None, "a link");
        assert_eq!(own(scene.path().join("none/own"), user), None, "a missing parent");
    }
}
