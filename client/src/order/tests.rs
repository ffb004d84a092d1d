//! Orders beside a direct reading of docs/ORDER.md, for random datasets, settings and tokens.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A sequence in parts of equal length, up to one element.
fn cut(sequence: &[u32], parts: u32) -> Vec<Vec<u32>> {
    let at = |part: u32| part as usize * sequence.len() / parts as usize;
    (0..parts).map(|part| sequence[at(part)..at(part + 1)].to_vec()).collect()
}

/// The selected files of the shuffled chunks, each with the index of its chunk.
fn shuffled_chunks(
    counts: &[u32],
    selected: &[u32],
    settings: &OrderSettings,
) -> Vec<(usize, u32)> {
    let mut first = 0;
    let mut chunks: Vec<Vec<u32>> = Vec::new();
    for count in counts {
        let files = (first..first + count).filter(|file| selected.contains(file)).collect();
        chunks.push(files);
        first += count;
    }
    chunks.retain(|files: &Vec<u32>| !files.is_empty());
    Draws::new(settings.seed, settings.epoch, Stream::Chunks, 0).shuffle(&mut chunks);
    (0..)
        .zip(&chunks)
        .flat_map(|(piece, files)| files.iter().map(move |file| (piece, *file)))
        .collect()
}

/// The files of all groups, each group shuffled, with groups that end at the stretches of nodes.
fn shuffled_groups(places: &[(usize, u32)], settings: &OrderSettings, nodes: u32) -> Vec<u32> {
    let mut sequence = Vec::new();
    let all: Vec<u32> = (0..places.len() as u32).collect();
    for span in cut(&all, nodes) {
        let mut rest = &span[..];
        while let Some(start) = rest.first() {
            let first_piece = places[span[0] as usize].0;
            let group_of =
                |place: u32| (places[place as usize].0 - first_piece) / settings.group as usize;
            let length =
                rest.iter().take_while(|place| group_of(**place) == group_of(*start)).count();
            let (group, others) = rest.split_at(length);
            let mut files: Vec<u32> = group.iter().map(|place| places[*place as usize].1).collect();
            Draws::new(settings.seed, settings.epoch, Stream::Files, u64::from(*start))
                .shuffle(&mut files);
            sequence.extend(files);
            rest = others;
        }
    }
    sequence
}

/// The stretches of the last stage, without skips, and the number of files read of each.
fn last_stretches(
    mut sequence: Vec<u32>,
    settings: &OrderSettings,
    stages: &[Stage],
) -> (Vec<Vec<u32>>, usize) {
    let mut stages = stages.to_vec();
    if stages.last().is_none_or(|stage| stage.nodes() != settings.nodes()) {
        stages.push(Stage::new(settings.nodes()));
    }
    let (mut stretches, mut read) = (Vec::new(), 0);
    for stage in &stages {
        let stays = |index: u64| !stage.skips().iter().any(|skip| skip.contains(&index));
        read = (0..stage.position()).filter(|index| stays(*index)).count();
        stretches = cut(&sequence, stage.nodes());
        for stretch in &mut stretches {
            let kept = (0..).zip(&*stretch).filter(|(index, _)| stays(*index));
            *stretch = kept.map(|(_, file)| *file).collect();
        }
        let left = stretches.iter().flat_map(|stretch| stretch.iter().skip(read));
        sequence = left.copied().collect();
    }
    (stretches, read)
}

/// The files of each rank by docs/ORDER.md, without regard for memory.
fn reference_order(
    counts: &[u32],
    selected: &[u32],
    settings: &OrderSettings,
    stages: &[Stage],
) -> Vec<Vec<u32>> {
    let places = shuffled_chunks(counts, selected, settings);
    let nodes = stages.first().map_or(settings.nodes(), Stage::nodes);
    let sequence = shuffled_groups(&places, settings, nodes);
    let (stretches, read) = last_stretches(sequence, settings, stages);
    let (world, nodes) = (settings.world as usize, settings.nodes() as usize);
    let ranks = world / nodes;
    let left = || stretches.iter().map(|stretch| stretch.len().saturating_sub(read));
    let length = match settings.tail {
        Tail::Drop => left().min().unwrap_or(0) / ranks,
        Tail::Pad => left().max().unwrap_or(0).div_ceil(ranks),
    };
    let every = stretches.concat();
    (0..world)
        .map(|rank| {
            let own = &stretches[rank / ranks];
            let file = |step: usize| match own.len() {
                0 => every[(read * nodes + step * world + rank) % every.len()],
                length => own[(read + step * ranks + rank % ranks) % length],
            };
            (0..length).map(file).collect()
        })
        .collect()
}

