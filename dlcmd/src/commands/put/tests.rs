//! Arguments and sources of `put`, before any server is asked.

use std::os::unix::fs::symlink;

use dl_runtime::Shutdown;
use tempfile::TempDir;

use super::*;

fn plan(sources: &[&str], null: bool) -> Result<PutPlan, Failure> {
    let target = Address::parse(OsStr::new("dl://d/in")).expect("legal");
    let sources = sources.iter().map(OsString::from).collect();
    let (checksum, follow, threads) = (false, false, NonZeroUsize::new(3));
    let (unpack, under_archive) = (false, false);
    Arguments { sources, target, null, checksum, follow, unpack, under_archive, threads }.plan()
}

fn opened(paths: &[PathBuf]) -> Result<Vec<Input>, Failure> {
    open(paths, &plan(&["a"], false).expect("legal"))
}

fn is_usage<T>(result: &Result<T, Failure>) -> bool {
    matches!(result, Err(Failure::Because { exit: Exit::Usage, .. }))
}

#[test]
fn a_list_stands_alone_and_its_names_end_as_asked() {
    assert_eq!(plan(&["-"], false).expect("legal").sources, Sources::Listed(b'\n'));
    assert_eq!(plan(&["-"], true).expect("legal").sources, Sources::Listed(0));
    let named = Sources::Named(vec!["./-".into(), "b".into()]);
    assert_eq!(plan(&["./-", "b"], false).expect("legal").sources, named);
    assert!(is_usage(&plan(&["-", "a"], false)));
    assert!(is_usage(&plan(&["a"], true)));
}

#[test]
fn an_empty_name_is_wrong_usage_with_what_to_type() {
    let refused = opened(&["".into()]);
    assert!(is_usage(&refused));
    let refused = refused.expect_err("empty").to_string();
    assert!(refused.contains("type ."), "{refused}");
}

/// The result of the check of several sources.
fn checked(folder: &TempDir, sources: &[&str]) -> Result<(), Failure> {
    let paths: Vec<_> = sources.iter().map(|source| folder.path().join(source)).collect();
    conflicts::among_sources(&opened(&paths)?, &Shutdown::new())
}

#[test]
fn two_sources_with_one_path_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    for file in ["a/same", "a/one", "b/same", "b/two", "c/sub/same", "d/sub/other", "e"] {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    for twice in [["a", "b"], ["a", "b/same"], ["a/same", "b/same"], ["e", "e"], ["a", "a/"]] {
        let refused = checked(&folder, &twice);
        assert!(is_usage(&refused), "{twice:?}");
    }
    let refused = checked(&folder, &["a", "b"]).expect_err("twice").to_string();
    for wanted in ["a/same", "b/same", "in/same"] {
        assert!(refused.contains(wanted), "{refused}");
    }
    for fine in [&["a", "c", "d", "e"][..], &["a/same", "b/two", "e"]] {
        checked(&folder, fine).expect("no path twice");
    }
}

#[test]
fn skipped_files_have_no_path() {
    let folder = TempDir::new().unwrap();
    for side in ["a", "b"] {
        fs::create_dir(folder.path().join(side)).unwrap();
        symlink("/", folder.path().join(side).join("out")).unwrap();
    }
    checked(&folder, &["a", "b"]).expect("both are skipped");
}

#[test]
fn a_path_as_file_and_folder_of_two_sources_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(folder.path().join("a/x")).unwrap();
    fs::write(folder.path().join("a/x/deep"), "").unwrap();
    fs::create_dir(folder.path().join("b")).unwrap();
    fs::write(folder.path().join("b/x"), "").unwrap();
    for sources in [["a", "b"], ["b", "a"], ["a", "b/x"]] {
        let refused = checked(&folder, &sources);
        assert!(is_usage(&refused), "{sources:?}");
        let refused = refused.expect_err("both").to_string();
        assert!(refused.contains("a/x") && refused.contains("b/x"), "{refused}");
    }
    fs::create_dir_all(folder.path().join("c/x/empty")).unwrap();
    checked(&folder, &["b", "c"]).expect("the folder gives no file");
}

#[test]
fn a_source_that_is_not_there_is_not_found() {
    let folder = TempDir::new().unwrap();
    let missing = opened(&[folder.path().join("nothing")]);
    assert!(matches!(missing, Err(Failure::Because { exit: Exit::NotFound, .. })));
}

#[test]
fn a_summary_names_only_what_happened() {
    let mut text = Vec::new();
    let mut out = Output::new(&mut text, false);
    let none = Summary { files: 1, bytes: 2, ..Summary::default() };
    report(&none, &mut out).expect("into memory");
    let some = Summary { unchanged: 3, failed: 1, empty_folders: 2, ..none };
    report(&some, &mut out).expect("into memory");
    let expected = "1 file put, 2 bytes\n1 file put, 2 bytes, 3 unchanged, 1 failed, 2 empty \
                    folders not kept\n";
    assert_eq!(String::from_utf8_lossy(&text), expected);
}
