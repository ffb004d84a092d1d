//! Sends questions to the primaries of their shards: a connection and a pipeline per node.
//!
//! Must hold: a question is repeated until an answer arrives or the patience of the call ends, whatever
//! moves, dies or is elected. So commands may run twice. No call waits longer. A single Redis is a cluster of
//! one node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_runtime::{Backoff, Clock, Deadline, Random, locked};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tokio::sync::OnceCell;

use super::RedisOptions;
use super::address::{Address, Node};
use super::command::{Ask, list};
use super::failure::{Failure, Verdict};
use super::link::{Dropped, Link};
use super::slots::{SHARDS, Shard};
use crate::{Kind, Refusal};

const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(20), factor: 2, max: Duration::from_millis(400) };
/// Redirections followed before a pause.
const HOPS: u32 = 3;
/// Rounds of each call, even after its patience.
const ROUNDS_MIN: u32 = 3;
/// The least age of a map of the cluster before a refresh.
const REFRESH: Duration = Duration::from_millis(50);
/// How long to wait for a primary's answer to a probe for writes.
const REFUSAL: Duration = Duration::from_secs(2);
/// Bytes of a probe after a primary had no memory for a write: longer than any command of an append.
const PROBE: usize = 1 << 20;
/// How long the reason of a wait is reported.
const TROUBLE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Router {
    pub(super) address: Address,
    options: RedisOptions,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    state: Mutex<State>,
    /// Counts new connections and new owners.
    changes: AtomicU64,
    dropped: Dropped,
    /// A primary had no memory for a write since the last probe.
    had_no_room: AtomicBool,
}

#[derive(Debug)]
struct State {
    owners: Vec<Option<Node>>,
    links: HashMap<Node, Arc<OnceCell<Link>>>,
    refreshed: Option<Duration>,
    /// The first node of the next refresh: a node may have an old map.
    turn: usize,
    /// When the last question had to wait, and why.
    trouble: Option<(Duration, String)>,
}

/// The rounds of a call: a new round begins after a change of places.
#[derive(Debug)]
pub(super) struct Rounds {
    deadline: Deadline,
    count: u32,
}

struct Pending {
    index: usize,
    cmd: Cmd,
    shard: Shard,
    /// The node to ask once.
    ask: Option<Node>,
}

