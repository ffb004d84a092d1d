//! The list of files on stdin.
//!
//! Must hold: the whole list is checked before anything is written. A path is stored as given,
//! except for `./` and doubled slashes.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};

use crate::exit::Failure;
use crate::local::Paths;
use crate::text::escaped;

/// Bytes of a line too long for a path.
const LINE_MAX: usize = 64 << 10;

/// The paths in `input`, each ended by `end`, which the last path may omit.
pub(super) fn read(input: &mut dyn Read, end: u8) -> Result<Paths, Failure> {
    let (mut input, mut line) = (BufReader::new(input), Vec::new());
    let (mut paths, mut hashes) = (Paths::default(), Vec::new());
    let hasher = RandomState::new();
    loop {
        line.clear();
        let read = input.by_ref().take(LINE_MAX as u64).read_until(end, &mut line);
        if read.map_err(|why| Failure::local("read the list of files from stdin", why))? == 0 {
            break;
        }
        let line = line.strip_suffix(&[end]).unwrap_or(&line);
        let number = hashes.len().saturating_add(1);
        if line.len() == LINE_MAX {
            return Err(refused(number, &line[..64], "it goes on for 64 KiB, as no path does"));
        }
        if line.starts_with(b"/") {
            let why = "it is absolute; give paths relative to the current folder";
            return Err(refused(number, line, why));
        }
        if line.split(|byte| *byte == b'/').any(|part| part == b"..") {
            let why = "it has a part `..`; change into the folder that holds the files";
            return Err(refused(number, line, why));
        }
        let path = clean(line);
        if path.is_empty() {
            continue;
        }
        if path.contains(&0) {
            return Err(refused(number, line, "it has a NUL byte; use -0"));
        }
        hashes.push(hasher.hash_one(path.as_slice()));
        paths.push(&path);
    }
    hashes.sort_unstable();
    let twice = hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    refuse_twice(&paths, &twice.collect(), &hasher)?;
    Ok(paths)
}

/// Refuses repeated paths; equal hashes are only a hint.
fn refuse_twice(paths: &Paths, hashes: &HashSet<u64>, hasher: &RandomState) -> Result<(), Failure> {
    if hashes.is_empty() {
        return Ok(());
    }
    let mut seen = HashSet::new();
    for (path, number) in paths.iter().zip(1..) {
        let path = path.to_bytes();
        if hashes.contains(&hasher.hash_one(path)) && !seen.insert(path) {
            let why = "it is in the list already; name each file once";
            return Err(refused(number, path, why));
        }
    }
    Ok(())
}

fn refused(number: usize, line: &[u8], why: &str) -> Failure {
    Failure::usage(format!("name {number} of the list on stdin, {}: {why}", escaped(line)))
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
        Ok(paths.iter().map(|path| path.to_bytes().to_vec()).collect())
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
    fn the_output_of_find_is_accepted() {
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
        let long = [&b"ok\n"[..], &[b'x'; LINE_MAX]].concat();
        let refused = listed(&long, b'\n').expect_err("no path");
        assert!(refused.contains("name 2 of the list") && refused.len() < 300, "{refused}");
    }

    #[test]
    fn a_repeated_path_is_refused_with_its_number() {
        for twice in [&b"a/b\na/b\n"[..], b"a/b\n./a//b", b"./a/b\na/./b"] {
            let refused = listed(twice, b'\n').expect_err("twice");
            assert!(refused.contains("name 2 of the list"), "{refused}");
        }
        assert!(listed(b"a\nb\na/b\n", b'\n').is_ok());
    }
}
