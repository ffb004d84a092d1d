//! The list of files on stdin.
//!
//! Must hold: the whole list is checked before anything is written; a path is stored as given,
//! but for what means nothing: `./` and doubled slashes.

use std::collections::HashSet;
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;

use crate::exit::Failure;
use crate::text::escaped;

/// The paths in `input`, each ended by `end`; the last may lack it.
///
/// # Errors
/// Wrong usage, naming the line: an absolute path, `..`, a NUL byte, a path a second time.
pub(super) fn read(input: &mut dyn Read, end: u8) -> Result<Vec<CString>, Failure> {
    let mut text = Vec::new();
    input
        .read_to_end(&mut text)
        .map_err(|why| Failure::local("read the list of files from stdin", why))?;
    let mut paths: Vec<CString> = Vec::new();
    let (hasher, mut hashes) = (RandomState::new(), HashSet::new());
    for (number, line) in text.split(|byte| *byte == end).enumerate() {
        let refuse = |why: &str| {
            let (number, line) = (number.saturating_add(1), escaped(line));
            Failure::usage(format!("name {number} of the list on stdin, {line}: {why}"))
        };
        if line.starts_with(b"/") {
            return Err(refuse("it is absolute; give paths relative to the current folder"));
        }
        if line.split(|byte| *byte == b'/').any(|part| part == b"..") {
            return Err(refuse("it has a part `..`; change into the folder that holds the files"));
        }
        let path = clean(line);
        if path.is_empty() {
            continue;
        }
        // Equal hashes are only a hint.
        if !hashes.insert(hasher.hash_one(&path)) && paths.iter().any(|it| it.to_bytes() == path) {
            return Err(refuse("it is in the list already; name each file once"));
        }
        paths.push(CString::new(path).map_err(|_| refuse("it has a NUL byte; use -0"))?);
    }
    Ok(paths)
}

fn clean(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.collect::<Vec<_>>().join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &[u8], end: u8) -> Result<Vec<Vec<u8>>, String> {
        let paths = read(&mut &*text, end).map_err(|failure| failure.to_string())?;
        Ok(paths.into_iter().map(CString::into_bytes).collect())
    }

    #[test]
    fn names_are_taken_as_given_in_lines_or_ended_by_nul() {
        let names = [&b"a b"[..], b"c/\xFF", b"..d"].map(<[u8]>::to_vec).to_vec();
        assert_eq!(listed(b"a b\nc/\xFF\n..d", b'\n'), Ok(names.clone()));
        assert_eq!(listed(b"a b\0c/\xFF\0..d\0", 0), Ok(names));
        assert_eq!(listed(b"a\nb\0", 0), Ok(vec![b"a\nb".to_vec()]));
        assert_eq!(listed(b"", b'\n'), Ok(Vec::new()));
    }

    #[test]
    fn what_find_prints_is_understood() {
        let names = [&b"a/b"[..], b"c"].map(<[u8]>::to_vec).to_vec();
        assert_eq!(listed(b".\n./a/b\n.//c\n", b'\n'), Ok(names));
    }

    #[test]
    fn paths_that_lead_out_are_refused_with_their_place() {
        for bad in [&b"ok\n/etc/passwd\n"[..], b"ok\na/../b", b"ok\n..", b"ok\n../x"] {
            let refused = listed(bad, b'\n').expect_err("leads out");
            assert!(refused.contains("name 2 of the list"), "{refused}");
        }
        assert!(listed(b"a\0b\n", b'\n').is_err());
    }

    #[test]
    fn a_path_that_is_named_twice_is_refused_with_its_place_however_it_is_written() {
        for twice in [&b"a/b\na/b\n"[..], b"a/b\n./a//b", b"./a/b\na/./b"] {
            let refused = listed(twice, b'\n').expect_err("twice");
            assert!(refused.contains("name 2 of the list"), "{refused}");
        }
        assert!(listed(b"a\nb\na/b\n", b'\n').is_ok());
    }
}
