//! Finding a dataset by its name, for all who begin with one.
//!
//! Must hold: nothing is remembered between two calls; a name may come to stand for another one.

use dl_format::DatasetName;
use dl_proto::{Dataset as DatasetInfo, pb};

use crate::error::Error;
use crate::remote::connections::{Connection, Connections, Try};
use crate::remote::failure::Failure;

/// A dataset as users write it.
pub(crate) fn dataset_address(name: &DatasetName) -> String {
    format!("dl://{name}")
}

/// What the servers say of a dataset; with `counts`, for which they may look at every file of it.
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

/// A dataset as an answer describes it.
pub(crate) fn info(wire: pb::Dataset) -> Result<DatasetInfo, Failure> {
    Ok(DatasetInfo::try_from(wire)?)
}
