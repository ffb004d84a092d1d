//! Names, modes and sizes as text for people.
//!
//! Must hold: no byte of a name reaches a terminal as a control byte. Lines printed for each file
//! need no allocation each.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use indicatif::BinaryBytes;

/// Writes a name with control bytes, backslashes and invalid UTF-8 as `\xHH`.
pub(crate) fn write_escaped(out: &mut dyn Write, name: &[u8]) -> io::Result<()> {
    if name.iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b'\\') {
        return out.write_all(name);
    }
    write!(out, "{}", escaped(name))
}

/// A name, displayed with control bytes, backslashes and invalid UTF-8 as `\xHH`.
pub(crate) fn escaped(name: &[u8]) -> Escaped<'_> {
    Escaped(name)
}

/// A local path, displayed in the same way.
pub(crate) fn shown(path: &Path) -> Escaped<'_> {
    Escaped(path.as_os_str().as_bytes())
}

/// See [`escaped`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.0.utf8_chunks() {
            for character in piece.valid().chars() {
                if character == '\\' || character.is_control() {
                    for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                        write!(f, "\\x{byte:02X}")?;
                    }
                } else {
                    fmt::Write::write_char(f, character)?;
                }
            }
            for byte in piece.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// The permission bits of a file in the form of `ls -l`.
pub(crate) fn permissions(mode: u16) -> [u8; 10] {
    let bit = |bit: u16, letter: u8| if mode & bit != 0 { letter } else { b'-' };
    // The letter of an execute bit also shows setuid, setgid and sticky; a capital letter means
    // without execute.
    let special = |special: u16, execute: u16, letter: u8| match (mode & special, mode & execute) {
        (0, 0) => b'-',
        (0, _) => b'x',
        (_, 0) => letter.to_ascii_uppercase(),
        _ => letter,
    };
    [
        b'-',
        bit(0o400, b'r'),
        bit(0o200, b'w'),
        special(0o4000, 0o100, b's'),
        bit(0o040, b'r'),
        bit(0o020, b'w'),
        special(0o2000, 0o010, b's'),
        bit(0o004, b'r'),
        bit(0o002, b'w'),
        special(0o1000, 0o001, b't'),
    ]
}

/// A count with its word: `1 file`, `2 files`.
pub(crate) fn counted(count: u64, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

/// A number of bytes, from 1 KiB on followed by the size in binary units:
/// `12582912 bytes (12.00 MiB)`.
pub(crate) fn sized(bytes: u64) -> String {
    let exact = counted(bytes, "byte");
    if bytes < 1 << 10 { exact } else { format!("{exact} ({})", BinaryBytes(bytes)) }
}

#[cfg(test)]
mod tests {
    use dl_format::FilePath;

    use super::*;

    #[test]
    fn names_are_shown_as_a_path_shows_itself() {
        for name in [&b"plain name.txt"[..], b"a\x1b[31m\\\xFFz\xC2\x85\xC3\xA9", b"\xC3", b"\n"] {
            let mut out = Vec::new();
            write_escaped(&mut out, name).expect("into memory");
            let path = FilePath::new(name.to_vec()).expect("legal");
            assert_eq!(String::from_utf8_lossy(&out), path.to_string());
            assert_eq!(escaped(name).to_string(), path.to_string());
            let local = Path::new(std::ffi::OsStr::from_bytes(name));
            assert_eq!(shown(local).to_string(), path.to_string());
        }
    }

    #[test]
    fn sizes_have_a_unit_beside_the_exact_bytes() {
        for (bytes, shown) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1_023, "1023 bytes"),
            (1_024, "1024 bytes (1.00 KiB)"),
            (12_582_912, "12582912 bytes (12.00 MiB)"),
            (1_610_612_736, "1610612736 bytes (1.50 GiB)"),
        ] {
            assert_eq!(sized(bytes), shown);
        }
    }

    #[test]
    fn permissions_look_like_those_of_ls() {
        for (mode, shown) in [
            (0o644, "-rw-r--r--"),
            (0o755, "-rwxr-xr-x"),
            (0o000, "----------"),
            (0o4755, "-rwsr-xr-x"),
            (0o2644, "-rw-r-Sr--"),
            (0o1777, "-rwxrwxrwt"),
        ] {
            assert_eq!(permissions(mode), shown.as_bytes(), "{mode:o}");
        }
    }
}
