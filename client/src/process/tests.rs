//! Values and generations across real forks.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Whether `check` holds in a forked child, which ends at once.
pub(crate) fn holds_in_a_child(check: impl FnOnce() -> bool) -> bool {
    #[expect(unsafe_code, reason = "there is no safe way to fork")]
    // SAFETY: the child allocates, counts and forks, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(!check());
        #[expect(unsafe_code, reason = "the test runner's own end must not run in the child")]
        // SAFETY: the call ends the process.
        unsafe {
            libc::_exit(code)
        }
    }
    let mut status = -1;
    #[expect(unsafe_code, reason = "there is no safe way to wait for a forked child")]
    // SAFETY: `status` is a place to write to.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(ended, child);
    status == 0
}

#[test]
fn each_process_of_a_line_of_forks_has_its_own_value() {
    fn make(values: &PerProcess<u32>, value: u32) -> u32 {
        *values.get_or_make(|| Ok::<_, Infallible>(value)).unwrap()
    }
    let values = PerProcess::new();
    assert_eq!((make(&values, 1), make(&values, 2)), (1, 1));
    assert!(holds_in_a_child(|| {
        let child = values.get().is_none() && make(&values, 3) == 3 && make(&values, 4) == 3;
        child
            && holds_in_a_child(|| make(&values, 5) == 5 && values.get() == Some(&5))
            && values.get() == Some(&3)
    }));
    assert_eq!(values.get(), Some(&1));
}

#[test]
fn generations_differ_also_after_a_child_without_a_value() {
    let parent = generation::current();
    assert_eq!(generation::current(), parent);
    // The child has not asked, so the page is empty at the fork of the grandchild.
    assert!(holds_in_a_child(|| holds_in_a_child(|| generation::current() > parent)));
    assert!(holds_in_a_child(|| {
        let child = generation::current();
        child > parent && holds_in_a_child(|| generation::current() > child)
    }));
    assert_eq!(generation::current(), parent);
}

#[test]
fn concurrent_first_calls_in_a_child_get_one_generation() {
    let parent = generation::current();
    for _ in 0..20 {
        assert!(holds_in_a_child(|| {
            let barrier = std::sync::Barrier::new(4);
            let ask = || {
                barrier.wait();
                generation::current()
            };
            let all: Vec<u64> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            all.iter().all(|one| *one == all[0] && *one > parent)
        }));
    }
}

#[test]
fn a_failure_is_not_remembered() {
    let values = PerProcess::new();
    assert_eq!(values.get_or_make(|| Err("no")), Err("no"));
    assert_eq!(values.get_or_make(|| Ok::<_, Infallible>(2)), Ok(&2));
}

#[test]
fn only_the_process_that_made_a_value_drops_it() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }
    let make = |values: &PerProcess<Counted>| {
        assert!(values.get_or_make(|| Ok::<_, Infallible>(Counted)).is_ok());
    };
    let values = PerProcess::new();
    make(&values);
    let mut values = Some(values);
    assert!(holds_in_a_child(|| {
        values.as_ref().into_iter().for_each(make);
        drop(values.take());
        DROPPED.load(Ordering::SeqCst) == 1
    }));
    drop(values);
    assert_eq!(DROPPED.load(Ordering::SeqCst), 1);
}
