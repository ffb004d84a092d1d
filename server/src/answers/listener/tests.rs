//! Long work for a client that takes nothing.

use super::*;
use crate::testing::rig;

#[tokio::test]
async fn a_returning_reader_gets_the_rest_and_a_gone_one_is_dropped() {
    let rig = rig().await;
    let (sender, mut taken) = mpsc::channel(1);
    let listener = Listener::new(&rig.context, &sender);
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
    let listener = Listener::new(&rig.context, &sender);
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
