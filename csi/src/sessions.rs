//! Sessions: mounts that several volumes share, and the pods that they are published to.
//!
//! Must hold: the folder of a session is written before anything is published, so that a driver that
//! was killed finds all. A session without targets leaves nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mounts;

const RECORD: &str = "session.json";
const MOUNT: &str = "mnt";

/// The sessions of a node, in a folder.
#[derive(Debug, Clone)]
pub(crate) struct Sessions(PathBuf);

/// A session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) source: String,
    /// Volume and target of each publication.
    pub(crate) targets: BTreeSet<(String, PathBuf)>,
}

impl Sessions {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The place of the mount of a session.
    pub(crate) fn mount_point(&self, id: &str) -> PathBuf {
        self.0.join(id).join(MOUNT)
    }

    pub(crate) fn read(&self, id: &str) -> io::Result<Option<Session>> {
        match fs::read(self.0.join(id).join(RECORD)) {
            // A record that was cut off is one of a session without publications.
            Ok(text) => Ok(Some(serde_json::from_slice(&text).unwrap_or_default())),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Writes a session, and makes its folders.
    pub(crate) fn write(&self, id: &str, session: &Session) -> io::Result<()> {
        let folder = self.0.join(id);
        if mounts_nothing(&folder.join(MOUNT))? {
            fs::create_dir_all(folder.join(MOUNT))?;
        }
        let partial = folder.join("session.partial");
        let mut file = fs::File::create(&partial)?;
        file.write_all(&serde_json::to_vec(session)?)?;
        file.sync_all()?;
        fs::rename(partial, folder.join(RECORD))
    }

    /// Ends a session: its mount and its folder.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let folder = self.0.join(id);
        mounts::clear(&folder.join(MOUNT))?;
        // One by one: never into a mount.
        for name in [RECORD, "session.partial"] {
            if_there(fs::remove_file(folder.join(name)))?;
        }
        if_there(fs::remove_dir(folder.join(MOUNT)))?;
        if_there(fs::remove_dir(folder))
    }

    /// All ids.
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.0) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.collect())
    }

    /// The sessions that are published at a target.
    pub(crate) fn at(&self, target: &Path) -> io::Result<Vec<(String, Session)>> {
        let mut found = Vec::new();
        for id in self.ids()? {
            if let Some(session) = self.read(&id)?
                && session.targets.iter().any(|(_, path)| path == target)
            {
                found.push((id, session));
            }
        }
        Ok(found)
    }
}

fn mounts_nothing(dir: &Path) -> io::Result<bool> {
    Ok(dl_fuse::mount_at(dir)?.is_none())
}

/// Ignores that something is gone.
pub(crate) fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_target_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::new(folder.path().join("sessions"));
        assert!(sessions.ids().unwrap().is_empty());
        let target = PathBuf::from("/pods/a");
        let targets = BTreeSet::from([("v".to_owned(), target.clone())]);
        let session = Session { source: "dl://pets".to_owned(), targets };
        sessions.write("one", &session).unwrap();
        sessions.write("two", &Session::default()).unwrap();
        let found = sessions.at(&target).unwrap();
        assert_eq!((found.len(), found[0].0.as_str()), (1, "one"));
        assert!(sessions.at(Path::new("/pods/b")).unwrap().is_empty());
        fs::write(folder.path().join("sessions/one").join(RECORD), "{\"sou").unwrap();
        assert!(sessions.read("one").unwrap().unwrap().targets.is_empty());
        sessions.remove("one").unwrap();
        sessions.remove("one").unwrap();
        assert_eq!(sessions.ids().unwrap(), ["two"]);
    }
}
