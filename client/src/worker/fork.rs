//! Forks of a worker process: a child keeps its views through its own connection, and leaves the
//! parent's connection to the parent.
//!
//! Must hold: the pins of a process end with the process, whatever its children do. An inherited
//! view stays valid after its parent has dropped the view, or has ended. No handler panics, or
//! waits longer than [`TIMEOUT`] for an agent.

use std::cell::RefCell;
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, Once, Weak};
use std::time::Duration;

use dl_runtime::locked;

use super::attach::{Attached, ChildPins};
use crate::process::PerProcess;

/// Time for an agent during a fork.
const TIMEOUT: Duration = Duration::from_millis(100);

static ATTACHED: PerProcess<Mutex<Vec<Weak<Attached>>>> = PerProcess::new();

thread_local! {
    /// The state between the handlers before and after a fork, which run in the same thread.
    static PREPARED: RefCell<Vec<Prepared>> = const { RefCell::new(Vec::new()) };
}

struct Prepared {
    attached: Arc<Attached>,
    /// The sockets of the forking process; the child closes its copies.
    sockets: Vec<RawFd>,
    /// The pins for the child, if there are views.
    child_pins: Option<ChildPins>,
}

/// Registers an attachment for future forks.
pub(super) fn watch(attached: &Arc<Attached>) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        #[expect(unsafe_code, reason = "there is no safe way to register fork handlers")]
        // SAFETY: the handlers are functions of the program, which stays loaded, and don't unwind. If
        // the registration fails, a child has only the views that its parent keeps.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    let mut all = all();
    all.retain(|attached| attached.strong_count() > 0);
    all.push(Arc::downgrade(attached));
}

fn all() -> MutexGuard<'static, Vec<Weak<Attached>>> {
    let Ok(all) = ATTACHED.get_or_make(|| Ok::<_, Infallible>(Mutex::default()));
    locked(all)
}

extern "C" fn before() {
    let attached: Vec<_> = all().iter().filter_map(Weak::upgrade).collect();
    let prepare = |attached: Arc<Attached>| {
        let child_pins = attached.has_views().then(|| attached.pin_for_child(TIMEOUT));
        let sockets = match child_pins {
            Some(ChildPins::Shared) => attached.beside_descriptors().collect(),
            _ => attached.descriptors(),
        };
        Prepared { attached, sockets, child_pins }
    };
    let prepared = attached.into_iter().map(prepare).collect();
    let _ = PREPARED.try_with(|list| list.replace(prepared));
}

extern "C" fn in_parent() {
    // The drop closes the parent's copies of the child's connections.
    drop(PREPARED.try_with(RefCell::take));
}

extern "C" fn in_child() {
    for Prepared { attached, sockets, child_pins } in
        PREPARED.try_with(RefCell::take).unwrap_or_default()
    {
        for socket in sockets {
            #[expect(
                unsafe_code,
                reason = "the owner belongs to the parent and is not dropped here"
            )]
            // SAFETY: the socket is the child's copy; only the parent uses or drops its owner (see
            // `process`), and no descriptor was opened since the fork.
            unsafe {
                rustix::io::close(socket);
            }
        }
        if let Some(child_pins) = child_pins {
            attached.inherit(child_pins);
            all().push(Arc::downgrade(&attached));
        }
    }
}
