//! Versions leased by training jobs, with purges and the loss of all metadata.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{FilePath, FileRecord, MemberId, Version};
use dl_meta::{Memory, MetaStore, Stop};
use dl_proto::{
    JoinTask, ReadItem, ReadRequest, ReadSource, TaskCounters, TaskMember, TaskMembership, pb,
};
use dl_runtime::Clock;
use dl_tests::wire::Wire;

use super::scene::{Fixture, NAME, SETTLED, Writer, data, serve};

const GRACE: Duration = Duration::from_secs(60);

pub(super) async fn beat(client: &Wire, writer: &Writer, leaving: bool) -> Result<TaskMembership> {
    let request = JoinTask {
        dataset: writer.dataset,
        version: None,
        task: "train".parse()?,
        member: TaskMember {
            id: MemberId::from_bytes([7; 16]),
            address: String::new(),
            key_fingerprint: None,
            memory: 1 << 30,
            chunks: None,
        },
        leaving,
        counters: TaskCounters::default(),
    };
    let reply = client.stub().join_task(pb::JoinTaskRequest::from(request)).await?;
    Ok(reply.into_inner().try_into()?)
}

/// The count of files readable by the places of the leased version, with correct bytes.
pub(super) async fn readable(
    client: &Wire,
    writer: &Writer,
    of: &[(FilePath, FileRecord)],
) -> Result<usize> {
    let item = |record: &FileRecord| ReadItem {
        source: ReadSource::File(*record),
        offset: 0,
        length: None,
    };
    let request = ReadRequest {
        dataset: writer.dataset,
        items: of.iter().map(|(_, record)| item(record)).collect(),
        pass_copies: false,
        check_headers: false,
    };
    let mut found = vec![Vec::new(); of.len()];
    let mut replies = client.stub().read(pb::ReadRequest::from(request)).await?.into_inner();
    while let Some(reply) = replies.message().await? {
        for piece in reply.pieces {
            let slot = found.get_mut(piece.item as usize).context("another item")?;
            slot.extend_from_slice(&piece.data);
        }
    }
    Ok((0..of.len()).filter(|n| found[*n] == data(*n, 20_000)).count())
}

/// Keeps S-45.
#[tokio::test(flavor = "multi_thread")]
async fn a_leased_version_survives_purges_and_lost_metadata() -> Result<()> {
    let Fixture { store, time, server, client, mut writer, .. } = Fixture::empty().await?;
    let files: Vec<_> = (0..20).map(|n| (format!("{n:02}"), data(n, 20_000))).collect();
    writer.put(&client, time.now(), &files).await?;
    let leased = client.list(writer.dataset).await?;
    let version: Option<Version> = beat(&client, &writer, false).await?.version;
    writer.delete(&client, time.now(), |path| path.starts_with(b"0")).await?;
    let purge = async |client: &Wire| {
        time.advance(SETTLED);
        let done = client.purge(NAME, GRACE).await?;
        ensure!(done.problems.is_empty() && done.done, "{done:?}");
        anyhow::Ok(done)
    };
    for _ in 0..2 {
        let done = purge(&client).await?;
        ensure!(done.leased_by == ["task train"], "{done:?}");
    }
    ensure!(readable(&client, &writer, &leased).await? == 20, "after two purges");
    drop(server);

    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let (_server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
    client.recover().await?;
    let done = purge(&client).await?;
    ensure!(done.leased_by == ["task train"], "{done:?}");
    ensure!(readable(&client, &writer, &leased).await? == 20, "after the loss of all metadata");
    let again = beat(&client, &writer, false).await?;
    ensure!(again.version == version && again.members.len() == 1, "{again:?}");
    ensure!(client.files(writer.dataset).await? == writer.files, "other files");

    let refused =
        client.purge(NAME, Duration::ZERO).await.err().context("the purge was accepted")?;
    ensure!(refused.message().contains("task train"), "{refused}");
    beat(&client, &writer, true).await?;
    for _ in 0..3 {
        let done = purge(&client).await?;
        ensure!(done.leased_by.is_empty(), "{done:?}");
    }
    ensure!(readable(&client, &writer, &leased).await? < 20, "nothing went when the job had ended");
    Ok(())
}
