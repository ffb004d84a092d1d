//! Whether a caller may do with a dataset what a request asks.
//!
//! Must hold: to a caller who may not read it, a dataset is one that is not there, whatever is
//! asked and by name or id: the same words, after the same work.

use dl_format::{DatasetId, DatasetName};
use dl_meta::DatasetRecord;
use dl_proto::{Kind, Role};
use tonic::Request;

use crate::admission::Admitted;
use crate::auth::Rule;
use crate::catalog;
use crate::error::Error;
use crate::parts::Parts;

/// The record of a dataset that a request names by its id, if its contents can be trusted and the
/// caller may do with it what the request asks. The only look-up of it by most requests.
pub(crate) async fn by_id(
    parts: &Parts,
    admitted: &Admitted,
    id: DatasetId,
) -> Result<DatasetRecord, Error> {
    let caller = &admitted.caller;
    let record = parts.meta.record(id).await;
    let record = record.map_err(|error| Error::meta("find dataset", id, error))?;
    let Some(record) = record.filter(|record| caller.may(Role::Read, &record.name)) else {
        return Err(catalog::not_known(parts, id, caller).await);
    };
    if !caller.may(admitted.role(), &record.name) {
        return Err(admitted.denied(&record.name));
    }
    catalog::trusted(record)
}

impl Admitted {
    /// The caller of a request, and the rule of its method.
    pub(crate) fn of<M>(request: &Request<M>) -> Result<Self, Error> {
        let admitted = request.extensions().get::<Self>();
        admitted.cloned().ok_or_else(|| {
            Error::new(Kind::Internal, "answer", "the request", "it was not admitted")
        })
    }

    /// Checks a request that names a dataset, or what it would have: that depends on the name
    /// alone. `action` as in "delete dataset".
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

    /// Checks a request to make a dataset of that name.
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
            // A method that names a dataset has another rule, or is answered to few.
            Rule::Key => Role::Admin,
        }
    }

    fn denied(&self, name: &DatasetName) -> Error {
        let why = format!("{} may not: that takes the role {}", self.caller, self.role());
        Error::new(Kind::Denied, "open dataset", name, why)
    }
}
