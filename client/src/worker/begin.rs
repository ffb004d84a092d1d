//! The order of a worker in the agent's messages.
//!
//! Must hold: the agent computes the same order as the worker.

use dl_node::{Begin, RUNS_MAX};

use crate::order::{Order, OrderSettings, Partition, Tail};

/// The rank of an order at a position; none for an order too long for a message.
pub(super) fn message_of(order: &Order, rank: u32, position: u64) -> Option<Begin> {
    let OrderSettings { seed, epoch, group, world, partition, tail } = *order.settings();
    if order.is_resumed() {
        return None;
    }
    let nodes = match partition {
        Partition::Global => None,
        Partition::Local { nodes } => Some(nodes),
    };
    let selection = match order.selection().runs(RUNS_MAX) {
        Ok(runs) => runs,
        Err(_) => return None,
    };
    let is_padded = tail == Tail::Pad;
    Some(Begin { seed, epoch, group, world, nodes, is_padded, rank, position, selection })
}

impl From<&Begin> for OrderSettings {
    fn from(begin: &Begin) -> Self {
        let Begin { seed, epoch, group, world, nodes, is_padded, .. } = *begin;
        let partition = nodes.map_or(Partition::Global, |nodes| Partition::Local { nodes });
        let tail = if is_padded { Tail::Pad } else { Tail::Drop };
        Self { seed, epoch, group, world, partition, tail }
    }
}
