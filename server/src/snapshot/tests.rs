//! Objects whose header has another stamp than the log: a bucket kept the write of a server that died,
//! and a retry was acknowledged with a later stamp.

use dl_format::{ChunkIdMaker, ObjectKind, Stamp};
use dl_meta::Found;
use dl_proto::PurgeRequest;
use dl_runtime::Clock;

use super::*;
use crate::datasets::headers::read_header;
use crate::shared::context::object_key;
use crate::testing::{self, Careless, Rig, path, rig};

/// A dataset whose newest chunk has a later stamp in the log than in its header. Another chunk, with a
/// stamp between these two, has one of its files as well.
struct Scene {
    rig: Rig,
    id: DatasetId,
    /// In the header of the newest chunk.
    stored: Stamp,
    /// Of the other chunk.
    between: Stamp,
}

impl Scene {
    async fn new() -> Self {
        let mut rig = rig().await;
        let id = rig.create("ds").await;
        let store = Arc::new(Careless::new(Arc::clone(&rig.context.store)));
        rig.context.store = Arc::<Careless>::clone(&store);
        let mut ids = ChunkIdMaker::new([1; 9]);
        let (newest, other) = (ids.next(rig.clock.now()), ids.next(rig.clock.now()));
        let put = async |chunk, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            let sealed = testing::chunk(chunk, id, names, b"bytes").as_slice().to_vec();
            testing::commit(&rig.context, id, sealed, rig.clock.now()).await
        };
        store.hold_next();
        put(newest, &["own", "both"]).await.unwrap_err();
        rig.clock.advance(Duration::from_secs(5));
        let between = put(other, &["both"]).await.unwrap();
        rig.clock.advance(Duration::from_secs(5));
        let acknowledged = put(newest, &["own", "both"]).await.unwrap();
        store.land().await;
        let key = object_key(id, newest, ObjectKind::Chunk);
        let stored = read_header(&rig.context, &key).await.unwrap().stamp().unwrap();
        assert!(stored < between && between < acknowledged);
        Self { rig, id, stored, between }
    }

    /// The metadata has the log and the files as the headers say.
    async fn check(&self, mend: &str) {
        let log = self.rig.context.meta.log(self.id).await.unwrap();
        let log: Vec<Stamp> = log.iter().map(|object| object.stamp).collect();
        assert_eq!(log, [self.stored, self.between], "after {mend}");
        let paths = [path("own"), path("both")];
        for (found, wanted) in
            self.rig.context.meta.lookup(self.id, &paths).await.unwrap().iter().zip(log)
        {
            let Found::File(file) = found else { panic!("{found:?}") };
            assert_eq!(file.version.stamp, wanted, "after {mend}");
        }
    }

    async fn verify(&self) -> Vec<dl_proto::Finding> {
        let (ended, steps) = self.rig.verify("ds", true).await;
        ended.unwrap();
        steps.into_iter().flat_map(|step| step.findings).collect()
    }

    async fn build(&self) {
        let snapshots = Snapshots::new(Arc::default());
        let built = snapshots.find(&self.rig.context, self.id, None).await.unwrap();
        assert_eq!(built.version.last_stamp(), Some(self.between));
    }

    async fn purge(&self) {
        let (dataset, grace) = (Some(testing::dataset("ds")), Duration::ZERO);
        let request = PurgeRequest { dataset, grace, dry_run: false, force: false };
        let (ended, steps) = self.rig.purge(request).await;
        ended.unwrap();
        assert!(steps.iter().all(|step| step.problems.is_empty()), "{steps:?}");
    }

    async fn recover(&self) {
        let (ended, steps) = self.rig.recover(Some("ds")).await;
        ended.unwrap();
        assert!(steps.iter().all(|step| step.problems.is_empty()), "{steps:?}");
    }
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
        scene.check(mend).await;
        assert_eq!(scene.verify().await, Vec::new(), "after {mend}");
        scene.build().await;
    }
}
