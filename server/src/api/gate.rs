//! Checks whether a caller may access the dataset of a request.
//!
//! Must hold: for a caller without a role to read, a dataset looks missing in every request by name or id:
//! the same words after the same work.

use dl_format::{DatasetId, DatasetName};
use dl_meta::{DatasetRecord, DatasetState};
use dl_proto::{Kind, Role};
use tonic::Request;

use crate::api::admission::Admitted;
use crate::auth::Rule;
use crate::datasets::catalog;
use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// The record of a dataset with complete metadata, for a permitted caller; mostly a request's only look-up of
/// the record.
pub(crate) async fn by_id(
    context: &ServerContext,
    admitted: &Admitted,
    id: DatasetId,
) -> Result<DatasetRecord, Error> {
    catalog::whole(context, found(context, admitted, id).await?).await
}

/// Checks reads of objects by place. Such reads need no index and work while the metadata is rebuilt.
pub(crate) async fn by_place(
    context: &ServerContext,
    admitted: &Admitted,
    id: DatasetId,
) -> Result<(), Error> {
    let record = found(context, admitted, id).await?;
    match record.state {
        DatasetState::Recovering => Ok(()),
        DatasetState::Live | DatasetState::Ending => catalog::trusted(record).map(|_| ()),
    }
}

async fn found(
    context: &ServerContext,
    admitted: &Admitted,
    id: DatasetId,
) -> Result<DatasetRecord, Error> {
    let caller = &admitted.caller;
    let record = context.meta.record(id).await.doing("find dataset", id)?;
    let Some(record) = record.filter(|record| caller.may(Role::Read, &record.name)) else {
        return Err(catalog::not_known(context, id, caller).await);
    };
    if !caller.may(admitted.role(), &record.name) {
        return Err(admitted.denied(&record.name));
    }
    Ok(record)
}

impl Admitted {
    /// The caller of a request, and the rule of its method.
    pub(crate) fn of<M>(request: &Request<M>) -> Result<Self, Error> {
        let admitted = request.extensions().get::<Self>();
        admitted.cloned().ok_or_else(|| {
            Error::new(Kind::Internal, "answer", "the request", "it was not admitted")
        })
    }

    /// Checks a request by its dataset's name alone. `action` as in "delete dataset".
    pub(crate) fn named(&self, action: &'static str, name: &DatasetName) -> Result<(), Error> {
        if self.caller.may(self.role(), name) {
            Ok(())
        } else if self.caller.may(Role::Read, name) {
            Err(self.denied(name))
        } else {
            let why = "there is none of that name";
            Err(Error::new(Kind::NotFound, action, name, why))
        }
    }

    /// Checks a request to create a dataset.
    pub(crate) fn made(&self, name: &DatasetName) -> Result<(), Error> {
        if self.caller.may(self.role(), name) { Ok(()) } else { Err(self.denied(name)) }
    }

    /// Checks a request about all datasets.
    pub(crate) fn all(&self) -> Result<(), Error> {
        let role = self.role();
        if self.caller.may_all(role) {
            return Ok(());
        }
        let why = format!("{} may not: that takes the role {role} on all datasets", self.caller);
        Err(Error::new(Kind::Denied, "open", "all datasets", why))
    }

    fn role(&self) -> Role {
        match self.rule {
            Rule::On(role) => role,
            // Methods about a dataset have other rules; under a wrong rule, few callers get an answer.
            Rule::Key => Role::Admin,
        }
    }

    fn denied(&self, name: &DatasetName) -> Error {
        let why = format!("{} may not: that takes the role {}", self.caller, self.role());
        Error::new(Kind::Denied, "open dataset", name, why)
    }
}
