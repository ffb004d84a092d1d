//! Arguments of `get`, and batches of files.

use dl_format::Attributes;
use tempfile::TempDir;

use super::*;
use crate::testing::record;

fn plan(target: &str) -> Result<GetPlan, Failure> {
    let source = Address::parse(OsStr::new("dl://d")).expect("legal");
    let target = Some(target.into());
    Arguments { source, target, tar: None, sync: false, threads: None, wait: None }.plan()
}

fn wanted(length: u64) -> Wanted {
    let record = record(length, Attributes::default());
    let path = FilePath::new(&b"file"[..]).expect("legal");
    Wanted { at: path.clone(), path, record }
}

#[test]
fn an_address_or_nothing_as_target_is_wrong_usage() {
    for target in ["", "dl://other"] {
        assert!(matches!(plan(target), Err(Failure::Because { exit: Exit::Usage, .. })));
    }
    assert!(plan("out").expect("legal").threads >= 2);
    let refused = crate::threads(NonZeroUsize::new(60_000)).expect_err("too many").to_string();
    assert!(refused.contains("60000") && refused.contains("1024"), "{refused}");
}

#[test]
fn a_file_goes_to_the_name_or_into_the_folder_that_is_given() {
    let folder = TempDir::new().unwrap();
    let path = FilePath::new(&b"a/file"[..]).unwrap();
    let target = |dest: PathBuf| {
        let (target, name) = file_target(&dest, &path, 0)?;
        Ok::<_, Failure>(target.shown(name.as_bytes()))
    };
    let dest = folder.path().to_owned();
    assert_eq!(target(dest.clone()).unwrap(), dest.join("file"));
    assert_eq!(target(dest.join("other")).unwrap(), dest.join("other"));
    assert!(target(dest.join("missing/")).is_err());
    assert!(target(dest.join("missing/file")).is_err());
    assert_eq!(target("plain".into()).unwrap(), Path::new("./plain"));
}

#[test]
fn batches_are_bounded_and_a_large_file_is_alone() {
    let small = vec![wanted(1); BATCH_FILES + 1];
    let counts: Vec<_> = batches(small).iter().map(|batch| batch.files.len()).collect();
    assert_eq!(counts, [BATCH_FILES, 1]);
    let whole = WHOLE_BYTES;
    let mixed = [1, whole + 1, whole, whole, whole, whole, 0, 1].map(wanted).into();
    let counts: Vec<_> = batches(mixed).iter().map(|batch| batch.files.len()).collect();
    assert_eq!(counts, [1, 1, 5, 1]);
}

#[test]
fn batches_are_bounded_in_bytes_of_paths() {
    let path = FilePath::new([b'x'; 255].as_slice()).expect("legal");
    let long = |_| Wanted { path: path.clone(), ..wanted(1) };
    let counts: Vec<_> =
        batches((0..8_000).map(long).collect()).iter().map(|batch| batch.files.len()).collect();
    assert_eq!(counts, [BATCH_FILES, 8_000 - BATCH_FILES]);
    let deep = [[b'x'; 255].as_slice(); 8].join(&b'/');
    let path = FilePath::new(deep).expect("legal");
    let long = |_| Wanted { path: path.clone(), ..wanted(1) };
    let batches = batches((0..2_000).map(long).collect());
    let bytes = batches.iter().map(|batch| batch.files.len() * path.as_bytes().len());
    assert!(bytes.clone().all(|bytes| bytes <= BATCH_PATHS), "{:?}", bytes.collect::<Vec<_>>());
    assert_eq!(batches.iter().map(|batch| batch.files.len()).sum::<usize>(), 2_000);
}
