//! Copies with other bytes than their objects: readers find the damage, and read the objects instead.

use super::*;

impl Rig {
    /// Puts other bytes where the copy of an object lies.
    async fn replace(&self, key: &Key, copy: Vec<u8>) {
        let name = name_of(key).unwrap();
        self.fast.delete(&name).await.unwrap();
        self.fast.create(&name, copy.into()).await.unwrap();
    }

    /// A copy of an object of ones.
    async fn copied(&self) -> Key {
        let [key] = keys(["a"]);
        self.create(std::slice::from_ref(&key)).await;
        self.read(&key).await.unwrap();
        key
    }
}

#[tokio::test]
async fn an_invalidated_copy_is_read_no_more_and_made_anew() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    rig.replace(&key, vec![7; 100]).await;
    assert_eq!(rig.read(&key).await.unwrap(), vec![7; 10], "the reader finds the damage");
    rig.tier.invalidate(&key);
    assert_eq!(rig.read(&key).await.unwrap(), vec![1; 10]);
    assert_eq!((rig.tier.counts().invalidated, rig.tier.counts().failures), (1, 0));
    let before = rig.tier.counts();
    rig.read(&key).await.unwrap();
    assert_eq!(rig.read(&key).await.unwrap(), vec![1; 10]);
    assert!(rig.tier.counts().hits > before.hits, "there is a copy again");
    let [other] = keys(["b"]);
    rig.tier.invalidate(&other);
    assert_eq!(rig.tier.counts().invalidated, 1);
}

#[tokio::test]
async fn a_copy_that_is_cut_off_is_replaced_also_after_a_restart() {
    let mut rig = rig(1000).await;
    let key = rig.copied().await;
    for (restarts, length) in [(false, 5), (false, 15), (true, 5), (true, 15)] {
        rig.replace(&key, vec![1; length]).await;
        if restarts {
            rig = restarted(rig, 1000).await;
        }
        let before = rig.tier.counts();
        for _ in 0..3 {
            assert_eq!(rig.read(&key).await.unwrap(), vec![1; 10]);
        }
        let counts = rig.tier.counts();
        assert_eq!(counts.invalidated, before.invalidated + 1, "{restarts} {length}");
        assert_eq!((counts.failures, counts.used), (0, 100));
    }
    // A listing tells the size of the object.
    rig.replace(&key, vec![1; 50]).await;
    let rig = restarted(rig, 1000).await;
    let all = Prefix::ROOT;
    assert_eq!(rig.tier.copy_all(&all).await.unwrap().left_out, 1);
    rig.tier.quiet().await;
    assert_eq!(rig.tier.copy_all(&all).await.unwrap(), Kept { bytes: 100, left_out: 0 });
}
