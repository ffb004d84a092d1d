//! Long work for a client that takes nothing.

use std::time::Duration;

use dl_proto::{PurgeRequest, RecoverRequest};

use super::*;
use crate::auth::Caller;
use crate::testing::rig;

#[tokio::test]
async fn a_purge_and_a_recovery_wait_once_for_a_client_that_takes_nothing_and_then_say_so() {
    let rig = rig().await;
    for number in 0..10 {
        let id = rig.create(&format!("ds-{number}")).await;
        rig.store_chunk(id, number).await;
    }
    let patience = rig.parts.limits.patience.as_secs() as u32;
    // The channels are full from the first message on, and nobody reads them.
    let (progress, _unread) = mpsc::channel(1);
    let (turns, left) = (
        crate::housekeeping::turns::Turns::new(),
        crate::datasets::leftovers::Leftovers::default(),
    );
    let request =
        PurgeRequest { dataset: None, grace: Duration::ZERO, dry_run: false, force: false };
    let purge = crate::housekeeping::purge::purge(
        &rig.parts,
        &turns,
        &left,
        request,
        &Caller::Everybody,
        &progress,
    );
    let (ended, seconds) = rig.run(purge).await;
    assert_eq!(ended.unwrap_err().kind, Kind::TimedOut);
    assert!((patience..2 * patience).contains(&seconds), "{seconds} s");
    // It was done all the same.
    for record in rig.parts.meta.records().await.unwrap() {
        let outline = rig.parts.meta.outline(record.id).await.unwrap().unwrap();
        assert_eq!(outline.objects, 1, "{}", record.name);
    }

    let (progress, _unread) = mpsc::channel(1);
    let request = RecoverRequest { dataset: None, since: None };
    let recovery =
        crate::recovery::recover::recover(&rig.parts, request, &Caller::Everybody, &progress);
    let (ended, seconds) = rig.run(recovery).await;
    assert_eq!(ended.unwrap_err().kind, Kind::TimedOut);
    assert!((patience..2 * patience).contains(&seconds), "{seconds} s");
}

#[tokio::test]
async fn who_takes_something_again_is_told_the_rest_and_who_is_gone_is_not_waited_for() {
    let rig = rig().await;
    let (sender, mut taken) = mpsc::channel(1);
    let listener = Listener::new(&rig.parts, &sender);
    assert!(listener.tell(1).await);
    let (is_told, _) = rig.run(listener.tell(2)).await;
    assert!(!is_told && listener.end().is_err());
    assert!(matches!(taken.recv().await, Some(Reply::More(1))));
    assert!(listener.tell(3).await && listener.end().is_ok());
    assert!(matches!(taken.recv().await, Some(Reply::More(3))));
    drop(taken);
    assert!(listener.tell(4).await && listener.tell(5).await && listener.end().is_ok());
}

#[tokio::test]
async fn what_was_found_comes_in_pieces_and_what_was_not_taken_stays() {
    let rig = rig().await;
    let (sender, mut taken) = mpsc::channel(2);
    let listener = Listener::new(&rig.parts, &sender);
    let mut found: Vec<String> = (0..2_500).map(|number| number.to_string()).collect();
    let message = |found: Vec<String>, is_last: bool| (found.len(), is_last);
    rig.run(listener.tell_found(&mut found, message)).await;
    assert!(found.len() == 500 && listener.end().is_err());
    for _ in 0..2 {
        assert!(matches!(taken.recv().await, Some(Reply::More((1_000, false)))));
    }
    listener.tell_found(&mut found, message).await;
    assert!(found.is_empty() && listener.end().is_ok());
    assert!(matches!(taken.recv().await, Some(Reply::More((500, true)))));
}
