//! The users file: users with their keys and rights, written by `dlcmd user` and read by dlserver.
//!
//! Must hold: a written file reads back unchanged. A file with one wrong line is refused as a
//! whole. The error has the line's number and never its text, which may be a key.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use dl_format::DatasetName;

use crate::grant::{Grant, Role};
use crate::key::KeyHash;

/// Most bytes of a users file: about ten thousand users.
pub const USERS_FILE_BYTES_MAX: u64 = 4 << 20;

/// Most keys of a user: the new key, and the key before.
const KEYS_MAX: usize = 2;

const HEADING: &str = "\
# Users of dlserver, written by `dlcmd user`. One a line: the name, hashes of the keys, the roles.
";

/// The name of a user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserName(String);

impl UserName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no valid user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a user's name has 1 to 64 letters, digits or ._@-, and begins with a letter or a digit")]
pub struct InvalidUserName;

impl FromStr for UserName {
    type Err = InvalidUserName;

    fn from_str(text: &str) -> Result<Self, InvalidUserName> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let is_name = (1..=64).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.bytes().all(is_legal);
        is_name.then(|| Self(text.to_owned())).ok_or(InvalidUserName)
    }
}

/// A user's keys and rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The hashes of the keys, the newest first.
    keys: Vec<KeyHash>,
    /// The rights of the user.
    pub grants: Vec<Grant>,
}

impl User {
    /// A user with a single key.
    pub fn new(key: KeyHash, grants: Vec<Grant>) -> Self {
        Self { keys: vec![key], grants }
    }

    /// The hashes of the keys, the newest first: one or two.
    pub fn keys(&self) -> &[KeyHash] {
        &self.keys
    }

    /// Adds a newer key. False if there are two already; drop the old key first.
    pub fn add_key(&mut self, key: KeyHash) -> bool {
        let has_room = self.keys.len() < KEYS_MAX;
        if has_room {
            self.keys.insert(0, key);
        }
        has_room
    }

    /// Drops all keys except the newest. False if there is no other key.
    pub fn drop_old_key(&mut self) -> bool {
        let has_old = self.keys.len() > 1;
        self.keys.truncate(1);
        has_old
    }

    /// Whether a given text is a key of the user. Takes the same time for a user with one key, with
    /// two keys, and for an unknown user.
    pub fn has_key(user: Option<&Self>, shown: &[u8]) -> bool {
        let keys = user.map_or(&[][..], |user| user.keys.as_slice());
        let nobody = KeyHash::of_nobody();
        let is_of = |number| keys.get(number).unwrap_or(&nobody).is_of(shown);
        (0..KEYS_MAX).map(is_of).fold(false, |is_right, one| is_right | one)
    }

    /// The highest role of the user on a dataset of the given name, existing or not.
    pub fn role(&self, dataset: &DatasetName) -> Option<Role> {
        let grants = self.grants.iter().filter(|grant| grant.datasets.matches(dataset));
        grants.map(|grant| grant.role).max()
    }

    /// The highest role of the user on every possible dataset.
    pub fn role_on_all(&self) -> Option<Role> {
        let grants = self.grants.iter().filter(|grant| grant.datasets.is_all());
        grants.map(|grant| grant.role).max()
    }
}

/// All users, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users(pub BTreeMap<UserName, User>);

/// A text that is no valid users file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct InvalidUsers {
    line: usize,
    problem: String,
}

impl FromStr for Users {
    type Err = InvalidUsers;