impl Router {
    pub(super) fn new(
        address: Address,
        options: RedisOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Self {
        let single = address.nodes.first().filter(|_| !address.is_cluster).cloned();
        let state = Mutex::new(State {
            owners: vec![single; SHARDS],
            links: HashMap::new(),
            refreshed: None,
            turn: 0,
            trouble: None,
        });
        let (changes, dropped) = (AtomicU64::new(0), Dropped::default());
        let had_no_room = AtomicBool::new(false);
        Self { address, options, clock, random, state, changes, dropped, had_no_room }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// A number that changes with every new connection, every move of a shard and every sign of a loss.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How long a call is repeated.
    pub(super) fn patience(&self) -> Duration {
        self.options.patience
    }

    /// The rounds of a new call.
    pub(super) fn rounds(&self) -> Rounds {
        Rounds { deadline: Deadline::after(&*self.clock, self.options.patience), count: 0 }
    }

    /// Begins a round of a call, until its patience is over. Long calls, such as walks, get [`ROUNDS_MIN`].
    pub(super) fn again(&self, rounds: &mut Rounds) -> Result<(), Failure> {
        let is_over = rounds.deadline.remaining(&*self.clock).is_zero();
        if is_over && rounds.count >= ROUNDS_MIN {
            let why = "the places of Redis shards changed in each round of the call";
            return Err(self.gave_up(self.options.patience, Some(why.to_owned())));
        }
        rounds.count += 1;
        Ok(())
    }

    /// The answers to all questions, in their order.
    pub(super) async fn ask(&self, asks: Vec<Ask>) -> Result<Vec<Value>, Failure> {
        self.ask_within(self.options.patience, asks).await
    }

    /// Like [`Router::ask`], with another patience.
    pub(super) async fn ask_within(
        &self,
        patience: Duration,
        asks: Vec<Ask>,
    ) -> Result<Vec<Value>, Failure> {
        let deadline = Deadline::after(&*self.clock, patience);
        let gave_up = |reason| self.gave_up(patience, reason);
        let mut answers: Vec<Value> = vec![Value::Nil; asks.len()];
        let mut pending: Vec<Pending> = asks
            .into_iter()
            .enumerate()
            .map(|(index, Ask { shard, cmd })| Pending { index, cmd, shard, ask: None })
            .collect();
        let (mut failures, mut hops, mut reason) = (0, 0, None);
        // The reason why no node told the map of the cluster.
        let mut unmapped = None;
        while !pending.is_empty() {
            let round = deadline.bound(&*self.clock, self.round(pending, &mut answers)).await;
            let Ok(round) = round else { return Err(gave_up(unmapped.or(reason))) };
            let (left, waits) = round?;
            pending = left;
            if pending.is_empty() {
                break;
            }
            hops += 1;
            if waits.is_none() && hops <= HOPS {
                continue;
            }
            if let Some(waits) = &waits {
                self.state().trouble = Some((self.clock.monotonic(), waits.clone()));
            }
            reason = waits.or(reason);
            let wait = BACKOFF.wait(failures, &*self.random);
            if wait >= deadline.remaining(&*self.clock) {
                return Err(gave_up(unmapped.or(reason)));
            }
            self.clock.sleep(wait).await;
            (failures, hops) = (failures.saturating_add(1), 0);
            let refreshed = deadline.bound(&*self.clock, self.refresh()).await;
            match refreshed {
                Ok(Ok(())) => unmapped = None,
                Ok(Err(Verdict::Fatal(failure))) => return Err(failure),
                Ok(Err(verdict)) => unmapped = Some(text_of(verdict)),
                Err(_) => return Err(gave_up(unmapped.or(reason))),
            }
        }
        Ok(answers)
    }

    pub(super) async fn ask_one(&self, ask: Ask) -> Result<Value, Failure> {
        let answers = self.ask(vec![ask]).await?;
        answers.into_iter().next().ok_or_else(Failure::unexpected)
    }

    /// The reason and the age of the last wait, for half a minute.
    pub(super) fn trouble(&self) -> Option<String> {
        let (at, why) = self.state().trouble.clone()?;
        let ago = self.clock.monotonic().saturating_sub(at);
        (ago < TROUBLE).then(|| format!("{why} ({} s ago)", ago.as_secs()))
    }

    fn gave_up(&self, patience: Duration, reason: Option<String>) -> Failure {
        let patience = patience.as_secs_f32();
        let reason = reason.unwrap_or_else(|| "no answer".to_owned());
        Failure::because(
            Kind::Unavailable,
            format!("{}: gave up after {patience:.1} s: {reason}", self.address),
        )
    }

    /// Asks every node its share of the questions. Gives the questions to repeat, and the reason to wait.
    async fn round(
        &self,
        pending: Vec<Pending>,
        answers: &mut [Value],
    ) -> Result<(Vec<Pending>, Option<String>), Failure> {
        let (mut left, mut waits) = (Vec::new(), None);
        let mut groups: Vec<(Node, Vec<Pending>)> = Vec::new();
        {
            let state = self.state();
            let count = pending.len();
            for one in pending {
                let owner = state.owners.get(one.shard.index()).and_then(Option::as_ref);
                let Some(node) = one.ask.as_ref().or(owner) else {
                    waits = Some(format!("no node serves slot {}", one.shard.slot()));
                    left.push(one);
                    continue;
                };
                match groups.iter().position(|(of, _)| of == node) {
                    Some(group) => groups[group].1.push(one),
                    None => {
                        // Mostly there is a single node, or a node with most questions.
                        let room = if groups.is_empty() { count } else { 1 };
                        let (node, mut group) = (node.clone(), Vec::with_capacity(room));
                        group.push(one);
                        groups.push((node, group));
                    }
                }
            }
        }
        let sent = groups.into_iter().map(|(node, group)| self.send(node, group));
        for (node, pipeline, group, sent) in join_all(sent).await {
            let values = match sent {
                Ok(values) => values,
                Err(Verdict::Fatal(failure)) => return Err(failure),
                Err(verdict) => {
                    waits = Some(format!("{node}: {}", text_of(verdict)));
                    let mut cmds = pipeline.cmd_iter();
                    for (index, shard, asked) in group {
                        let _asking = if asked { cmds.next() } else { None };
                        left.extend(cmds.next().map(|cmd| Pending {
                            index,
                            cmd: cmd.clone(),
                            shard,
                            ask: None,
                        }));
                    }
                    continue;
                }
            };
            let mut replies = values.into_iter().zip(pipeline.cmd_iter());
            for (index, shard, asked) in group {
                let _asking = if asked { replies.next() } else { None };
                let Some((value, cmd)) = replies.next() else { break };
                let Value::ServerError(error) = value else {
                    if let Some(answer) = answers.get_mut(index) {
                        *answer = value;
                    }
                    continue;
                };
                let mut again = Pending { index, cmd: cmd.clone(), shard, ask: None };
                match Verdict::on(&error, &node) {
                    Verdict::Moved(to) => self.moved(shard, to),
                    Verdict::Ask(to) => again.ask = Some(to),
                    Verdict::Reload => self.reload(&node).await,
                    Verdict::Fatal(failure) => {
                        if failure.kind == Kind::Full {
                            self.had_no_room.store(true, Ordering::Release);
                        }
                        return Err(failure);
                    }
                    verdict => waits = Some(format!("{node}: {}", text_of(verdict))),
                }
                left.push(again);
            }
        }
        Ok((left, waits))
    }

    /// Sends a group to its node; gives back all parts for a repetition.
    async fn send(
        &self,
        node: Node,
        group: Vec<Pending>,
    ) -> (Node, redis::Pipeline, Vec<(usize, Shard, bool)>, Result<Vec<Value>, Verdict>) {
        let mut pipeline = redis::Pipeline::with_capacity(group.len());
        let mut members = Vec::with_capacity(group.len());
        for Pending { index, cmd, shard, ask } in group {
            if ask.is_some() {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(cmd);
            members.push((index, shard, ask.is_some()));
        }
        let sent = match self.link(&node).await {
            Ok(link) => {
                let sent = link.send(&pipeline).await;
                if let Err(Verdict::Lost(_)) = &sent {
                    self.unlink(&node, &link);
                }
                sent
            }
            Err(verdict) => Err(verdict),
        };
        (node, pipeline, members, sent)
    }

    fn moved(&self, shard: Shard, to: Node) {
        let mut state = self.state();
        // Before any question to the new node.
        self.changed();
        if let Some(owner) = state.owners.get_mut(shard.index()) {
            *owner = Some(to);
        }
    }

    async fn reload(&self, node: &Node) {
        if let Ok(link) = self.link(node).await
            && let Err(verdict) = link.load(node).await
        {
            tracing::debug!(%node, why = text_of(verdict), "could not load scripts");
        }
    }

    /// The connection to a node, made by a single caller for all.
    pub(super) async fn link(&self, node: &Node) -> Result<Link, Verdict> {
        let cell = Arc::clone(self.state().links.entry(node.clone()).or_default());
        let link = cell
            .get_or_try_init(|| async {
                let link = Link::open(node, &self.address, &self.options, &self.dropped).await?;
                self.changed();
                Ok(link)
            })
            .await?;
        Ok(link.clone())
    }

    /// Drops a connection, unless another connection took its place.
    fn unlink(&self, node: &Node, link: &Link) {
        let mut state = self.state();
        let same = |cell: &Arc<OnceCell<Link>>| {
            cell.get().is_some_and(|held| Arc::ptr_eq(&held.run, &link.run))
        };
        if state.links.get(node).is_some_and(same) {
            state.links.remove(node);
        }
    }

    /// Nodes with shards, without repetitions.
    pub(super) fn primaries(&self) -> Vec<Node> {
        let mut nodes: Vec<_> = self.state().owners.iter().flatten().cloned().collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The node of a shard, if known.
    pub(super) fn owner(&self, shard: Shard) -> Option<Node> {
        self.state().owners.get(shard.index()).cloned().flatten()
    }

    /// The answer of a node, whichever shards it serves.
    pub(super) async fn ask_node(&self, node: &Node, cmd: Cmd) -> Result<Value, Failure> {
        let mut pipeline = redis::Pipeline::with_capacity(1);
        pipeline.add_command(cmd);
        let deadline = Deadline::after(&*self.clock, self.options.patience);
        let asked = async {
            let answer = self.link(node).await?.send(&pipeline).await?.into_iter().next();
            match answer {
                Some(Value::ServerError(error)) => Err(Verdict::on(&error, node)),
                answer => answer.ok_or(Verdict::Fatal(Failure::unexpected())),
            }
        };
        match deadline.bound(&*self.clock, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Verdict::Fatal(failure))) => Err(failure),
            Ok(Err(verdict)) => Err(self.gave_up(self.options.patience, Some(text_of(verdict)))),
            Err(_) => Err(self.gave_up(self.options.patience, None)),
        }
    }

    pub(super) async fn runs(&self) -> Result<HashMap<Node, Arc<str>>, Failure> {
        let deadline = Deadline::after(&*self.clock, self.options.patience);
        for failures in 0.. {
            let asked = join_all(self.primaries().into_iter().map(|node| self.run_of(node)));
            let asked = deadline.bound(&*self.clock, asked).await;
            let asked = asked.map_err(|_| self.gave_up(self.options.patience, None))?;
            let verdict = match asked.into_iter().collect::<Result<_, _>>() {
                Ok(runs) => return Ok(runs),
                Err(Verdict::Fatal(failure)) => return Err(failure),
                Err(verdict) => verdict,
            };
            let why = text_of(verdict);
            self.state().trouble = Some((self.clock.monotonic(), why.clone()));
            let wait = BACKOFF.wait(failures, &*self.random);
            if wait >= deadline.remaining(&*self.clock) {
                return Err(self.gave_up(self.options.patience, Some(why)));
            }
            self.clock.sleep(wait).await;
            // The next try reports the same failure.
            let _ = deadline.bound(&*self.clock, self.refresh()).await;
        }
        Err(self.gave_up(self.options.patience, None))
    }

    /// Why a primary takes no new objects: first a primary without any writes, then a full primary. A write
    /// without effect shows the reason. Primaries without an answer in time are skipped.
    pub(super) async fn refusal(&self) -> Result<Option<Refusal>, Failure> {
        let deadline = Deadline::after(&*self.clock, self.options.patience.min(REFUSAL));
        // A small write may pass where a header finds no memory.
        let had_no_room = self.had_no_room.load(Ordering::Acquire);
        let length = if had_no_room { PROBE } else { 0 };
        let ask = |node| deadline.bound(&*self.clock, self.refusal_of(node, length));
        let mut asked: FuturesUnordered<_> = self.primaries().into_iter().map(ask).collect();
        let (mut full, mut unfit) = (None, None);
        while let Some(said) = asked.next().await {
            match said {
                Ok(Ok(Some(all @ Refusal::All(_)))) => return Ok(Some(all)),
                Ok(Ok(Some(one))) => full = Some(one),
                Ok(Err(Verdict::Fatal(failure))) => unfit = Some(failure),
                _ => {}
            }
        }
        if full.is_none() && had_no_room {
            self.had_no_room.store(false, Ordering::Release);
        }
        match (full, unfit) {
            (None, Some(failure)) => Err(failure),
            (full, _) => Ok(full),
        }
    }

    /// Why a primary takes no write with so many bytes.
    async fn refusal_of(&self, node: Node, length: usize) -> Result<Option<Refusal>, Verdict> {
        let link = self.link(&node).await?;
        let mut shards = Shard::all();
        let Some(shard) = shards.find(|shard| self.owner(*shard).as_ref() == Some(&node)) else {
            return Ok(None);
        };
        let refusal = link.probe(&node, shard, length).await;
        if let Err(Verdict::Lost(_)) = &refusal {
            self.unlink(&node, &link);
        }
        refusal
    }

    async fn run_of(&self, node: Node) -> Result<(Node, Arc<str>), Verdict> {
        let link = self.link(&node).await?;
        match link.current_run(&self.address, &node, &self.dropped).await {
            Ok(run) => Ok((node, run)),
            Err(verdict) => {
                // An unfit process is asked again only over a new connection.
                if let Verdict::Lost(_) | Verdict::Fatal(_) = &verdict {
                    self.unlink(&node, &link);
                }
                Err(verdict)
            }
        }
    }

    /// Reads the map of shards from any node with an answer. A wrong node redirects.
    pub(super) async fn refresh(&self) -> Result<(), Verdict> {
        if !self.address.is_cluster {
            return Ok(());
        }
        let candidates = {
            let mut state = self.state();
            let now = self.clock.monotonic();
            if state.refreshed.is_some_and(|at| now.saturating_sub(at) < REFRESH) {
                return Ok(());
            }
            state.refreshed = Some(now);
            state.turn = state.turn.wrapping_add(1);
            let mut nodes: Vec<Node> = self.address.nodes.clone();
            nodes.extend(state.owners.iter().flatten().cloned());
            nodes.sort_unstable();
            nodes.dedup();
            let turn = state.turn % nodes.len().max(1);
            nodes.rotate_left(turn);
            nodes
        };
        let mut refused = Verdict::Wait("no node of the cluster is known".to_owned());
        for node in candidates {
            match self.slots(&node).await {
                Ok(owners) => {
                    self.adopt(owners);
                    return Ok(());
                }
                // Another node may answer. A fatal failure is reported first.
                Err(Verdict::Fatal(failure)) => refused = Verdict::Fatal(failure),
                Err(verdict) if !matches!(refused, Verdict::Fatal(_)) => {
                    refused = Verdict::Wait(format!("{node}: {}", text_of(verdict)));
                }
                Err(_) => {}
            }
        }
        Err(refused)
    }

    fn adopt(&self, owners: Vec<Option<Node>>) {
        let mut state = self.state();
        if state.owners == owners {
            return;
        }
        self.changed();
        state.owners = owners;
        let State { owners, links, .. } = &mut *state;
        // A node may serve again later with another run: a new connection reads the run.
        links.retain(|node, _| owners.iter().flatten().any(|owner| owner == node));
    }

    /// The node of each shard, as `node` sees them.
    async fn slots(&self, node: &Node) -> Result<Vec<Option<Node>>, Verdict> {
        let link = self.link(node).await?;
        let mut pipeline = redis::Pipeline::with_capacity(1);
        pipeline.cmd("CLUSTER").arg("SLOTS");
        let sent = link.send(&pipeline).await;
        if let Err(Verdict::Lost(_)) = &sent {
            self.unlink(node, &link);
        }
        let answer = sent?.into_iter().next().unwrap_or(Value::Nil);
        if let Value::ServerError(error) = &answer {
            return Err(Verdict::on(error, node));
        }
        let ranges = list(answer, |range| read_range(range, node)).map_err(Verdict::Fatal)?;
        if ranges.is_empty() {
            return Err(Verdict::Wait("it knows of no node that serves slots".to_owned()));
        }
        let owner = |shard: Shard| {
            let slot = i64::from(shard.slot());
            let range = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            range.and_then(|(_, _, node)| node.clone())
        };
        Ok(Shard::all().map(owner).collect())
    }
}

/// First slot, last slot, primary.
fn read_range(range: Value, asked: &Node) -> Result<(i64, i64, Option<Node>), Failure> {
    let mut parts = list(range, Ok)?.into_iter();
    let (Some(Value::Int(first)), Some(Value::Int(last)), Some(primary)) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(Failure::unexpected());
    };
    let mut primary = list(primary, Ok)?.into_iter();
    let host = match primary.next() {
        Some(Value::BulkString(host)) => String::from_utf8_lossy(&host).into_owned(),
        _ => String::new(),
    };
    let port = match primary.next() {
        Some(Value::Int(port)) => u16::try_from(port).ok(),
        _ => None,
    };
    let host = if host.is_empty() { Arc::clone(&asked.host) } else { host.into() };
    Ok((first, last, port.map(|port| Node { host, port })))
}

fn text_of(verdict: Verdict) -> String {
    match verdict {
        Verdict::Moved(to) | Verdict::Ask(to) => format!("moved to {to}"),
        Verdict::Reload => "it has lost the scripts".to_owned(),
        Verdict::Wait(why) | Verdict::Lost(why) => why,
        Verdict::Fatal(failure) => failure.to_string(),
    }
}