fn first_files(counts: &[u32]) -> Arc<[u32]> {
    let mut first = 0;
    let mut all = vec![0];
    for count in counts {
        first += count;
        all.push(first);
    }
    all.into()
}

fn order(
    counts: &[u32],
    selected: &[u32],
    settings: OrderSettings,
    stages: &[Stage],
) -> Result<Arc<Order>, OrderError> {
    let selection = Selection::of(counts.iter().sum(), selected.iter().copied())?;
    Order::resumed(first_files(counts), Arc::new(selection), settings, stages).map(Arc::new)
}

fn rank(order: &Arc<Order>, rank: u32) -> Vec<u32> {
    Cursor::new(Arc::clone(order), rank).unwrap().collect()
}

fn worker(number: u32, workers: u32, batch: u32) -> Worker {
    Worker { number, workers, batch }
}

fn ranks(order: &Arc<Order>) -> Vec<Vec<u32>> {
    (0..order.settings().world).map(|number| rank(order, number)).collect()
}

#[derive(Debug, Clone)]
struct Case {
    counts: Vec<u32>,
    selected: Vec<u32>,
    settings: OrderSettings,
}

fn case() -> impl Strategy<Value = Case> {
    let counts = prop::collection::vec(0_u32..9, 1..24);
    let settings =
        (any::<u64>(), 0_u64..3, 1_u32..7, 1_u32..4, 1_u32..4, any::<bool>(), any::<bool>());
    (counts, settings, any::<u64>(), any::<bool>()).prop_map(
        |(counts, (seed, epoch, group, nodes, ranks, local, pad), mask, all)| {
            let files: u32 = counts.iter().sum();
            let selected = (0..files).filter(|file| all || mask >> (file % 64) & 1 == 1).collect();
            let partition = if local { Partition::Local { nodes } } else { Partition::Global };
            let tail = if pad { Tail::Pad } else { Tail::Drop };
            let settings =
                OrderSettings { seed, epoch, group, world: nodes * ranks, partition, tail };
            Case { counts, selected, settings }
        },
    )
}

