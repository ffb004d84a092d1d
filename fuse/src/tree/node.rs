//! The numbers of entries: inodes for users, node ids for the kernel.
//!
//! Must hold: a number of any value leads to an entry or to none.

/// Bits of a node id below the generation: folders and files have numbers of 32 bits each.
const GENERATION_BITS: u32 = 34;

/// The number of generations: a mount that switches each second needs 34 years for them.
pub(crate) const GENERATIONS: u32 = 1 << 30;

/// The node id of the top folder, in each generation.
pub(crate) const TOP: u64 = 1;

/// An entry, by its number in the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Folder(u32),
    File(u32),
}

/// The numbers of a tree: inode 1 is the top folder, then come folders, then files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    /// Number of versions that the mount showed before.
    pub(crate) generation: u32,
    /// The top folder.
    pub(crate) top: u32,
    pub(crate) folders: u32,
    pub(crate) files: u32,
}

/// The generation of a node id; none for the top folder, which is the same in all of them, and for
/// requests without an entry.
pub(crate) fn generation_of(id: u64) -> Option<u32> {
    (id > TOP).then_some((id >> GENERATION_BITS) as u32)
}

impl Numbers {
    /// The number of an entry for users: `st_ino`.
    pub(crate) fn inode(&self, node: Node) -> u64 {
        match node {
            Node::Folder(number) if number == self.top => TOP,
            Node::Folder(number) => 1 + u64::from(number),
            Node::File(number) => 1 + u64::from(self.folders) + u64::from(number),
        }
    }

    /// The id of an entry for the kernel.
    pub(crate) fn id(&self, node: Node) -> u64 {
        match self.inode(node) {
            TOP => TOP,
            inode => u64::from(self.generation) << GENERATION_BITS | inode,
        }
    }

    /// The entry of a node id, whatever its generation.
    pub(crate) fn node(&self, id: u64) -> Option<Node> {
        let inode = id & ((1 << GENERATION_BITS) - 1);
        if inode == TOP {
            return Some(Node::Folder(self.top));
        }
        let number = u32::try_from(inode.checked_sub(1)?);
        if let Ok(folder) = number
            && folder < self.folders
        {
            return Some(Node::Folder(folder));
        }
        let file = u32::try_from(inode.checked_sub(1 + u64::from(self.folders))?).ok()?;
        (file < self.files).then_some(Node::File(file))
    }
}
