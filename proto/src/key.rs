//! Keys of users: the key shown by a client, and its hash stored by a server.
//!
//! Must hold: the stored hash does not reveal the key. Neither is ever in a debug output. Refusing
//! a wrong key takes the same time for any wrong key.

use std::fmt;

use aws_lc_rs::hmac;

/// Metadata of a request with the user's name.
pub const USER_HEADER: &str = "diesel-user";
/// Metadata of a request with the key.
pub const KEY_HEADER: &str = "diesel-key";

const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const HASH_BYTES: usize = 32;

/// The hash function, as named in the text of a hash: HMAC-SHA-256 of the key's text, keyed by the
/// salt. Keys have 256 random bits, so a slow hash would add nothing.
const SCHEME: &str = "hmac-sha256";

/// The text of a key: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key with the given random bits, which must be drawn for this key only.
    pub fn from_random(bits: [u8; KEY_BYTES]) -> Self {
        Self(to_hex(&bits))
    }

    /// The text of the key, shown to its user once.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// The stored hash of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyHash {
    salt: [u8; SALT_BYTES],
    hash: [u8; HASH_BYTES],
}

impl KeyHash {
    /// The hash of a key, with a salt drawn for this key only.
    pub fn of(key: &Key, salt: [u8; SALT_BYTES]) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &salt), key.0.as_bytes());
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(tag.as_ref());
        Self { salt, hash }
    }

    /// A hash without a key: refusing an unknown user takes as long as refusing a wrong key.
    pub fn of_nobody() -> Self {
        Self { salt: [0; SALT_BYTES], hash: [0; HASH_BYTES] }
    }

    /// Whether a given text is the key.
    pub fn is_of(&self, shown: &[u8]) -> bool {
        let salt = hmac::Key::new(hmac::HMAC_SHA256, &self.salt);
        hmac::verify(&salt, shown, &self.hash).is_ok()
    }

    /// Parses the output of [`fmt::Display`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (scheme, salt, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let is_whole = scheme == SCHEME && parts.next().is_none();
        is_whole.then_some(Self { salt: from_hex(salt)?, hash: from_hex(hash)? })
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}:{}:{}", to_hex(&self.salt), to_hex(&self.hash))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(not shown)")
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_hex = text.len() == 2 * N && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    is_hex.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_hash_and_no_other_is() {
        let key = Key::from_random([0xA5; 32]);
        let hash = KeyHash::of(&key, [7; 16]);
        assert!(hash.is_of(key.as_str().as_bytes()));
        let nearly = key.as_str().replacen('a', "b", 1);
        for wrong in [b"", nearly.as_bytes(), &key.as_str().as_bytes()[1..]] {
            assert!(!hash.is_of(wrong));
            assert!(!KeyHash::of_nobody().is_of(wrong));
        }
        assert_ne!(KeyHash::of(&key, [8; 16]), hash);
    }

    #[test]
    fn a_hash_is_read_as_it_was_written_and_nothing_else_is() {
        let hash = KeyHash::of(&Key::from_random([1; 32]), [2; 16]);
        let text = hash.to_string();
        assert_eq!(KeyHash::parse(&text), Some(hash));
        for wrong in ["", "hmac-sha256", &text[1..], &text[..text.len() - 1], &format!("{text}:")] {
            assert_eq!(KeyHash::parse(wrong), None, "{wrong}");
        }
        assert_eq!(KeyHash::parse(&text.replace("sha256:02", "sha256:+2")), None);
    }

    #[test]
    fn the_hash_is_the_one_that_other_programs_make() {
        // As python3 -c 'import hmac; print(hmac.new(bytes(16), b"0" * 64, "sha256").hexdigest())'.
        let hash = KeyHash::of(&Key::from_random([0; 32]), [0; 16]).to_string();
        let expected = "013e60350b8e6efb013b5dda71a4803f2963e371d6b9bdd2d7e52e8c66e2f47d";
        assert!(hash.ends_with(expected), "{hash}");
    }

    #[test]
    fn neither_key_nor_hash_is_in_a_debug_output() {
        let key = Key::from_random([0xEE; 32]);
        let shown = format!("{key:?} {:?}", KeyHash::of(&key, [0xEE; 16]));
        assert!(!shown.contains("ee"), "{shown}");
    }
}
