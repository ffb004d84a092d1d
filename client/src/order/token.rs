//! Where a task is in an epoch, as a short text that a person can read and edit.
//!
//! Must hold: a token says which dataset, version, selection and order it belongs to, and is
//! refused for any other; it does not depend on the number of ranks, nodes or workers that go on.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::spans::{Intervals, stretch};
use super::{ORDER_VERSION, OrderError, RANKS_MAX};

/// Most bytes of a token: one that grew beyond was edited wrongly, or resumed too often.
const TEXT_MAX: usize = 16_384;

/// What was read of an epoch while the task had one number of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    nodes: u32,
    /// Places of each node's stretch that were read.
    position: u64,
    /// Places of each stretch that are left out: in order, and apart.
    skips: Vec<Range<u64>>,
}

impl Stage {
    /// Nothing read yet, by so many nodes.
    pub fn new(nodes: u32) -> Self {
        Self { nodes, position: 0, skips: Vec::new() }
    }

    /// Nodes that shared the epoch.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Files of each node's stretch that were read or skipped.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What is left out. That before the position counts too: who pads doesn't read it either.
    pub fn skips(&self) -> &[Range<u64>] {
        &self.skips
    }

    /// Leaves out a range of each node's stretch, counted from the stretch's beginning.
    pub fn skip(&mut self, range: Range<u64>) {
        self.skips.push(range);
        self.tidy();
    }

    /// Goes on by so many places, over those that are left out.
    pub(super) fn advance(&mut self, places: u64) {
        let (mut left, from) = (places, self.position);
        for skip in self.skips.iter().filter(|skip| skip.end > from) {
            let before = skip.start.saturating_sub(self.position);
            if left < before {
                break;
            }
            left -= before;
            self.position = skip.end;
        }
        self.position = self.position.saturating_add(left);
    }

    /// Places of a stretch of this length, or of its beginning, that are not left out.
    pub(super) fn kept_of(&self, length: u64) -> u64 {
        self.kept(0..length).map(|kept| kept.end - kept.start).sum()
    }

    /// Places of each stretch before the position that were not left out, as if it were so long.
    pub(super) fn passed(&self) -> u64 {
        self.kept_of(self.position)
    }

    /// What is left of a sequence, one stretch after the other.
    pub(super) fn left_of(&self, sequence: &Intervals) -> Intervals {
        (0..self.nodes).flat_map(|node| self.share(sequence, node, self.position)).collect()
    }

    /// What a node's stretch of a sequence has from an index on, without what is left out.
    pub(super) fn share<'a>(
        &'a self,
        sequence: &'a Intervals,
        node: u32,
        from: u64,
    ) -> impl Iterator<Item = Range<u64>> + 'a {
        let Range { start, end } = stretch(sequence.length(), self.nodes, node);
        let kept = self.kept(from..end - start);
        kept.flat_map(move |kept| sequence.part(start + kept.start..start + kept.end))
    }

    /// The indexes among these that are not left out.
    fn kept(&self, indexes: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = std::iter::once(0).chain(self.skips.iter().map(|skip| skip.end));
        let ends = self.skips.iter().map(|skip| skip.start).chain(std::iter::once(u64::MAX));
        let between = starts.zip(ends);
        let kept = between.map(move |(start, end)| start.max(indexes.start)..end.min(indexes.end));
        kept.filter(|kept| !kept.is_empty())
    }

    fn tidy(&mut self) {
        let mut skips = std::mem::take(&mut self.skips);
        skips.retain(|skip| !skip.is_empty());
        skips.sort_by_key(|skip| skip.start);
        for skip in skips {
            match self.skips.last_mut() {
                Some(last) if skip.start <= last.end => last.end = last.end.max(skip.end),
                _ => self.skips.push(skip),
            }
        }
    }
}

/// `8@5000!6000-7000`: of each of 8 stretches 5,000 places were read, and 6,000 to 6,999 are left
/// out.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.nodes, self.position)?;
        self.skips.iter().try_for_each(|skip| write!(f, "!{}-{}", skip.start, skip.end))
    }
}

impl FromStr for Stage {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let wrong = || InvalidToken::Field { field: "at", text: text.to_owned() };
        let mut parts = text.split('!');
        let (nodes, position) =
            parts.next().and_then(|part| part.split_once('@')).ok_or_else(wrong)?;
        let nodes: u32 = nodes.parse().map_err(|_| wrong())?;
        if !(1..=RANKS_MAX).contains(&nodes) {
            return Err(wrong());
        }
        let mut stage = Self::new(nodes);
        stage.position = position.parse().map_err(|_| wrong())?;
        for part in parts {
            let (from, to) = part.split_once('-').ok_or_else(wrong)?;
            let from: u64 = from.parse().map_err(|_| wrong())?;
            let to: u64 = to.parse().map_err(|_| wrong())?;
            if from >= to {
                return Err(wrong());
            }
            stage.skips.push(from..to);
        }
        stage.tidy();
        Ok(stage)
    }
}

