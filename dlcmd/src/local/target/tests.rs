//! Writing into real folders, including prepared folders.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::mknodat;
use tempfile::TempDir;

use super::*;
use crate::testing::record;

const ATTRIBUTES: Attributes = Attributes { mode: 0o6751, mtime: -1 };

fn path(text: &str) -> FilePath {
    FilePath::new(text.as_bytes().to_vec()).expect("legal")
}

fn target(folder: &TempDir) -> Target {
    Target::create(folder.path(), 0o022).expect("a folder")
}

fn write(target: &Target, file: &str, bytes: &[u8]) -> io::Result<()> {
    let path = path(file);
    let folder = target.folder_of(&path)?;
    let mut new = target.begin(&folder, ATTRIBUTES.mode)?;
    new.file().write_all(bytes)?;
    new.finish(path.name(), ATTRIBUTES)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_gets_its_bytes_time_and_permissions_without_setuid() {
    let folder = TempDir::new().unwrap();
    let target = target(&folder);
    write(&target, "a/b/file", b"bytes").unwrap();
    let metadata = fs::metadata(folder.path().join("a/b/file")).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-1, 999_999_999));
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o751);
    assert_eq!(fs::read(folder.path().join("a/b/file")).unwrap(), b"bytes");
}

#[test]
fn files_are_replaced_and_links_and_pipes_are_left_unchanged() {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("file"), "old").unwrap();
    let link = folder.path().join("link");
    symlink(outside.path().join("kept"), &link).unwrap();
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for makes_anonymous in [true, false] {
        for links_descriptors in [true, false] {
            let target = target(&folder);
            target.makes_anonymous.store(makes_anonymous, Ordering::Relaxed);
            target.links_descriptors.store(links_descriptors, Ordering::Relaxed);
            write(&target, "file", b"new").unwrap();
            for (name, what) in [("link", "a link"), ("pipe", "a named pipe")] {
                let refused = write(&target, name, b"new").expect_err("no file").to_string();
                assert_eq!(refused, format!("{what} stands in its place; move it away"));
            }
            write(&target, "fresh", b"new").unwrap();
            assert_eq!(names(folder.path()), ["file", "fresh", "link", "pipe"]);
            for name in ["file", "fresh"] {
                assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"new");
            }
            fs::remove_file(folder.path().join("fresh")).unwrap();
        }
    }
    assert_eq!(fs::read(outside.path().join("kept")).unwrap(), b"kept");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&pipe).unwrap().mode() & 0o170_000, 0o010_000);
}

#[test]
fn a_link_in_the_way_is_refused_and_nothing_is_written_outside() {
    let outside = TempDir::new().unwrap();
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("real")).unwrap();
    symlink(outside.path(), folder.path().join("link")).unwrap();
    symlink(outside.path(), folder.path().join("real/deep")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let target = target(&folder);
    for name in ["link/x", "real/deep/x", "file/x", "link/new/x"] {
        let refused = write(&target, name, b"bytes").expect_err("in the way").to_string();
        assert!(refused.contains("move it away"), "{name}: {refused}");
    }
    assert_eq!(names(outside.path()), [""; 0]);
}

#[test]
fn a_folder_instead_of_a_file_is_refused_without_leftovers() {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("taken/full")).unwrap();
    for makes_anonymous in [true, false] {
        let target = target(&folder);
        target.makes_anonymous.store(makes_anonymous, Ordering::Relaxed);
        let refused = write(&target, "taken", b"bytes").expect_err("in the way");
        assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(folder.path()), ["taken"]);
    }
}

#[test]
fn a_file_that_is_not_finished_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    for makes_anonymous in [true, false] {
        let target = target(&folder);
        target.makes_anonymous.store(makes_anonymous, Ordering::Relaxed);
        let mut new = target.begin(&target.root, 0o644).unwrap();
        new.file().write_all(b"half").unwrap();
        drop(new);
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn abandoned_files_are_removed_and_files_being_written_stay() {
    for makes_anonymous in [true, false] {
        let folder = TempDir::new().unwrap();
        let others = target(&folder);
        others.makes_anonymous.store(false, Ordering::Relaxed);
        let deep = others.folder_of(&path("deep/file")).unwrap();
        let living = [&others.root, &deep].map(|folder| others.begin(folder, 0o444).unwrap());
        let left = Names::new().name(7);
        for name in [left.as_str(), "notes.tmp", &format!("deep/{left}"), &format!("other/{left}")]
        {
            fs::create_dir_all(folder.path().join("other")).unwrap();
            fs::write(folder.path().join(name), "half").unwrap();
        }
        let target = target(&folder);
        target.makes_anonymous.store(makes_anonymous, Ordering::Relaxed);
        for name in ["deep/file", "file", "deep/file"] {
            write(&target, name, b"whole").unwrap();
        }
        let of_living = living.each_ref().map(|file| file.temporary.clone().unwrap());
        assert_eq!(
            names(folder.path()),
            [of_living[0].as_str(), "deep", "file", "notes.tmp", "other"]
        );
        assert_eq!(names(&folder.path().join("deep")), [of_living[1].as_str(), "file"]);
        assert_eq!(names(&folder.path().join("other")), [left]);
        for file in living {
            file.finish(b"theirs", ATTRIBUTES).unwrap();
        }
        assert_eq!(names(&folder.path().join("deep")), ["file", "theirs"]);
        let mode = fs::metadata(folder.path().join("theirs")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o444);
    }
}

/// Keeps S-56.
#[test]
fn a_file_of_the_dataset_with_a_temporary_name_is_refused() {
    let folder = TempDir::new().unwrap();
    let name = Names::new().name(7);
    for name in [&name, &format!("deep/{name}")] {
        write(&target(&folder), name, b"bytes").unwrap_err();
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn only_a_file_with_equal_size_time_and_permissions_is_kept() {
    let folder = TempDir::new().unwrap();
    write(&target(&folder), "file", b"12345").unwrap();
    let target = target(&folder);
    let root = target.folder_of(&path("file")).unwrap();
    assert!(root.holds(b"file", &record(5, ATTRIBUTES)));
    assert!(!root.holds(b"file", &record(6, ATTRIBUTES)));
    assert!(!root.holds(b"other", &record(5, ATTRIBUTES)));
    for other in [Attributes { mtime: 0, ..ATTRIBUTES }, Attributes { mode: 0o600, ..ATTRIBUTES }] {
        assert!(!root.holds(b"file", &record(5, other)), "{other:?}");
    }
}

#[test]
fn names_of_maximum_length_can_be_written_and_replaced() {
    let folder = TempDir::new().unwrap();
    let target = target(&folder);
    let long = "n".repeat(255);
    for _ in 0..2 {
        write(&target, &format!("{long}/{long}"), b"bytes").unwrap();
    }
}
