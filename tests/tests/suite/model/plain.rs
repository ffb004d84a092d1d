//! The model: a map from paths to bytes, and its visible state.

use std::collections::{BTreeMap, BTreeSet};

/// All files by path, including files hidden by a folder of the same path.
#[derive(Debug, Clone, Default)]
pub(super) struct Plain {
    pub(super) files: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The state of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stands<'a> {
    File(&'a [u8]),
    Folder,
    Nothing,
}

impl Plain {
    pub(super) fn at(&self, path: &[u8]) -> Stands<'_> {
        if self.is_folder(path) {
            return Stands::Folder;
        }
        match self.files.get(path) {
            Some(bytes) => Stands::File(bytes),
            None => Stands::Nothing,
        }
    }

    fn is_folder(&self, path: &[u8]) -> bool {
        let prefix = [path, b"/"].concat();
        self.files.keys().any(|other| other.starts_with(&prefix))
    }

    /// All readable files.
    pub(super) fn visible(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let seen = self.files.iter().filter(|(path, _)| !self.is_folder(path));
        seen.map(|(path, bytes)| (path.clone(), bytes.clone())).collect()
    }

    /// The entries of a folder, in listing order; folders end in a slash.
    pub(super) fn list(&self, folder: &[u8]) -> Vec<Vec<u8>> {
        let prefix = if folder.is_empty() { Vec::new() } else { [folder, b"/"].concat() };
        let mut entries = BTreeSet::new();
        for path in self.visible().into_keys() {
            if let Some(rest) = path.strip_prefix(prefix.as_slice()) {
                let end =
                    rest.iter().position(|byte| *byte == b'/').map_or(rest.len(), |at| at + 1);
                entries.insert([prefix.as_slice(), &rest[..end]].concat());
            }
        }
        entries.into_iter().collect()
    }
}
