//! Users, parsed from the text of the users file.
//!
//! Must hold: errors quote nothing from the text, which may hold keys.

use std::collections::HashMap;
use std::sync::Arc;

use dl_proto::{UserName, Users};

use super::caller::Person;

/// Users by name.
#[derive(Debug)]
pub struct People(HashMap<String, Arc<Person>>);

impl People {
    /// Parses the output of `dlcmd user`.
    ///
    /// # Errors
    /// The problem and its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            // The file may be about to be written, or lost.
            return Err("it is empty; `dlcmd user --users FILE add` writes it".to_owned());
        }
        let users: Users = text.parse().map_err(|why: dl_proto::InvalidUsers| why.to_string())?;
        if users.0.is_empty() {
            tracing::warn!("there are no users: nobody may do anything");
        }
        let person = |(name, user): (UserName, _)| {
            (name.as_str().to_owned(), Arc::new(Person { name, user }))
        };
        Ok(Self(users.0.into_iter().map(person).collect()))
    }

    /// The user of a name.
    pub(crate) fn person(&self, name: &str) -> Option<Arc<Person>> {
        self.0.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use dl_proto::{Key, KeyHash, User};

    use super::*;

    #[test]
    fn what_is_no_list_of_users_is_refused_without_repeating_it() {
        let key = KeyHash::of(&Key::from_random([1; 32]), [2; 16]);
        let users = [("ann".parse().unwrap(), User::new(key, vec![]))];
        let people = People::parse(&Users(users.into_iter().collect()).to_string()).unwrap();
        assert!(people.person("ann").is_some() && people.person("bob").is_none());
        for wrong in ["", "\n", "cat sesame"] {
            let why = People::parse(wrong).unwrap_err();
            assert!(!why.contains("sesame"), "{why}");
        }
    }
}
