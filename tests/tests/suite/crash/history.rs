//! Requests of a client in sequence, and the expected state after each.
//!
//! Must hold: a repeated request has the same ids and bytes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use dl_format::{
    Attributes, ChunkId, ChunkIdMaker, ChunkWriter, DatasetId, Deletions, Extent, FilePath, Sealed,
    Stamp,
};
use dl_tests::cluster::clock;
use dl_tests::wire::{Files, Wire, chunk, shape};

type File = (&'static str, Vec<u8>);

/// A step of the history.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Create(&'static str),
    Put(&'static str, Vec<File>),
    /// A part of a file too large for a single chunk; the file is not visible yet.
    Part(&'static str, Vec<u8>),
    /// The last part, which makes the file visible: path, all bytes, and the length of the last
    /// part.
    Publish(&'static str, &'static str, Vec<u8>, usize),
    Delete(&'static str, Vec<&'static str>),
    DeleteDataset(&'static str),
    /// An orderly stop and a restart.
    Restart,
    /// A stop, the loss of all metadata, and a restart.
    LoseMetadata,
    Recover,
}

/// The steps of a history.
#[derive(Debug)]
pub(super) struct History {
    pub(super) steps: Vec<Step>,
}

impl History {
    pub(super) fn new() -> Self {
        let small = |text: &str| text.as_bytes().to_vec();
        let long = |byte: u8| vec![byte; 300_000];
        let pieces = [vec![3; 200_000], vec![4; 100_000], vec![5; 5_000]];
        let [first, second, last] = pieces.clone();
        let large = Step::Publish("a", "large", pieces.concat(), last.len());
        let steps = vec![
            Step::Create("a"),
            Step::Put("a", vec![("x", small("one")), ("d/y", small("two")), ("d/z", Vec::new())]),
            Step::Put("a", vec![("x", long(1)), ("d/new", small("three"))]),
            Step::Part("a", first),
            Step::Part("a", second),
            large,
            Step::Delete("a", vec!["d/y", "d/new"]),
            Step::Create("b"),
            Step::Put("b", vec![("x", small("of another dataset"))]),
            Step::Restart,
            Step::Put("a", vec![("d/new", small("again")), ("e", small("file"))]),
            Step::Put("a", vec![("e/f", small("makes a folder of e"))]),
            Step::DeleteDataset("b"),
            Step::Create("b"),
            Step::Put("b", vec![("y", long(2))]),
            Step::LoseMetadata,
            Step::Recover,
            Step::Delete("a", vec!["x", "e/f", "large"]),
            Step::Put("a", vec![("x", small("the last one"))]),
            Step::DeleteDataset("b"),
        ];
        Self { steps }
    }
}

/// A request with the exact bytes of each attempt.
#[derive(Debug, Clone)]
enum Request {
    Create(&'static str),
    Put(DatasetId, Vec<u8>),
    Delete(DatasetId, ChunkId, Deletions),
    DeleteDataset(&'static str, DatasetId),
    Recover,
}

/// Acknowledged changes, and the change in flight.
#[derive(Debug, Default)]
pub(super) struct Journal {
    next: usize,
    pending: Option<Request>,
    datasets: BTreeMap<&'static str, Dataset>,
    acknowledged: Vec<(Request, Option<Stamp>)>,
    /// The stored parts of the large file in flight.
    extents: Vec<Extent>,
}

#[derive(Debug, Clone)]
struct Dataset {
    id: DatasetId,
    /// All paths, including files hidden by folders.
    files: Files,
}

impl Journal {
    /// The next step, or the step in flight.
    pub(super) fn step<'a>(&self, history: &'a History) -> Option<&'a Step> {
        history.steps.get(self.next)
    }

    pub(super) fn acknowledged_names(&self) -> impl Iterator<Item = &'static str> {
        let under_way = match self.pending {
            Some(Request::DeleteDataset(name, _)) => Some(name),
            _ => None,
        };
        self.datasets.keys().copied().filter(move |name| Some(*name) != under_way)
    }

    /// Whether the metadata are lost and not yet recovered.
    pub(super) fn is_recovering(&self, history: &History) -> bool {
        matches!(self.step(history), Some(Step::Recover))
    }

    pub(super) fn done(&mut self) {
        self.next += 1;
        self.pending = None;
    }

    /// Sends the request of a step and records its acknowledgement.
    pub(super) async fn send(&mut self, server: &Wire, step: &Step) -> Result<()> {
        let request = match self.pending.clone() {
            Some(request) => request,
            None => {
                let request = self.prepare(server, step).await?;
                self.pending.insert(request).clone()
            }
        };
        let stamp = ask(server, &request).await?;
        if let Step::Create(name) = step {
            let id = server.dataset(name).await?.context("a created dataset is not there")?;
            self.datasets.insert(name, Dataset { id, files: Files::new() });
        }
        apply(&mut self.datasets, step);
        self.acknowledged.push((request, stamp));
        self.done();
        Ok(())
    }

    async fn prepare(&mut self, server: &Wire, step: &Step) -> Result<Request> {
        let datasets = &self.datasets;
        let dataset =
            |name: &str| datasets.get(name).map(|dataset| dataset.id).context("no such id");
        // A separate origin for each step: ids of two steps never collide.
        let mut ids = ChunkIdMaker::new([self.next as u8; 9]);
        let id = ids.next(clock().now());
        Ok(match step {
            Step::Create(name) => Request::Create(name),
            Step::Put(name, files) => {
                let dataset = dataset(name)?;
                let files = files.iter().map(|(path, data)| (path.as_bytes(), data.as_slice()));
                Request::Put(dataset, chunk(id, dataset, files)?)
            }
            Step::Part(name, bytes) => {
                let dataset = dataset(name)?;
                let (part, extent) = Sealed::part(shape()?, id, dataset, bytes)?;
                self.extents.push(extent);
                Request::Put(dataset, part.as_slice().to_vec())
            }
            Step::Publish(name, path, bytes, last) => {
                let dataset = dataset(name)?;
                let mut writer = ChunkWriter::new(shape()?, Vec::new());
                let (path, attributes) = (FilePath::new(*path)?, Attributes::default());
                let (_, tail) = bytes.split_at(bytes.len() - last);
                writer.append_tail(&path, attributes, self.extents.clone(), tail)?;
                Request::Put(dataset, writer.seal(id, dataset).as_slice().to_vec())
            }
            Step::Delete(name, paths) => {
                let dataset = dataset(name)?;
                let mut deletions = Deletions::default();
                for (path, record) in server.list(dataset).await? {
                    if paths.iter().any(|wanted| wanted.as_bytes() == path.as_bytes()) {
                        deletions.insert(&record.version);
                    }
                }
                Request::Delete(dataset, id, deletions)
            }
            Step::DeleteDataset(name) => Request::DeleteDataset(name, dataset(name)?),
            Step::Recover => Request::Recover,
            Step::Restart | Step::LoseMetadata => anyhow::bail!("{step:?} is no request"),
        })
    }

    /// The permitted states: all acknowledged changes, with or without the change in flight.
    pub(super) fn allowed(&self, history: &History) -> Vec<BTreeMap<&'static str, Files>> {
        let mut allowed = vec![visible(&self.datasets)];
        if let (Some(_), Some(step)) = (&self.pending, self.step(history)) {
            let mut after = self.datasets.clone();
            if let Step::Create(name) = step {
                let id = DatasetId::from_bytes([0; 16]);
                after.insert(name, Dataset { id, files: Files::new() });
            }
            apply(&mut after, step);
            allowed.push(visible(&after));
        }
        allowed
    }

    /// The name of a dataset whose creation is in flight.
    pub(super) fn half_created(&self) -> Option<&'static str> {
        match self.pending {
            Some(Request::Create(name)) => Some(name),
            _ => None,
        }
    }

    /// Repeats all acknowledged requests, the last first, except creations: a name may have been
    /// reused.
    pub(super) async fn send_all_again(&self, server: &Wire) -> Result<()> {
        let ended = |id: &DatasetId| !self.datasets.values().any(|dataset| dataset.id == *id);
        for (request, stamp) in self.acknowledged.iter().rev() {
            match request {
                Request::Create(_) => {}
                Request::Put(dataset, _) | Request::Delete(dataset, _, _) if ended(dataset) => {
                    let refused = ask(server, request).await;
                    let status = refused.err().context("a dead dataset took a write")?;
                    anyhow::ensure!(status.code() == tonic::Code::NotFound, "{status}");
                }
                Request::Put(..) | Request::Delete(..) => {
                    let again = ask(server, request).await?;
                    anyhow::ensure!(again == *stamp, "{stamp:?} became {again:?}");
                }
                Request::DeleteDataset(..) | Request::Recover => {
                    ask(server, request).await?;
                }
            }
        }
        Ok(())
    }
}

