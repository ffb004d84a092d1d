//! The messages of /dev/fuse that a read-only mount needs: Linux, `include/uapi/linux/fuse.h`,
//! protocol 7.31 to 7.45.
//!
//! Must hold: bytes of any content decode to a request or to none. All numbers are in the byte order
//! of the machine, as the kernel writes them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
    )*};
}

messages! {
    /// The beginning of each request.
    InHeader {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, ext: u16, pad: u16,
    }
    /// The beginning of each answer, and of each notification.
    OutHeader { len: u32, error: i32, unique: u64 }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, stack: u32,
        timeout: u16, unused: [u16; 11],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_ns: u32,
        mtime_ns: u32, ctime_ns: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_ns: u32, attr_ns: u32,
        attr: Attr,
    }
    AttrOut { valid: u64, ns: u32, pad: u32, attr: Attr }
    /// Of READ, READDIR and READDIRPLUS.
    ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, owner: u64, flags: u32, pad: u32 }
    Dirent { ino: u64, next: u64, name_len: u32, kind: u32 }
    /// Of INVAL_INODE; a negative offset leaves the pages.
    InvalInodeOut { node: u64, offset: i64, length: i64 }
    /// Of INVAL_ENTRY; the name follows, with a zero behind.
    InvalEntryOut { parent: u64, name_len: u32, flags: u32 }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, name_max: u32,
        frsize: u32, pad: u32, spare: [u32; 6],
    }
}

/// The kinds of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const READ: u32 = 15;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const READDIRPLUS: u32 = 44;
}

/// Flags of INIT.
pub(crate) mod feature {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const NO_OPEN: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const NO_OPENDIR: u64 = 1 << 24;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

/// The kinds of notifications.
pub(crate) mod notice {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const RESEND: i32 = 7;
    pub(crate) const INC_EPOCH: i32 = 8;
}

/// The types of entries in a listing.
pub(crate) const FOLDER_TYPE: u32 = 4;
pub(crate) const FILE_TYPE: u32 = 8;

/// Bits of the mode: the types of files.
pub(crate) const FOLDER_MODE: u32 = 0o040_000;
pub(crate) const FILE_MODE: u32 = 0o100_000;

/// A request of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    pub(crate) operation: Operation<'a>,
}

/// The operation of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation<'a> {
    Init(InitIn),
    /// A name in a folder.
    Lookup(&'a [u8]),
    Getattr,
    Read {
        offset: u64,
        size: u32,
    },
    List {
        offset: u64,
        size: u32,
        with_attributes: bool,
    },
    Statfs,
    /// A request without an answer.
    Notice,
    /// The end of the mount.
    Destroy,
    /// A request with too few bytes.
    Malformed,
    Unknown,
}

impl<'a> Request<'a> {
    /// Decodes a request; none if the bytes are shorter than a header.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        Some(Self { header, operation: Operation::of(header.opcode, body) })
    }
}

impl<'a> Operation<'a> {
    fn of(opcode: u32, body: &'a [u8]) -> Self {
        let read = || ReadIn::read_from_prefix(body).map_or(None, |(read, _)| Some(read));
        let decoded = match opcode {
            opcode::INIT => InitIn::read_from_prefix(body).ok().map(|(init, _)| Self::Init(init)),
            opcode::LOOKUP => body.split(|byte| *byte == 0).next().map(Self::Lookup),
            opcode::GETATTR => Some(Self::Getattr),
            opcode::READ => read().map(|read| Self::Read { offset: read.offset, size: read.size }),
            opcode::READDIR | opcode::READDIRPLUS => read().map(|read| Self::List {
                offset: read.offset,
                size: read.size,
                with_attributes: opcode == opcode::READDIRPLUS,
            }),
            opcode::STATFS => Some(Self::Statfs),
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Some(Self::Notice),
            opcode::DESTROY => Some(Self::Destroy),
            _ => Some(Self::Unknown),
        };
        decoded.unwrap_or(Self::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_lengths_of_the_kernel() {
        let lengths = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<ReadIn>(), 40),
            (size_of::<Dirent>(), 24),
            (size_of::<StatfsOut>(), 80),
            (size_of::<InvalInodeOut>(), 24),
            (size_of::<InvalEntryOut>(), 16),
        ];
        assert!(lengths.iter().all(|(is, wanted)| is == wanted), "{lengths:?}");
    }
}
