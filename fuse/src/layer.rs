//! The connection with the kernel and the tree, without a dataset's bytes: the lower bound of the
//! mount's own cost.
//!
//! Must hold: a layer answers names as a server of a mount does, by the same code. Bytes of files
//! come from its user, at once.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use libdiesel::Snapshot;

use crate::abi::Request;
use crate::channel::{Channel, REQUEST_BYTES};
use crate::holder::greet;
use crate::mounting::{Place, mount_at, read_ahead};
use crate::server::respond::{Response, respond};
use crate::tree::{Owner, Tree};

/// A mount in this process, without a holder.
#[derive(Debug)]
pub struct Layer {
    tree: Tree,
    channels: Vec<Channel>,
}

impl Layer {
    /// Mounts the names of a snapshot. Readers wait until [`serve`](Self::serve).
    ///
    /// # Errors
    /// Errors of the kernel, and of the place.
    pub fn mount(
        place: &Place,
        snapshot: Arc<Snapshot>,
        owner: Owner,
        threads: NonZeroUsize,
    ) -> io::Result<Self> {
        let first = place.mount()?;
        greet(&first)?;
        if let Some(mounted) = mount_at(&place.dir)? {
            read_ahead(&mounted.device);
        }
        let clones = (1..threads.get()).map(|_| first.try_clone());
        let mut channels = clones.collect::<io::Result<Vec<_>>>()?;
        channels.push(first);
        let top = 0;
        Ok(Self { tree: Tree::new(snapshot, top, owner, 0), channels })
    }

    /// Answers all requests until the end of the mount. `bytes` returns a range of a file, given by its
    /// number; a short answer ends the file there.
    ///
    /// # Errors
    /// Errors of the connection with the kernel.
    pub fn serve<'a>(self, bytes: impl Fn(u32, Range<u64>) -> &'a [u8] + Sync) -> io::Result<()> {
        let Self { tree, channels } = &self;
        let answer = |channel: &Channel| answer_all(channel, tree, &bytes);
        thread::scope(|scope| {
            let threads: Vec<_> =
                channels.iter().map(|channel| scope.spawn(move || answer(channel))).collect();
            let mut ended = threads.into_iter().map(|thread| thread.join());
            let panicked = |_| Err(io::Error::other("a thread of the layer panicked"));
            ended.try_for_each(|ended| ended.unwrap_or_else(panicked))
        })
    }
}

fn answer_all<'a>(
    channel: &Channel,
    tree: &Tree,
    bytes: &impl Fn(u32, Range<u64>) -> &'a [u8],
) -> io::Result<()> {
    let (mut buffer, mut out) = (vec![0; REQUEST_BYTES], Vec::new());
    while let Some(length) = channel.next(&mut buffer)? {
        let Some(request) = Request::of(buffer.get(..length).unwrap_or_default()) else {
            return Err(io::Error::other("a request without a header"));
        };
        let unique = request.header.unique;
        match respond(tree, &request, &mut out) {
            Response::Bytes => channel.answer(unique, &[&out])?,
            Response::Refused(why) => channel.refuse(unique, why)?,
            Response::Read { file, offset, size } => {
                let end = offset.saturating_add(size.into());
                channel.answer(unique, &[bytes(file, offset..end)])?;
            }
            Response::Nothing => {}
            Response::End => return Ok(()),
        }
    }
    Ok(())
}
