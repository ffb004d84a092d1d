//! What a read costs, whatever its request says of the files.

use dl_format::{
    Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, EntryVersion, Extent, Stamp, Verified,
};
use dl_store::StoreExt;

use super::*;
use crate::testing::{path, rig};

const PART: u32 = 3 << 20;

/// Stores the last chunk of a file of two parts and four bytes; what there is to say of it.
async fn large_file(context: &ServerContext, dataset: DatasetId) -> FileRecord {
    let mut ids = ChunkIdMaker::new([7; 9]);
    let mut extent =
        || Extent { part: ids.next(context.clock.now()), length: PART, crc: Crc32c::default() };
    let extents = vec![extent(), extent()];
    let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
    writer.append_tail(&path("large"), Attributes::default(), extents, b"tail").unwrap();
    let chunk = ids.next(context.clock.now());
    let verified = Verified::check(writer.seal(chunk, dataset).as_slice().to_vec()).unwrap();
    let stamp = Stamp::at(context.clock.now());
    let (header, object) = verified.commit(stamp).unwrap();
    let record = FileRecord::of(&header, &header.header().entry(0).unwrap());
    assert_eq!(record.holder, EntryVersion { stamp, chunk, entry: 0 });
    let key = object_key(dataset, chunk, ObjectKind::Chunk);
    context.store.create(&key, object.into()).await.unwrap();
    record
}

/// Bytes that a read of one item costs, as it says before, and bytes that it then wants.
async fn told_and_wanted(
    item: ReadItem,
    context: &ServerContext,
    dataset: DatasetId,
) -> (u64, u64) {
    let request =
        ReadRequest { dataset, items: vec![item], pass_copies: false, check_headers: false };
    let mut plan = Plan::new(context, request).await.unwrap();
    let (told, mut wanted) = (plan.cost(u64::MAX), 0);
    let budget = Budget::new(1 << 20, "test");
    while !plan.is_empty() {
        let wave = plan.next(context, &budget, WaveSize::of(4 << 20)).await;
        wanted += wave.segments.iter().map(|one| one.span.end - one.span.start).sum::<u64>();
    }
    (told, wanted)
}

#[tokio::test]
async fn a_large_file_is_read_only_up_to_its_record() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let record = large_file(&rig.context, dataset).await;
    let whole = 2 * u64::from(PART) + 4;
    assert_eq!((record.length, record.stored), (whole, 4));
    for length in [whole, u64::from(PART) + 1, 100, 5] {
        for (offset, most) in [(0, None), (3, None), (0, Some(200)), (whole, None)] {
            let source = ReadSource::File(FileRecord { length, ..record });
            let item = ReadItem { source, offset, length: most };
            let (told, wanted) = told_and_wanted(item, &rig.context, dataset).await;
            let expected = length.saturating_sub(offset).min(most.unwrap_or(u64::MAX));
            assert_eq!(wanted, expected, "{length} bytes from {offset} on");
            assert!(told >= wanted);
        }
    }
}

#[tokio::test]
async fn a_wave_finds_no_more_missing_files_than_it_may_have_answers() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let record = large_file(&rig.context, dataset).await;
    let key = object_key(dataset, record.holder.chunk, ObjectKind::Chunk);
    rig.context.store.delete(&key).await.unwrap();
    let item = ReadItem { source: ReadSource::File(record), offset: 0, length: None };
    let request =
        ReadRequest { dataset, items: vec![item; 1_000], pass_copies: false, check_headers: false };
    let mut plan = Plan::new(&rig.context, request).await.unwrap();
    let (size, budget) = (WaveSize::of(256 << 10), Budget::new(1 << 20, "test"));
    let mut missing = 0;
    while !plan.is_empty() {
        let wave = plan.next(&rig.context, &budget, size).await;
        assert!(wave.missing.len() <= size.ranges, "{}", wave.missing.len());
        missing += wave.missing.len();
    }
    assert_eq!(missing, 1_000);
}

#[tokio::test]
async fn a_cut_object_is_damaged_where_headers_are_checked() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let id = rig.store_chunk(dataset, 1).await;
    rig.adopt().await;
    let key = object_key(dataset, id, ObjectKind::Chunk);
    let object = rig.context.store.read_all(&key).await.unwrap();
    for (cut, is_damaged) in [(0, false), (1, true)] {
        rig.replace(&key, object.slice(..object.len() - cut)).await;
        let source = ReadSource::Path(path("file-1"));
        let request = ReadRequest {
            dataset,
            items: vec![ReadItem { source, offset: 0, length: Some(1) }],
            pass_copies: true,
            check_headers: true,
        };
        let mut plan = Plan::new(&rig.context, request).await.unwrap();
        let (size, budget) = (WaveSize::of(256 << 10), Budget::new(1 << 20, "test"));
        let wave = plan.next(&rig.context, &budget, size).await;
        assert_eq!(wave.segments.is_empty(), is_damaged, "{cut} bytes cut off");
        assert_eq!(wave.done.len(), usize::from(is_damaged));
    }
}
