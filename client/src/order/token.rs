//! The position of a task in an epoch, as a short text for reading and editing.
//!
//! Must hold: a token names its dataset, version, selection and order, and is refused for any
//! other. A token does not depend on the numbers of ranks, nodes or workers that resume.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::spans::{Intervals, stretch};
use super::{ORDER_VERSION, OrderError, RANKS_MAX};

/// The maximum bytes of a token. A longer text is an editing error, or was resumed too often.
const TEXT_MAX: usize = 16_384;

/// The reads of an epoch with a fixed number of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    nodes: u32,
    /// Places read of each node's stretch.
    position: u64,
    /// Skipped places of each stretch: in order, and disjoint.
    skips: Vec<Range<u64>>,
}

impl Stage {
    /// A stage of `nodes` nodes, before any read.
    pub fn new(nodes: u32) -> Self {
        Self { nodes, position: 0, skips: Vec::new() }
    }

    /// The nodes that share the epoch.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Places of each node's stretch that were read or skipped.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The skipped places. Skips before the position count too: padding leaves them out as well.
    pub fn skips(&self) -> &[Range<u64>] {
        &self.skips
    }

    /// Skips a range of each node's stretch, counted from its beginning.
    pub fn skip(&mut self, range: Range<u64>) {
        self.skips.push(range);
        self.tidy();
    }

    /// Advances by a number of places, over skipped places.
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

    /// Places of a stretch of the given length, without skipped places.
    pub(super) fn kept_of(&self, length: u64) -> u64 {
        self.kept(0..length).map(|kept| kept.end - kept.start).sum()
    }

    /// Places before the position, without skipped places, for a stretch of any length.
    pub(super) fn passed(&self) -> u64 {
        self.kept_of(self.position)
    }

    /// The rest of a sequence, stretch after stretch.
    pub(super) fn left_of(&self, sequence: &Intervals) -> Intervals {
        (0..self.nodes).flat_map(|node| self.share(sequence, node, self.position)).collect()
    }

    /// The places of a node's stretch from an index on, without skipped places.
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

    /// The indexes in a range, without skipped indexes.
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

/// `8@5000!6000-7000`: of each of 8 stretches 5,000 places were read, and 6,000 to 6,999 are
/// skipped.
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

/// The position of a task in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeToken {
    /// The dataset's id, in its printed form.
    pub dataset: String,
    /// The version of the dataset, in its printed form.
    pub version: String,
    /// The selected files: `all`, or a checksum of the selection.
    pub selection: String,
    /// See [`super::OrderSettings`].
    pub seed: u64,
    /// See [`super::OrderSettings`].
    pub epoch: u64,
    /// See [`super::OrderSettings`].
    pub group: u32,
    /// The reads: a stage for each number of nodes.
    pub stages: Vec<Stage>,
}

/// The cause of an invalid or unsuitable token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// Another text, or an incomplete token.
    #[error(
        "this is no resume token: a token begins with order= and has the fields dataset, version, selection, seed, epoch, group and at, separated by semicolons"
    )]
    Form,
    /// From another version of the order.
    #[error(
        "the resume token is for order {0}, and this program has order {ORDER_VERSION}; resume with the program that made the token"
    )]
    Version(String),
    /// A field with an invalid value.
    #[error("the resume token has an invalid value: {field}={text}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The value.
        text: String,
    },
    /// A token for another dataset, version or selection.
    #[error("the resume token is for {field} {token}, and the {field} here is {here}: {advice}")]
    Other {
        /// The differing field.
        field: &'static str,
        /// The value in the token.
        token: String,
        /// The value here.
        here: String,
        /// The remedy.
        advice: &'static str,
    },
}

impl ResumeToken {
    /// Checks the dataset, the version and the selection.
    ///
    /// # Errors
    /// [`InvalidToken::Other`] with the differing field.
    pub fn check(&self, dataset: &str, version: &str, selection: &str) -> Result<(), InvalidToken> {
        let fields = [
            ("dataset", &self.dataset, dataset, "resume with the dataset of the token"),
            (
                "version",
                &self.version,
                version,
                "the dataset has changed since; resume with a snapshot of the token's version, or begin the epoch again",
            ),
            ("selection", &self.selection, selection, "resume with the files of the token"),
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

    /// The token after the reads of a task that began at `self`: `world` ranks on `nodes` nodes,
    /// each with `read` more files.
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