    fn from_str(text: &str) -> Result<Self, InvalidUsers> {
        let mut users = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let invalid = |problem: String| InvalidUsers { line, problem };
            let mut words = text.split_whitespace();
            let name: UserName = words
                .next()
                .unwrap_or_default()
                .parse()
                .map_err(|why: InvalidUserName| invalid(why.to_string()))?;
            let keys = words.next().and_then(hashes);
            let keys =
                keys.ok_or_else(|| invalid("after the name stands no hash of a key".into()))?;
            let grants = words.map(str::parse).collect::<Result<_, _>>();
            let grants =
                grants.map_err(|why: crate::grant::InvalidGrant| invalid(why.to_string()))?;
            if users.insert(name, User { keys, grants }).is_some() {
                return Err(invalid("the user stands in an earlier line, too".into()));
            }
        }
        Ok(Self(users))
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADING)?;
        for (name, user) in &self.0 {
            let keys: Vec<_> = user.keys.iter().map(KeyHash::to_string).collect();
            write!(f, "{name} {}", keys.join(","))?;
            for grant in &user.grants {
                write!(f, " {grant}")?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// The hashes of one or two keys.
fn hashes(text: &str) -> Option<Vec<KeyHash>> {
    let keys: Option<Vec<_>> = text.split(',').map(KeyHash::parse).collect();
    keys.filter(|keys| keys.len() <= KEYS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn user(grants: &[&str]) -> User {
        User::new(hash(3), grants.iter().map(|grant| grant.parse().unwrap()).collect())
    }

    fn hash(key: u8) -> KeyHash {
        KeyHash::of(&Key::from_random([key; 32]), [4; 16])
    }

    fn users() -> Users {
        let named = |(name, grants): (&str, &[&str])| (name.parse().unwrap(), user(grants));
        let users = [("ann", &["read:*", "write:ann-*"][..]), ("bob@lab", &[])];
        Users(users.into_iter().map(named).collect())
    }

    #[test]
    fn a_users_file_is_read_as_it_was_written() {
        let text = users().to_string();
        assert_eq!(text.parse(), Ok(users()));
        assert_eq!(format!("\n # note\n{text}\n").parse(), Ok(users()));
        assert_eq!("".parse(), Ok(Users::default()));
    }

    #[test]
    fn a_wrong_line_is_refused_by_number_without_its_text() {
        let good = users().to_string();
        let hash = hash(3);
        for line in [
            "sesame-is-my-key".to_owned(),
            "ann sesame-is-my-key read:*".to_owned(),
            format!("ann {hash} read:*"),
            format!("cat {hash} sesame-is-my-key"),
            format!(".cat {hash}"),
            format!("cat {hash},"),
            format!("cat {hash},{hash},{hash}"),
        ] {
            let error = format!("{good}{line}\n").parse::<Users>().unwrap_err().to_string();
            assert!(error.starts_with("line 4: "), "{error}");
            assert!(!error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn a_second_key_counts_until_the_older_one_is_dropped() {
        let shows = |user: &User, key| {
            let text = Key::from_random([key; 32]);
            User::has_key(Some(user), text.as_str().as_bytes())
        };
        let mut ann = user(&["read:*"]);
        assert!(!ann.drop_old_key() && ann.add_key(hash(5)) && !ann.add_key(hash(6)));
        let text = Users([("ann".parse().unwrap(), ann.clone())].into()).to_string();
        assert_eq!(text.parse::<Users>().unwrap().0.into_values().next(), Some(ann.clone()));
        assert_eq!([3, 5, 6].map(|key| shows(&ann, key)), [true, true, false]);
        assert!(ann.drop_old_key());
        assert_eq!([3, 5, 6].map(|key| shows(&ann, key)), [false, true, false]);
        assert!(!User::has_key(None, &[0; 64]) && !User::has_key(Some(&ann), b""));
    }

    #[test]
    fn a_user_has_the_highest_of_the_roles_that_match() {
        let name = |text: &str| DatasetName::new(text).unwrap();
        let ann = user(&["read:*", "write:ann-*", "admin:ann-tmp"]);
        assert_eq!(ann.role(&name("pets")), Some(Role::Read));
        assert_eq!(ann.role(&name("ann-tmp")), Some(Role::Admin));
        assert_eq!(ann.role_on_all(), Some(Role::Read));
        let bob = user(&["read:pets"]);
        assert_eq!((bob.role(&name("pets2")), bob.role_on_all()), (None, None));
    }
}
