//! The chunk store: where immutable objects live.
//!
//! Must hold: every store and every layer keeps the contract of [`Store`], and nothing above it
//! can tell a local directory from a remote bucket. Keys are opaque here.
#![forbid(unsafe_code)]

mod cloud;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod count;
mod deferred;
mod endpoint;
mod error;
mod fault;
mod http;
mod key;
mod local;
mod merge;
mod object;
mod open;
mod profile;
mod range;
mod served;
mod throttle;
mod tier;

use std::fmt::{Debug, Display};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;

pub use count::{CountStore, Counters, Counts};
pub use deferred::DeferredStore;
pub use error::{Error, Kind};
pub use fault::FaultStore;
pub use key::{InvalidKey, Key, Prefix};
#[cfg(any(test, feature = "conformance"))]
pub use local::VolatileDisk;
pub use open::{check, memory, open, open_with};
pub use range::{ByteRange, InvalidRange, ObjectRange};
pub use served::{Served, Servers, serve};
pub use throttle::{Throttle, ThrottleStore};
pub use tier::{COPIES, Group, Kept, TierCounts, TierStore};

/// Objects that are created once, read in ranges, and deleted.
///
/// # Contract
///
/// - `create` is all or nothing and durable when it returns. Creating a key again fails with
///   [`Kind::Exists`] and changes nothing; the object it met is then durable, whoever made it.
///   Of several at once one wins, and the object is the winner's, whole.
/// - `read` gives one result for each range, in order. An exact range gives exactly its bytes,
///   or an error: [`Kind::Missing`] without the object, [`Kind::Corrupt`] when the object ends
///   before the range does. `UpTo` gives the first bytes, or the whole of a shorter object.
///   One failed range fails no other.
/// - `delete` is durable when it returns. Deleting a missing key succeeds. A read or list that
///   begins afterwards does not find the object; the key may be created anew.
/// - `list` gives each object strictly below the prefix once, with its size, in any order; it
///   may or may not give objects created or deleted while it runs. After an error it ends.
/// - `settle` makes objects durable that a read or list has found, whose makers may have died
///   before they were: those of `keys` that are there when it begins are durable when it returns.
///   A key without an object is passed over.
/// - `prune` changes no object. What a store keeps of a prefix without objects, as empty folders, goes.
/// - `doubt` changes no object: what a store keeps of one to answer faster, it checks before it gives
///   it out again.
/// - A dropped future leaves the object absent or whole, never a part of it.
/// - An operation that fails with a retryable error may have taken effect.
/// - No key may extend another key by whole segments (`a` and `a/b`); which of the two calls
///   then fails is up to the store.
///
/// `conformance::run` checks these sentences for every store and every layer; what a power cut
/// leaves is checked for the local store, the only one that answers for it itself.
#[async_trait]
pub trait Store: Debug + Display + Send + Sync + 'static {
    /// Stores `body` under `key`.
    ///
    /// # Errors
    /// [`Kind::Exists`] when the key is taken; otherwise as the store fails.
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error>;

    /// Reads ranges of any number of objects, each on its own.
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>>;

    /// Removes the object under `key`, if there is one.
    ///
    /// # Errors
    /// As the store fails; a missing object is none.
    async fn delete(&self, key: &Key) -> Result<(), Error>;

    /// Makes sure of objects that were found; whoever names them elsewhere does that first.
    ///
    /// # Errors
    /// As the store fails; a missing object is none.
    async fn settle(&self, keys: &[Key]) -> Result<(), Error>;

    /// Takes away what is left of a prefix without objects; nothing is created below it any more.
    ///
    /// # Errors
    /// As the store fails; objects below it are none.
    async fn prune(&self, prefix: &Prefix) -> Result<(), Error>;

    /// Bytes of this object, as a read gave them, may not be what was stored.
    fn doubt(&self, key: &Key);

    /// From now on this object itself is read, and no copy of it: one may have been made of other bytes
    /// than those that are stored now. Another copy may be made of what is read then.
    fn forsake(&self, key: &Key);

    /// Files of this object are read now, and others of its dataset probably soon.
    fn foresee(&self, key: &Key);

    /// The objects below `prefix`, unordered.
    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>>;
}

/// What a listing says of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectInfo {
    /// Its name.
    pub key: Key,
    /// Its length in bytes.
    pub size: u64,
}

/// What users of a store want beside the few calls that its implementors owe.
#[async_trait]
pub trait StoreExt: Store {
    /// Reads one range of one object.
    ///
    /// # Errors
    /// As [`Store::read`].
    async fn read_one(&self, key: &Key, range: ByteRange) -> Result<Bytes, Error> {
        let wanted = ObjectRange { key: key.clone(), range };
        let results = self.read(std::slice::from_ref(&wanted)).await;
        results.into_iter().next().unwrap_or_else(|| Err(Error::new(Kind::Corrupt, "read", key)))
    }

    /// Reads a whole object, of any size.
    ///
    /// # Errors
    /// As [`Store::read`].
    async fn read_all(&self, key: &Key) -> Result<Bytes, Error> {
        self.read_one(key, ByteRange::WHOLE).await
    }

    /// All objects below `prefix`, by key. Holds them all in memory.
    ///
    /// # Errors
    /// The first error of the listing.
    async fn list_sorted(&self, prefix: &Prefix) -> Result<Vec<ObjectInfo>, Error> {
        let mut objects: Vec<ObjectInfo> = self.list(prefix).try_collect().await?;
        objects.sort_unstable();
        Ok(objects)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