/// Where a task is in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeToken {
    /// The dataset's id, in its printed form.
    pub dataset: String,
    /// The version of the dataset, in its printed form.
    pub version: String,
    /// Which files are read: `all`, or a checksum of the selection.
    pub selection: String,
    /// See [`super::OrderSettings`].
    pub seed: u64,
    /// See [`super::OrderSettings`].
    pub epoch: u64,
    /// See [`super::OrderSettings`].
    pub group: u32,
    /// What was read, in as many stages as the number of nodes has changed.
    pub stages: Vec<Stage>,
}

/// Why a text is no token, or none for this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// Something else, or cut off.
    #[error(
        "this is no resume token: it begins with order=, and has dataset, version, selection, seed, epoch, group and at, with semicolons between"
    )]
    Form,
    /// From another version of the order.
    #[error(
        "the resume token is one of order {0}, and this program knows order {ORDER_VERSION}; go on with the program that made it"
    )]
    Version(String),
    /// A field that can't be what it says.
    #[error("the resume token says {field}={text}, which can't be")]
    Field {
        /// Its name.
        field: &'static str,
        /// What stands there.
        text: String,
    },
    /// Made for something else.
    #[error("the resume token is for {field} {token}, and this is {here}: {advice}")]
    Other {
        /// What differs.
        field: &'static str,
        /// As the token has it.
        token: String,
        /// As it is here.
        here: String,
        /// What to do.
        advice: &'static str,
    },
}

impl ResumeToken {
    /// Whether it belongs to this dataset, version and selection.
    ///
    /// # Errors
    /// [`InvalidToken::Other`] with what differs.
    pub fn check(&self, dataset: &str, version: &str, selection: &str) -> Result<(), InvalidToken> {
        let fields = [
            ("dataset", &self.dataset, dataset, "resume with the dataset it was made for"),
            (
                "version",
                &self.version,
                version,
                "the dataset has changed since; resume with a snapshot of that version, or begin the epoch again",
            ),
            ("selection", &self.selection, selection, "resume with the files it was made for"),
        ];
        match fields.into_iter().find(|(_, token, here, _)| token.as_str() != *here) {
            None => Ok(()),
            Some((field, token, here, advice)) => Err(InvalidToken::Other {
                field,
                token: token.clone(),
                here: here.to_owned(),
                advice,
            }),
        }
    }
}

impl ResumeToken {
    /// The token of a task of `world` ranks on `nodes` nodes that began at this one, when each rank has read
    /// `read` files more.
    ///
    /// # Errors
    /// [`OrderError::World`] for ranks that can't be spread over the nodes.
    pub fn after(mut self, read: u64, world: u32, nodes: u32) -> Result<Self, OrderError> {
        if nodes == 0 || world == 0 || !world.is_multiple_of(nodes) {
            return Err(OrderError::World { world, nodes });
        }
        let last = self.stages.pop_if(|stage| stage.nodes() == nodes);
        let mut last = last.unwrap_or_else(|| Stage::new(nodes));
        last.advance(read.saturating_mul(u64::from(world / nodes)));
        self.stages.push(last);
        Ok(self)
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dataset, version, selection, seed, epoch, group, stages } = self;
        write!(f, "order={ORDER_VERSION};dataset={dataset};version={version};")?;
        write!(f, "selection={selection};seed={seed};epoch={epoch};group={group};at=")?;
        for (index, stage) in stages.iter().enumerate() {
            write!(f, "{}{stage}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for ResumeToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        if text.len() > TEXT_MAX {
            return Err(InvalidToken::Form);
        }
        let mut fields = text.trim().split(';');
        let mut field = |name: &'static str| {
            let (found, value) = fields.next()?.split_once('=')?;
            (found == name).then_some(value)
        };
        let order = field("order").ok_or(InvalidToken::Form)?;
        if order != ORDER_VERSION.to_string() {
            return Err(InvalidToken::Version(order.to_owned()));
        }
        let mut field = |name| field(name).ok_or(InvalidToken::Form);
        let dataset = field("dataset")?.to_owned();
        let version = field("version")?.to_owned();
        let selection = field("selection")?.to_owned();
        let seed = number("seed", field("seed")?)?;
        let epoch = number("epoch", field("epoch")?)?;
        let group = number("group", field("group")?)?;
        let stages = field("at")?.split(',').map(str::parse).collect::<Result<_, _>>()?;
        if fields.next().is_some() {
            return Err(InvalidToken::Form);
        }
        Ok(Self { dataset, version, selection, seed, epoch, group, stages })
    }
}

fn number<T: FromStr>(field: &'static str, text: &str) -> Result<T, InvalidToken> {
    text.parse().map_err(|_| InvalidToken::Field { field, text: text.to_owned() })
}
