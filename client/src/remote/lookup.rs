//! Lookup of a dataset by name.
//!
//! Must hold: calls keep no state, because a name may come to mean another dataset.

use dl_format::DatasetName;
use dl_proto::{Dataset as DatasetInfo, pb};

use crate::error::Error;
use crate::remote::connections::{Connection, Connections, Try};
use crate::remote::failure::Failure;

/// The address of a dataset, as users write addresses.
pub(crate) fn dataset_address(name: &DatasetName) -> String {
    format!("dl://{name}")
}

/// A dataset, or all datasets, as the object of an error.
pub(crate) fn address_of(name: Option<&DatasetName>) -> String {
    name.map_or_else(|| "all datasets".to_owned(), dataset_address)
}

/// The servers' description of a dataset; with `counts` the servers may have to look at every file.
pub(crate) async fn get_dataset(
    connections: &Connections,
    name: &DatasetName,
    counts: bool,
) -> Result<DatasetInfo, Error> {
    let message = pb::GetDatasetRequest { name: name.as_str().to_owned(), without_counts: !counts };
    let attempt = |mut server: Connection, this: Try| {
        let request = this.request(message.clone());
        async move { info(this.answer(server.get_dataset(request)).await?) }
    };
    connections.call("open", || dataset_address(name), connections.usual(), attempt).await
}

/// The description of a dataset in an answer.
pub(crate) fn info(wire: pb::Dataset) -> Result<DatasetInfo, Failure> {
    Ok(DatasetInfo::try_from(wire)?)
}
