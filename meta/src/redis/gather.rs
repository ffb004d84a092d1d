//! Similar calls at about the same time, sent to Redis together.
//!
//! Must hold: an answer is read after its call began, and a cancelled call disturbs no other call. While
//! Redis does not answer, waiting calls fail together with the calls in flight: no call waits for several
//! time-outs. No group waits for a cancelled call.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

use dl_runtime::locked;
use tokio::sync::oneshot;

use super::failure::Failure;
use crate::Kind;

/// Groups of a key in flight: Redis reads a group while another group is answered.
const AT_ONCE: usize = 2;
/// Most calls of a group.
const CALLS_MAX: usize = 256;

/// Queues of calls, by their common key.
pub(super) struct Gathering<K, Q, A> {
    queues: Mutex<HashMap<K, Queue<Q, A>>>,
}

struct Queue<Q, A> {
    under_way: usize,
    waiting: Vec<Call<Q, A>>,
}

struct Call<Q, A> {
    question: Q,
    answer: oneshot::Sender<Result<A, Failure>>,
}

impl<K, Q, A> Default for Gathering<K, Q, A> {
    fn default() -> Self {
        Self { queues: Mutex::default() }
    }
}

impl<K, Q, A> fmt::Debug for Gathering<K, Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathering").finish_non_exhaustive()
    }
}

impl<K: Copy + Eq + Hash, Q, A> Gathering<K, Q, A> {
    fn queues(&self) -> MutexGuard<'_, HashMap<K, Queue<Q, A>>> {
        locked(&self.queues)
    }

    /// Puts a question into the queue; true with few groups in flight: the caller then calls
    /// [`Gathering::run`] for the key.
    pub(super) fn join(&self, key: K, question: Q) -> (Waiting<A>, bool) {
        let (answer, waiting) = oneshot::channel();
        let mut queues = self.queues();
        let queue =
            queues.entry(key).or_insert_with(|| Queue { under_way: 0, waiting: Vec::new() });
        queue.waiting.push(Call { question, answer });
        let is_runner = queue.under_way < AT_ONCE;
        queue.under_way += usize::from(is_runner);
        (Waiting(waiting), is_runner)
    }

    /// Answers group after group until no call waits. `ask` gives an answer for each question.
    pub(super) async fn run<Asked: Future<Output = Result<Vec<A>, Failure>>>(
        &self,
        key: K,
        ask: impl Fn(Vec<Q>) -> Asked,
    ) {
        let mut runner = Runner { gathering: self, key, has_ended: false };
        // Calls about to ask join the first group.
        tokio::task::yield_now().await;
        while let Some(group) = self.next_group(&mut runner) {
            let (questions, senders): (Vec<_>, Vec<_>) =
                group.into_iter().map(|call| (call.question, call.answer)).unzip();
            match ask(questions).await {
                Ok(answers) => senders.into_iter().zip(answers).for_each(|(sender, answer)| {
                    tell(sender, Ok(answer));
                }),
                Err(failure) => {
                    let waiting = match failure.kind {
                        Kind::Unavailable => self.all_waiting(key),
                        _ => Vec::new(),
                    };
                    let others = waiting.into_iter().map(|call| call.answer);
                    for sender in senders.into_iter().chain(others) {
                        tell(sender, Err(failure.clone()));
                    }
                }
            }
        }
    }

    fn all_waiting(&self, key: K) -> Vec<Call<Q, A>> {
        let mut queues = self.queues();
        queues.get_mut(&key).map(|queue| std::mem::take(&mut queue.waiting)).unwrap_or_default()
    }

    /// Takes the waiting calls; none when the runner is no longer needed.
    fn next_group(&self, runner: &mut Runner<'_, K, Q, A>) -> Option<Vec<Call<Q, A>>> {
        let mut queues = self.queues();
        let queue = queues.get_mut(&runner.key)?;
        queue.waiting.retain(|call| !call.answer.is_closed());
        if queue.waiting.is_empty() {
            // In the same step: the next call becomes a runner.
            runner.has_ended = true;
            queue.under_way -= 1;
            if queue.under_way == 0 {
                queues.remove(&runner.key);
            }
            return None;
        }
        let count = queue.waiting.len().min(CALLS_MAX);
        Some(queue.waiting.drain(..count).collect())
    }
}

/// Answers a queue, until no call waits or the runner fails.
struct Runner<'a, K: Copy + Eq + Hash, Q, A> {
    gathering: &'a Gathering<K, Q, A>,
    key: K,
    has_ended: bool,
}

impl<K: Copy + Eq + Hash, Q, A> Drop for Runner<'_, K, Q, A> {
    /// After a failure, the waiting calls are left to other runners; without other runners the calls fail.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut queues = self.gathering.queues();
        let Some(queue) = queues.get_mut(&self.key) else { return };
        queue.under_way = queue.under_way.saturating_sub(1);
        if queue.under_way == 0 {
            queues.remove(&self.key);
        }
    }
}

fn tell<A>(sender: oneshot::Sender<Result<A, Failure>>, answer: Result<A, Failure>) {
    // The caller of a cancelled call is gone.
    let _ = sender.send(answer);
}

#[derive(Debug)]
pub(super) struct Waiting<A>(oneshot::Receiver<Result<A, Failure>>);

impl<A> Waiting<A> {
    pub(super) async fn answer(self) -> Result<A, Failure> {
        let why = "whoever asked for it broke off: the server is stopping, or has met a fault";
        self.0.await.unwrap_or_else(|_| Err(Failure::because(Kind::Unavailable, why)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;

    /// Asks for the double of a number; a zero makes whoever asks for it panic.
    async fn double(gathering: &Arc<Gathering<(), u32, u32>>, number: u32) -> Result<u32, Failure> {
        let (waiting, is_runner) = gathering.join((), number);
        if is_runner {
            let gathering = Arc::clone(gathering);
            dl_runtime::spawn(async move {
                let ask = async |numbers: Vec<u32>| {
                    tokio::task::yield_now().await;
                    assert!(numbers.iter().all(|number| *number > 0), "a fault");
                    Ok(numbers.into_iter().map(|number| number * 2).collect())
                };
                gathering.run((), ask).await;
            });
        }
        waiting.answer().await
    }

    #[tokio::test]
    async fn a_panic_fails_its_waiters_and_the_next_call_is_answered() {
        let gathering = Arc::new(Gathering::default());
        for _ in 0..3 {
            let calls = (0..CALLS_MAX as u32 * 3).map(|number| double(&gathering, number % 300));
            let calls = tokio::time::timeout(Duration::from_secs(10), join_all(calls)).await;
            let calls = calls.expect("nobody waits for ever");
            assert!(calls.iter().any(Result::is_err), "nobody was told");
            let answer = tokio::time::timeout(Duration::from_secs(10), double(&gathering, 4)).await;
            assert_eq!(answer.expect("nobody waits for ever").ok(), Some(8));
        }
        assert!(gathering.queues().is_empty());
    }
}
