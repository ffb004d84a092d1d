//! The chunk store: where immutable objects live.
//!
//! Must hold: every store and every layer keeps the contract of [`Store`], so that callers can't tell a
//! local directory from a remote bucket. Keys are opaque here.
#![forbid(unsafe_code)]

mod cloud;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod count;
mod deferred;
mod endpoint;
mod fault;
mod http;
mod key;
mod local;
mod merge;
mod object;
mod open;
mod profile;
mod proxy;
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
pub use dl_runtime::storage::{Error, Kind};
pub use fault::FaultStore;
pub use key::{InvalidKey, Key, Prefix};
#[cfg(any(test, feature = "conformance"))]
pub use local::VolatileDisk;
pub use open::{check, memory, open, open_with};
pub use range::{ByteRange, InvalidRange, ObjectRange};
pub use served::{Served, Servers, serve};
pub use throttle::{Throttle, ThrottleStore};
pub use tier::{COPIES, CopyCounts, Group, Kept, TierStore};

/// Objects that are created once, read in ranges, and deleted.
///
/// # Contract
///
/// - `create` is all or nothing and durable when it returns. Creating a key again fails with
///   [`Kind::Exists`] and changes nothing; the existing object is then durable, also when another
///   process created it. Of several creates at once one wins, and the object has all of its bytes.
/// - `read` gives one result for each range, in order. An exact range gives exactly its bytes,
///   or an error: [`Kind::Missing`] without the object, [`Kind::Corrupt`] when the object ends
///   before the range does. `UpTo` gives the first bytes, or the whole of a shorter object.
///   A failed range fails no other.
/// - `delete` is durable when it returns. Deleting a missing key succeeds. A read or list that
///   begins afterwards does not find the object; the key may be created anew.
/// - `list` gives each object strictly below the prefix once, with its size, in any order. Objects
///   created or deleted meanwhile may or may not be listed. After an error the listing ends.
/// - `make_durable` makes objects durable that a read or list has found: their creators may have died before
///   that. Objects of `keys` that exist when the call begins are durable when it returns. A key without
///   an object is passed over.
/// - `prune` changes no object. It removes leftovers of a prefix without objects, such as empty folders.
/// - `invalidate` and `will_read` change no object.
/// - A dropped future leaves the object absent or whole, never a part of it.
/// - An operation that fails with a retryable error may have taken effect.
/// - No key may extend another key by whole segments (`a` and `a/b`); which of the two calls
///   then fails is up to the store.
///
/// `conformance::run` checks the contract for every store and every layer. Durability after a power cut
/// is checked for the local store: the other stores leave it to their servers.
#[async_trait]
pub trait Store: Debug + Display + Send + Sync + 'static {
    /// Stores `body` under `key`.
    ///
    /// # Errors
    /// [`Kind::Exists`] when the key is taken; otherwise the failure of the store.
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error>;

    /// Reads ranges of any number of objects, each on its own.
    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>>;

    /// Removes the object under `key`, if there is an object.
    ///
    /// # Errors
    /// The failure of the store. A missing object is no error.
    async fn delete(&self, key: &Key) -> Result<(), Error>;

    /// Makes objects durable that were found. Required before metadata names them.
    ///
    /// # Errors
    /// The failure of the store. A missing object is no error.
    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error>;

    /// Removes leftovers of a prefix below which no objects will be created any more.
    ///
    /// # Errors
    /// The failure of the store. Objects below the prefix are no error.
    async fn prune(&self, prefix: &Prefix) -> Result<(), Error>;

    /// Drops the copy of an object that a store keeps to answer faster: the next read reads the object
    /// itself, and may make another copy.
    fn invalidate(&self, key: &Key);

    /// Tells a store that keeps copies: files of this object are read now, and other objects of its
    /// dataset probably soon.
    fn will_read(&self, key: &Key);

    /// The objects below `prefix`, unordered.
    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>>;
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectInfo {
    /// Its name.
    pub key: Key,
    /// Its length in bytes.
    pub size: u64,
}

/// Calls for the users of a store, made of the few calls of its implementors.
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
