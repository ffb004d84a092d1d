//! Objects whose header has another stamp than the log: a bucket kept the write of a server that died,
//! and a retry was acknowledged with a later stamp.

use dl_format::{Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, FilePath, Stamp};
use dl_meta::Found;
use dl_proto::{PurgeRequest, RecoverRequest, VerifyRequest};
use dl_runtime::Clock;

use super::*;
use crate::auth::Caller;
use crate::leftovers::Leftovers;
use crate::testing::{self, Careless, Rig, rig};
use crate::turns::Turns;
use crate::{purge, recover, verify};

/// A dataset of one chunk, whose stamp in the log is later than that of its header.
struct Scene {
    rig: Rig,
    id: DatasetId,
    /// In the header.
    stored: Stamp,
}

impl Scene {
    async fn new() -> Self {
        let mut rig = rig().await;
        let id = rig.create("ds").await;
        let store = Arc::new(Careless::new(Arc::clone(&rig.parts.store)));
        rig.parts.store = Arc::<Careless>::clone(&store);
        let mut chunk = ChunkWriter::new(ChunkShape::default(), Vec::new());
        let file = Attributes { mode: 0o644, mtime: 1 };
        chunk.append(&path(), file, b"bytes").unwrap();
        let sealed = chunk.seal(ChunkIdMaker::new([1; 9]).next(rig.clock.now()), id);
        let put = async || {
            let (object, now) = (sealed.as_slice().to_vec(), rig.clock.now());
            testing::commit(&rig.parts, id, object, now).await
        };
        store.hold_next();
        put().await.unwrap_err();
        rig.clock.advance(Duration::from_secs(5));
        let acknowledged = put().await.unwrap();
        store.land().await;
        let key =
            crate::parts::object_key(id, parts_of(&rig, id).await, dl_format::ObjectKind::Chunk);
        let header = crate::headers::read_header(&rig.parts, &key).await.unwrap();
        let stored = header.stamp().unwrap();
        assert!(stored < acknowledged);
        Self { rig, id, stored }
    }

    /// The stamps of the object and of its file, as the metadata has them.
    async fn known(&self) -> [Stamp; 2] {
        let log = self.rig.parts.meta.log(self.id).await.unwrap();
        let found = self.rig.parts.meta.lookup(self.id, &[path()]).await.unwrap();
        match (log.as_slice(), found.as_slice()) {
            ([object], [Found::File(file)]) => [object.stamp, file.version.stamp],
            other => panic!("{other:?}"),
        }
    }

    /// What a verify finds.
    async fn verify(&self) -> Vec<dl_proto::Finding> {
        let request = VerifyRequest { dataset: testing::dataset("ds"), checksums: true };
        let (turns, memory) = (Turns::new(), Budget::new(64 << 20, "checks"));
        let (told, mut heard) = mpsc::channel(1_000);
        let (parts, everybody) = (&self.rig.parts, &Caller::Everybody);
        verify::verify(parts, (&memory, &turns), request, everybody, &told).await.unwrap();
        drop(told);
        let mut findings = Vec::new();
        while let Some(Reply::More(step) | Reply::Last(step)) = heard.recv().await {
            findings.extend(step.findings);
        }
        findings
    }

    async fn build(&self) {
        let snapshots = Snapshots::new(Arc::default());
        let built = snapshots.find(&self.rig.parts, self.id, None).await.unwrap();
        assert_eq!(built.version.last_stamp(), Some(self.stored));
    }

    async fn purge(&self) {
        let (turns, left) = (Turns::new(), Leftovers::default());
        let name = Some(testing::dataset("ds"));
        let request = PurgeRequest { dataset: name, grace: Duration::ZERO, dry_run: false };
        let (told, mut heard) = mpsc::channel(1_000);
        let everybody = &Caller::Everybody;
        purge::purge(&self.rig.parts, &turns, &left, request, everybody, &told).await.unwrap();
        drop(told);
        while let Some(Reply::More(step) | Reply::Last(step)) = heard.recv().await {
            assert_eq!(step.problems, Vec::<String>::new());
        }
    }

    async fn recover(&self) {
        let request = RecoverRequest { dataset: Some(testing::dataset("ds")), since: None };
        let (told, mut heard) = mpsc::channel(1_000);
        recover::recover(&self.rig.parts, request, &Caller::Everybody, &told).await.unwrap();
        drop(told);
        while let Some(Reply::More(step) | Reply::Last(step)) = heard.recv().await {
            assert_eq!(step.problems, Vec::<String>::new());
        }
    }
}

async fn parts_of(rig: &Rig, id: DatasetId) -> dl_format::ChunkId {
    rig.parts.meta.log(id).await.unwrap()[0].id
}

fn path() -> FilePath {
    FilePath::new("a/file").unwrap()
}

/// Keeps S-18 and S-40.
#[tokio::test]
async fn the_metadata_takes_the_stamp_that_an_object_was_stored_with() {
    for mend in ["build", "purge", "recover"] {
        let scene = Scene::new().await;
        let findings = scene.verify().await;
        assert!(
            findings.iter().all(|finding| finding.remedy.contains("dlcmd recover")),
            "{findings:?}"
        );
        assert!(!findings.is_empty());
        match mend {
            "build" => scene.build().await,
            "purge" => scene.purge().await,
            _ => scene.recover().await,
        }
        assert_eq!(scene.known().await, [scene.stored; 2], "after {mend}");
        assert_eq!(scene.verify().await, Vec::new(), "after {mend}");
        scene.build().await;
    }
}