async fn ask(server: &Wire, request: &Request) -> Result<Option<Stamp>, tonic::Status> {
    match request {
        Request::Create(name) => server.create(name).await.map(|_| None),
        Request::Put(dataset, object) => server.put(*dataset, object).await.map(Some),
        Request::Delete(dataset, tombstone, deletions) => {
            server.delete(*dataset, *tombstone, deletions).await.map(Some)
        }
        Request::DeleteDataset(name, id) => server.delete_dataset(name, *id).await.map(|()| None),
        Request::Recover => match server.recover().await?.iter().find(|d| !d.problems.is_empty()) {
            Some(damaged) => Err(tonic::Status::data_loss(format!("{damaged:?}"))),
            None => Ok(None),
        },
    }
}

fn apply(datasets: &mut BTreeMap<&'static str, Dataset>, step: &Step) {
    let mut change = |name: &str, change: &dyn Fn(&mut Files)| {
        datasets.get_mut(name).into_iter().for_each(|dataset| change(&mut dataset.files));
    };
    match step {
        Step::Put(name, files) => change(name, &|there| {
            let files = files.iter();
            there.extend(files.map(|(path, data)| (path.as_bytes().to_vec(), data.clone())));
        }),
        Step::Publish(name, path, bytes, _) => change(name, &|there| {
            there.insert(path.as_bytes().to_vec(), bytes.clone());
        }),
        Step::Delete(name, paths) => change(name, &|there| {
            there.retain(|path, _| !paths.iter().any(|gone| gone.as_bytes() == path));
        }),
        Step::DeleteDataset(name) => {
            datasets.remove(name);
        }
        Step::Create(_) | Step::Part(..) | Step::Restart | Step::LoseMetadata | Step::Recover => {}
    }
}

/// The visible files: a folder hides a file of the same path.
fn visible(datasets: &BTreeMap<&'static str, Dataset>) -> BTreeMap<&'static str, Files> {
    let visible = |files: &Files| {
        let is_folder = |path: &[u8]| {
            let prefix = [path, b"/"].concat();
            files.keys().any(|other| other.starts_with(&prefix))
        };
        let seen = files.iter().filter(|(path, _)| !is_folder(path));
        seen.map(|(path, data)| (path.clone(), data.clone())).collect()
    };
    datasets.iter().map(|(name, dataset)| (*name, visible(&dataset.files))).collect()
}
