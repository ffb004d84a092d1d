//! Whether a caller may do with a dataset what a request asks.
//!
//! Must hold: to a caller who may not read it, a dataset is one that is not there, whatever is
//! asked and by name or id: the same words, after the same work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dl_format::{DatasetId, DatasetName};
use dl_proto::{Kind, Role};
use tonic::Request;

use crate::auth::Caller;
use crate::auth::Rule;
use crate::catalog;
use crate::error::Error;
use crate::guard::Admitted;
use crate::parts::Parts;

/// Names that are remembered; ids keep theirs for ever.
const NAMES_MAX: usize = 4_096;

/// Compares what requests name with what their callers may.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    parts: Parts,
    names: Arc<Mutex<HashMap<DatasetId, DatasetName>>>,
}

impl Gate {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts, names: Arc::default() }
    }

    /// Checks a request that names a dataset by its id; `what` it is about to do, as in "read".
    pub(crate) async fn by_id(&self, admitted: &Admitted, id: DatasetId) -> Result<(), Error> {
        let caller = &admitted.caller;
        if let Caller::Everybody = caller {
            return Ok(());
        }
        let name = self.name(id).await?;
        match name.filter(|name| caller.may(Role::Read, name)) {
            Some(name) if caller.may(admitted.role(), &name) => Ok(()),
            Some(name) => Err(admitted.denied(&name)),
            None => Err(catalog::not_known(&self.parts, id, caller).await),
        }
    }

    async fn name(&self, id: DatasetId) -> Result<Option<DatasetName>, Error> {
        if let Some(name) = self.names().get(&id) {
            return Ok(Some(name.clone()));
        }
        let record = self.parts.meta.record(id).await;
        let record = record.map_err(|error| Error::meta("find dataset", id, error))?;
        let name = record.map(|record| record.name);
        if let Some(name) = &name {
            let mut names = self.names();
            if names.len() >= NAMES_MAX {
                names.clear();
            }
            names.insert(id, name.clone());
        }
        Ok(name)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<DatasetId, DatasetName>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    /// What the guard found out about a request.
    pub(crate) fn of<M>(request: &Request<M>) -> Result<Self, Error> {
        let admitted = request.extensions().get::<Self>();
        admitted.cloned().ok_or_else(|| {
            Error::new(Kind::Internal, "answer", "the request", "it did not pass the guard")
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