proptest! {
    #[test]
    fn an_order_follows_its_document(case in case()) {
        let Case { counts, selected, settings } = case;
        let order = order(&counts, &selected, settings, &[]).unwrap();
        prop_assert_eq!(ranks(&order), reference_order(&counts, &selected, &settings, &[]));
    }

    #[test]
    fn the_ranks_read_each_file_once_in_equal_numbers(case in case()) {
        let Case { counts, selected, settings } = case;
        let order = order(&counts, &selected, settings, &[]).unwrap();
        let read = ranks(&order);
        let (world, files) = (u64::from(settings.world), selected.len() as u64);
        let length = match settings.tail {
            Tail::Drop => files / world,
            Tail::Pad => files.div_ceil(world),
        };
        prop_assert!(read.iter().all(|rank| rank.len() as u64 == length));
        let mut times: BTreeMap<u32, u32> = BTreeMap::new();
        read.iter().flatten().for_each(|file| *times.entry(*file).or_default() += 1);
        prop_assert!(times.keys().all(|file| selected.contains(file)));
        match settings.tail {
            Tail::Drop => prop_assert!(times.values().all(|times| *times == 1)),
            Tail::Pad => {
                prop_assert_eq!(times.len() as u64, files);
                // With fewer files than ranks, padding wraps around several times.
                let most = if files >= world { 2 } else { settings.world };
                prop_assert!(times.values().all(|times| *times <= most));
            }
        }
    }

    #[test]
    fn a_resumed_order_is_the_rest_of_the_order(
        case in case(),
        (share, again, skip) in (0.0..1.0_f64, 0.0..1.0_f64, 0_u64..9),
    ) {
        let Case { counts, selected, settings } = case;
        let mut stages = order(&counts, &selected, settings, &[]).unwrap().stages_after(0);
        stages[0].skip(skip..2 * skip);
        let whole = order(&counts, &selected, settings, &stages).unwrap();
        let place = |share: f64, length: u64| (length as f64 * share).round() as u64;
        let at = place(share, whole.length());
        let rest = order(&counts, &selected, settings, &whole.stages_after(at)).unwrap();
        let later = place(again, rest.length());
        let end = order(&counts, &selected, settings, &rest.stages_after(later)).unwrap();
        for number in 0..settings.world {
            let mut cursor = Cursor::new(Arc::clone(&whole), number).unwrap();
            let all: Vec<u32> = cursor.by_ref().collect();
            cursor.seek(at);
            let left = &all[at as usize..];
            prop_assert_eq!(cursor.collect::<Vec<_>>(), left);
            prop_assert_eq!(rank(&rest, number), left);
            prop_assert_eq!(rank(&end, number), &left[later as usize..]);
        }
    }

    #[test]
    fn the_groups_of_a_cursor_are_the_order(
        case in case(),
        (share, from) in (0.0..1.0_f64, 0_u64..9),
    ) {
        let Case { counts, selected, settings } = case;
        let whole = order(&counts, &selected, settings, &[]).unwrap();
        let stages = whole.stages_after((whole.length() as f64 * share) as u64);
        let order = order(&counts, &selected, settings, &stages).unwrap();
        let first_files = first_files(&counts);
        for number in 0..settings.world {
            let mut cursor = Cursor::new(Arc::clone(&order), number).unwrap();
            cursor.seek(from);
            let expected: Vec<u32> = cursor.clone().collect();
            let mut taken: Vec<u32> = Vec::new();
            loop {
                let start = taken.len();
                cursor.take_group(&mut taken);
                let group = &taken[start..];
                if group.is_empty() {
                    break;
                }
                let distinct: BTreeSet<u32> = group.iter().copied().collect();
                prop_assert_eq!(distinct.len(), group.len());
                let chunk = |file: &u32| first_files.partition_point(|first| first <= file);
                let chunks: BTreeSet<usize> = group.iter().map(chunk).collect();
                prop_assert!(chunks.len() <= settings.group as usize);
            }
            prop_assert_eq!(taken, expected);
        }
    }

    #[test]
    fn other_numbers_of_ranks_and_nodes_read_the_rest(
        case in case(),
        (nodes, ranks_each, share, skip) in (1_u32..4, 1_u32..4, 0.0..1.0_f64, 0_u64..9),
    ) {
        let Case { counts, selected, settings } = case;
        let first = order(&counts, &selected, settings, &[]).unwrap();
        let at = (first.length() as f64 * share).round() as u64;
        let mut stages = first.stages_after(at);
        let from = stages[0].position() + skip;
        stages[0].skip(from..from + skip);
        let other = OrderSettings {
            world: nodes * ranks_each,
            partition: Partition::Local { nodes },
            tail: Tail::Pad,
            ..settings
        };
        let second = order(&counts, &selected, other, &stages).unwrap();
        prop_assert_eq!(ranks(&second), reference_order(&counts, &selected, &other, &stages));
        let third = OrderSettings { world: 2, partition: Partition::Global, ..other };
        let half = second.length() / 2;
        let stages = second.stages_after(half);
        let last = order(&counts, &selected, third, &stages).unwrap();
        prop_assert_eq!(ranks(&last), reference_order(&counts, &selected, &third, &stages));
        if skip == 0 {
            let some = |order, count: u64| {
                let ranks = ranks(order).into_iter();
                ranks.flat_map(move |rank| rank.into_iter().take(count as usize))
            };
            let mut read: Vec<u32> =
                some(&first, at).chain(some(&second, half)).chain(some(&last, u64::MAX)).collect();
            let pads = u64::from(settings.world + other.world + third.world);
            prop_assert!(read.len() as u64 <= selected.len() as u64 + pads);
            read.sort_unstable();
            read.dedup();
            prop_assert_eq!(read, selected);
        }
    }

    #[test]
    fn two_nodes_share_only_chunks_at_the_ends_of_stretches(case in case()) {
        let Case { counts, selected, settings } = case;
        let settings = OrderSettings {
            world: settings.nodes(),
            tail: Tail::Drop,
            ..settings
        };
        let order = order(&counts, &selected, settings, &[]).unwrap();
        let first_files = first_files(&counts);
        let chunks: Vec<BTreeSet<usize>> = ranks(&order)
            .iter()
            .map(|rank| rank.iter().map(|file| first_files.partition_point(|f| f <= file)).collect())
            .collect();
        let fetched: usize = chunks.iter().map(BTreeSet::len).sum();
        let distinct: BTreeSet<usize> = chunks.iter().flatten().copied().collect();
        prop_assert!(fetched < distinct.len() + settings.world as usize);
    }

    #[test]
    fn batches_of_workers_in_turn_are_the_order_of_the_rank(
        case in case(),
        workers in 1_u32..5,
        batch in 1_u32..6,
        from in 0_u64..9,
    ) {
        let Case { counts, selected, settings } = case;
        let order = order(&counts, &selected, settings, &[]).unwrap();
        let whole = rank(&order, 0);
        let mut parts: Vec<Cursor> = (0..workers)
            .map(|number| Cursor::of_worker(Arc::clone(&order), 0, worker(number, workers, batch)).unwrap())
            .collect();
        prop_assert_eq!(parts.iter().map(Cursor::length).sum::<u64>(), whole.len() as u64);
        let mut again = parts[0].clone();
        let mut dealt = Vec::new();
        while dealt.len() < whole.len() {
            for part in &mut parts {
                dealt.extend(part.by_ref().take(batch as usize));
            }
        }
        prop_assert_eq!(dealt, whole);
        prop_assert!(parts.iter_mut().all(|part| part.next().is_none()));
        let all: Vec<u32> = again.by_ref().collect();
        again.seek(from);
        prop_assert_eq!(again.position(), from.min(all.len() as u64));
        prop_assert_eq!(again.collect::<Vec<_>>(), &all[(from as usize).min(all.len())..]);
    }

    #[test]
    fn a_token_is_read_back(stages in prop::collection::vec((1_u32..9, 0_u64..99, prop::collection::vec((0_u64..99, 1_u64..9), 0..3)), 1..4)) {
        let stages: Vec<Stage> = stages.into_iter().map(|(nodes, position, skips)| {
            let mut stage = Stage::new(nodes);
            stage.advance(position);
            skips.into_iter().for_each(|(from, length)| stage.skip(from..from + length));
            stage
        }).collect();
        let token = token(stages);
        prop_assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn no_text_makes_a_token_panic(text in "(order=1;dataset=a;version=b;selection=all;seed=1;epoch=2;group=3;at=)?[0-9@!,;=-]{0,40}") {
        let _ = text.parse::<ResumeToken>();
    }
}

fn token(stages: Vec<Stage>) -> ResumeToken {
    ResumeToken {
        dataset: "dataset".to_owned(),
        version: "version".to_owned(),
        selection: "all".to_owned(),
        seed: 7,
        epoch: 3,
        group: 100,
        stages,
    }
}

#[test]
fn a_token_is_for_a_dataset_a_version_and_a_selection() {
    let mut stage = Stage::new(8);
    stage.advance(5_000);
    stage.skip(6_000..7_000);
    let token = token(vec![stage, Stage::new(2)]);
    let text = token.to_string();
    assert_eq!(
        text,
        "order=1;dataset=dataset;version=version;selection=all;seed=7;epoch=3;group=100;at=8@5000!6000-7000,2@0"
    );
    assert_eq!(text.parse(), Ok(token.clone()));
    assert_eq!(token.check("dataset", "version", "all"), Ok(()));
    for (dataset, version, selection, field) in [
        ("other", "version", "all", "dataset"),
        ("dataset", "other", "all", "version"),
        ("dataset", "version", "other", "selection"),
    ] {
        let error = token.check(dataset, version, selection).unwrap_err();
        assert!(matches!(&error, InvalidToken::Other { field: found, .. } if *found == field));
    }
    for wrong in [
        "",
        "order=1",
        "order=2;dataset=a",
        &text.replace("@5000", "@-1"),
        &text.replace("8@", "0@"),
        &text.replace("6000-7000", "7000-6000"),
        &text.replace("seed=7", "seed=x"),
        &format!("{text};more=1"),
    ] {
        assert!(wrong.parse::<ResumeToken>().is_err(), "{wrong}");
    }
}

#[test]
fn invalid_orders_are_refused() {
    let settings = OrderSettings::new(1, 0, 2);
    let local = Partition::Local { nodes: 3 };
    let of = |settings| order(&[3, 4], &[0, 1, 2, 3, 4, 5, 6], settings, &[]).err();
    assert_eq!(of(OrderSettings { group: 0, ..settings }), Some(OrderError::Group));
    for wrong in [
        OrderSettings { world: 0, ..settings },
        OrderSettings { world: 4, partition: local, ..settings },
        OrderSettings { partition: Partition::Local { nodes: 0 }, ..settings },
    ] {
        assert!(matches!(of(wrong), Some(OrderError::World { .. })), "{wrong:?}");
    }
    let whole = order(&[3, 4], &[0, 1], settings, &[]).unwrap();
    assert!(matches!(Cursor::new(Arc::clone(&whole), 1), Err(OrderError::Rank { .. })));
    assert!(matches!(
        Cursor::of_worker(Arc::clone(&whole), 0, worker(2, 2, 8)),
        Err(OrderError::Worker { .. })
    ));
    assert!(matches!(Cursor::of_worker(whole, 0, worker(0, 1, 0)), Err(OrderError::Worker { .. })));
    let selection = Arc::new(Selection::all(5));
    let error = Order::new(first_files(&[3, 4]), selection, settings).err();
    assert_eq!(error, Some(OrderError::Files { selected: 5, files: 7 }));
}

#[test]
fn an_empty_dataset_has_an_empty_order() {
    for counts in [&[][..], &[0, 0]] {
        let order = order(counts, &[], OrderSettings::new(1, 0, 2), &[]).unwrap();
        assert_eq!((order.length(), rank(&order, 0)), (0, Vec::new()));
    }
}

#[test]
fn files_in_no_chunk_or_in_two_are_damage() {
    for (first_files, wrong) in [
        (&[4, 8, 10][..], Some(0)),
        (&[10], Some(0)),
        (&[0, 8, 6, 10], Some(2)),
        (&[0, 4, 11, 10], Some(3)),
        (&[0, 4, 4, 10], None),
    ] {
        let settings = OrderSettings::new(1, 0, 2);
        let made = Order::new(first_files.into(), Arc::new(Selection::all(10)), settings);
        let error = made.err();
        assert_eq!(error, wrong.map(|chunk| OrderError::Chunks { chunk }), "{first_files:?}");
        assert!(error.is_none_or(|error| error.kind() == Kind::Corrupt));
    }
}

#[test]
fn the_maximum_of_ranks_and_nodes_needs_no_memory_for_each() {
    let nodes = RANKS_MAX;
    let settings = OrderSettings {
        world: nodes,
        partition: Partition::Local { nodes },
        tail: Tail::Pad,
        ..OrderSettings::new(1, 0, 2)
    };
    let all: Vec<u32> = (0..100).collect();
    let of = |settings, at: &str| {
        let stages: Vec<Stage> = at.split(',').map(|stage| stage.parse().unwrap()).collect();
        order(&[50, 50], &all, settings, &stages)
    };
    let made = of(settings, &format!("{nodes}@0")).unwrap();
    assert_eq!(made.length(), 1);
    assert_eq!([0, nodes - 1].map(|number| rank(&made, number).len()), [1, 1]);
    let world = nodes + 1;
    for partition in [Partition::Global, Partition::Local { nodes: world }] {
        let more = OrderSettings { world, partition, ..settings };
        assert_eq!(of(more, "1@0").err(), Some(OrderError::Ranks(world)));
    }
    assert!(format!("{world}@0").parse::<Stage>().is_err());
    // The maximum length of a token.
    let one = OrderSettings::new(1, 0, 2);
    let often = vec![format!("{nodes}@0"); 1_600].join(",");
    assert_eq!(of(one, &often).err(), Some(OrderError::Stages { stages: 1_600, nodes }));
    assert_eq!(
        of(one, &["1@0"; 2_049].join(",")).err(),
        None,
        "the last stage is the current task's"
    );
    assert!(of(one, &["2@0"; 2_000].join(",")).is_err());
    assert!(matches!(
        order(&[50, 50], &all, one, &[Stage::new(0)]),
        Err(OrderError::Stages { nodes: 0, .. })
    ));
}
