//! What a fork does to a worker: a child keeps its views by a connection of its own, and leaves the
//! connection of its parent to the parent.
//!
//! Must hold: the pins of a process end with the process, whichever children it has; a view that a child
//! inherits stays valid after its parent has dropped it, or has ended. No handler panics or waits for
//! longer than [`PATIENCE`] for each agent.

use std::cell::RefCell;
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use super::attach::{Attached, Heir};
use crate::process::PerProcess;

/// How long a fork waits for an agent.
const PATIENCE: Duration = Duration::from_millis(100);

/// What this process is attached to.
static ATTACHED: PerProcess<Mutex<Vec<Weak<Attached>>>> = PerProcess::new();

thread_local! {
    /// Between the handler before a fork and the one behind it, which run in one thread.
    static PREPARED: RefCell<Vec<Prepared>> = const { RefCell::new(Vec::new()) };
}

/// An attachment at a fork.
struct Prepared {
    attached: Arc<Attached>,
    /// Of the process that forks; the child closes its copy.
    socket: Option<RawFd>,
    /// For the child, if there are views.
    heir: Option<Heir>,
}

/// From now on forks of this process respect an attachment.
pub(super) fn watch(attached: &Arc<Attached>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        #[expect(unsafe_code, reason = "there is no safe way to hear of a fork")]
        // SAFETY: the handlers are functions of this program, which never goes away, and don't unwind.
        // Without memory for them a child has only what its parent keeps.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let mut all = all();
    all.retain(|one| one.strong_count() > 0);
    all.push(Arc::downgrade(attached));
}

fn all() -> MutexGuard<'static, Vec<Weak<Attached>>> {
    let Ok(all) = ATTACHED.get_or_make(|| Ok::<_, Infallible>(Mutex::default()));
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before() {
    let attached: Vec<_> = all().iter().filter_map(Weak::upgrade).collect();
    let prepare = |attached: Arc<Attached>| {
        let heir = attached.has_views().then(|| attached.make_heir(PATIENCE));
        let socket = attached.descriptor().filter(|_| !matches!(heir, Some(Heir::Shared)));
        Prepared { attached, socket, heir }
    };
    let prepared = attached.into_iter().map(prepare).collect();
    let _ = PREPARED.try_with(|list| list.replace(prepared));
}

extern "C" fn in_parent() {
    // The parent's copies of the child's connections are closed here.
    drop(PREPARED.try_with(RefCell::take));
}

extern "C" fn in_child() {
    for Prepared { attached, socket, heir } in PREPARED.try_with(RefCell::take).unwrap_or_default()
    {
        if let Some(socket) = socket {
            #[expect(
                unsafe_code,
                reason = "its owner belongs to the parent and is not dropped here"
            )]
            // SAFETY: it is the child's copy of a socket whose owner no process but the parent uses or
            // drops (see `process`); nothing was opened since the fork.
            unsafe {
                rustix::io::close(socket);
            }
        }
        if let Some(heir) = heir {
            attached.inherit(heir);
            all().push(Arc::downgrade(&attached));
        }
    }
}
