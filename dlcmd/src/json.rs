//! The JSON lines of `--json`, as described in docs/JSON.md.
//!
//! Must hold: every line has a `type` and the `schema` number. Within a schema fields are only
//! added. A name that is not UTF-8 is given as `path_base64` instead of `path`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dl_format::{FileRecord, Stamp};
use libdiesel::{Counts, SmallChunks};
use serde::Serialize;

use crate::time::{exact_text, stamp_text};

/// The version of the JSON lines.
const SCHEMA: u32 = 1;

/// A line: its type, the schema, and the fields of the type.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a, T> {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    #[serde(flatten)]
    body: &'a T,
}

impl<'a, T> Line<'a, T> {
    /// A line of the given type.
    pub(crate) fn new(kind: &'static str, body: &'a T) -> Self {
        Self { kind, schema: SCHEMA, body }
    }
}

/// A path: text if UTF-8, otherwise base64 of its bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Path<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
}

impl<'a> Path<'a> {
    /// The path with the given bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let path = std::str::from_utf8(bytes).ok();
        Self { path, path_base64: path.is_none().then(|| STANDARD.encode(bytes)) }
    }
}

/// A file of a dataset.
#[derive(Debug, Serialize)]
pub(crate) struct File<'a> {
    #[serde(flatten)]
    path: Path<'a>,
    /// In bytes.
    size: u64,
    /// Four octal digits.
    mode: String,
    /// RFC 3339, UTC, nanoseconds.
    mtime: String,
    /// Commit time, RFC 3339, UTC.
    uploaded: String,
    /// Eight hexadecimal digits.
    crc32c: String,
    /// The chunk with the file, or with its last part.
    chunk: String,
    /// Offset of its bytes in the chunk.
    offset: u32,
}

impl<'a> File<'a> {
    /// The file at `path`.
    pub(crate) fn new(path: &'a [u8], record: &FileRecord) -> Self {
        Self {
            path: Path::new(path),
            size: record.length,
            mode: format!("{:04o}", record.attributes.mode),
            mtime: exact_text(record.attributes.mtime),
            uploaded: stamp_text(record.version.stamp),
            crc32c: format!("{:08x}", record.crc.value()),
            chunk: record.holder.chunk.to_string(),
            offset: record.offset,
        }
    }
}

/// Only a path: a folder, or a file listed by name.
#[derive(Debug, Serialize)]
pub(crate) struct Name<'a> {
    #[serde(flatten)]
    path: Path<'a>,
}

impl<'a> Name<'a> {
    /// The name with the given bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { path: Path::new(bytes) }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Dataset<'a> {
    name: &'a str,
    id: String,
    /// RFC 3339, UTC; absent, like the objects, for a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    /// The newest change, RFC 3339, UTC; absent without changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<String>,
    /// Changes with every write or delete.
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<u64>,
    /// Absent, like the bytes, when counting fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    /// Sum of the files' bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Chunks that a purge can merge, at least; of `stat` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    small_chunks: Option<u64>,
    /// Bytes of their files.
    #[serde(skip_serializing_if = "Option::is_none")]
    small_chunk_bytes: Option<u64>,
    /// In bytes.
    chunk_size: u32,
    /// In bytes.
    alignment: u32,
    /// The reason for missing counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
}

impl<'a> From<&'a libdiesel::DatasetInfo> for Dataset<'a> {
    fn from(info: &'a libdiesel::DatasetInfo) -> Self {
        let (files, bytes, problem) = match &info.counts {
            Counts::Known { files, bytes } => (Some(*files), Some(*bytes), None),
            Counts::Unasked => (None, None, None),
            Counts::Unknown(problem) => (None, None, Some(problem.as_str())),
        };
        Self {
            name: info.name.as_str(),
            id: info.id.to_string(),
            created: Some(stamp_text(info.created)),
            changed: info.version.last_stamp().map(|stamp: Stamp| stamp_text(stamp)),
            version: info.version.to_string(),
            objects: Some(info.objects),
            files,
            bytes,
            small_chunks: None,
            small_chunk_bytes: None,
            chunk_size: info.shape.size(),
            alignment: info.shape.alignment(),
            problem,
        }
    }
}

impl Dataset<'_> {
    /// With the small chunks, where files were counted.
    pub(crate) fn with_small(self, small: SmallChunks) -> Self {
        let of_counted = |count| self.files.map(|_| count);
        let (small_chunks, small_chunk_bytes) = (of_counted(small.chunks), of_counted(small.bytes));
        Self { small_chunks, small_chunk_bytes, ..self }
    }

    /// Only the fields known from a snapshot.
    pub(crate) fn by_snapshot(self) -> Self {
        Self { created: None, objects: None, ..self }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    /// Id of the dataset.
    dataset: String,
    version: String,
    /// The newest change, RFC 3339, UTC; absent without changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<String>,
    files: u32,
    /// Sum of the files' bytes.
    bytes: u64,
    /// Chunks with these files.
    chunks: u32,
    /// In bytes.
    chunk_size: u32,
    /// Length of the snapshot file in bytes.
    length: u64,
}

impl From<&libdiesel::Snapshot> for Snapshot {
    fn from(snapshot: &libdiesel::Snapshot) -> Self {
        Self {
            dataset: snapshot.dataset().to_string(),
            version: snapshot.version().to_string(),
            changed: snapshot.version().last_stamp().map(stamp_text),
            files: snapshot.files(),
            bytes: snapshot.file_bytes(),
            chunks: snapshot.chunks(),
            chunk_size: snapshot.shape().size(),
            length: snapshot.length(),
        }
    }
}

#[cfg(test)]
mod tests {
    use dl_format::Attributes;

    use super::*;
    use crate::testing::record;

    fn line(kind: &'static str, body: &impl Serialize) -> String {
        serde_json::to_string(&Line::new(kind, body)).expect("plain values")
    }

    #[test]
    fn a_file_has_every_field_that_is_documented() {
        let record = record(7, Attributes { mode: 0o644, mtime: -1 });
        assert_eq!(
            line("file", &File::new(b"a/b", &record)),
            r#"{"type":"file","schema":1,"path":"a/b","size":7,"mode":"0644","#.to_owned()
                + r#""mtime":"1969-12-31T23:59:59.999999999Z","#
                + r#""uploaded":"1970-01-01T00:00:01.500000000Z","crc32c":"000000ab","#
                + r#""chunk":"----------------------","offset":4096}"#
        );
    }

    #[test]
    fn a_name_that_is_not_text_comes_in_base64() {
        let name = |bytes| line("folder", &Name::new(bytes));
        assert_eq!(name("é\n".as_bytes()), r#"{"type":"folder","schema":1,"path":"é\n"}"#);
        assert_eq!(name(b"\xFFa"), r#"{"type":"folder","schema":1,"path_base64":"/2E="}"#);
    }
}
