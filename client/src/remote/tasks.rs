//! Registration of a member of a training job with the servers, the leases of jobs, and their status.
//!
//! Must hold: a call can be repeated through any server. The caller may have its own async runtime.

use bytes::Bytes;
use dl_format::{DatasetName, TaskId};
use dl_proto::{
    Dataset as DatasetInfo, EndLeases, JoinTask, StatusReply, StatusRequest, TaskLease,
    TaskMembership, pb,
};

use crate::error::{Error, Kind};
use crate::remote::client::Client;
use crate::remote::connections::{Connection, Try};
use crate::remote::lookup::{dataset_address, get_dataset};
use crate::remote::session::Session;

const ACTION: &str = "join a task on";

/// Sends a heartbeat, also if the caller stops waiting.
pub(crate) async fn join_task(
    session: Session,
    info: &DatasetInfo,
    request: JoinTask,
) -> Result<TaskMembership, Error> {
    let (address, runtime) = (dataset_address(&info.name), session.process.runtime.handle());
    let message = pb::JoinTaskRequest::from(request);
    let subject = address.clone();
    let connections = session.connections;
    let call = async move {
        let patience = connections.usual();
        let attempt = |mut server: Connection, this: Try| {
            let request = this.request(message.clone());
            async move { Ok(TaskMembership::try_from(this.answer(server.join_task(request)).await?)?) }
        };
        connections.call(ACTION, || subject.clone(), patience, attempt).await
    };
    let joined = dl_runtime::spawn_on(runtime, call).await;
    joined
        .unwrap_or_else(|error| Err(Error::new(Kind::Internal, ACTION, address, error.to_string())))
}

impl Client {
    /// The leases of training jobs on versions of a dataset: all leases for an admin of the
    /// dataset, else the caller's own.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for an unknown dataset. Otherwise errors of the connection.
    pub fn leases(&self, name: &DatasetName) -> Result<Vec<TaskLease>, Error> {
        let session = self.shared.session()?;
        let connections = &session.connections;
        session.wait(async {
            let id = get_dataset(connections, name, false).await?.id;
            let message = pb::ListLeasesRequest { dataset: Bytes::copy_from_slice(id.as_bytes()) };
            let attempt = |mut server: Connection, this: Try| {
                let request = this.request(message.clone());
                async move {
                    let reply = this.answer(server.list_leases(request)).await?;
                    let leases = reply.leases.into_iter().map(TaskLease::try_from);
                    Ok(leases.collect::<Result<Vec<_>, _>>()?)
                }
            };
            let of = || dataset_address(name);
            connections.call("list the leases of", of, connections.usual(), attempt).await
        })
    }

    /// Servers, training jobs and datasets at this moment, as far as the caller may see them. Counts
    /// of jobs are at most ten seconds old. All texts come from servers and other clients.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the id of an unknown job. Otherwise errors of the connection.
    pub fn status(&self, request: &StatusRequest) -> Result<StatusReply, Error> {
        let session = self.shared.session()?;
        let connections = &session.connections;
        session.wait(async {
            let attempt = |mut server: Connection, this: Try| {
                let request = this.request(request.clone());
                async move { this.answer(server.status(request)).await }
            };
            let of = || "the servers".to_owned();
            connections.call("ask for the status of", of, connections.usual(), attempt).await
        })
    }

    /// Ends the leases of a training job without living members; gives their number.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a job without a lease or of another user, [`Kind::Conflict`] for a
    /// job with living members. Otherwise as for [`Client::leases`].
    pub fn end_leases(&self, name: &DatasetName, task: TaskId) -> Result<u64, Error> {
        let session = self.shared.session()?;
        let connections = &session.connections;
        session.wait(async {
            let dataset = get_dataset(connections, name, false).await?.id;
            let message = pb::EndLeasesRequest::from(EndLeases { dataset, task });
            let attempt = |mut server: Connection, this: Try| {
                let request = this.request(message.clone());
                async move { Ok(this.answer(server.end_leases(request)).await?.ended) }
            };
            let of = || dataset_address(name);
            connections.call("end a lease on", of, connections.usual(), attempt).await
        })
    }
}

#[cfg(test)]
mod tests {
    use dl_format::{MemberId, Version};
    use dl_proto::{TaskCounters, TaskMember};

    use super::*;
    use crate::remote::Client;
    use crate::remote::testing::{Script, info, options, start};

    #[test]
    fn a_member_joins_from_a_runtime_of_its_own() {
        let client = Client::connect(options(&[start(Script::default())])).unwrap();
        let id = MemberId::from_bytes([3; 16]);
        let member = TaskMember {
            id,
            address: "a:1".to_owned(),
            key_fingerprint: None,
            memory: 5,
            chunks: None,
        };
        let request = JoinTask {
            dataset: info().id,
            version: Some(Version::default()),
            task: "train".parse().unwrap(),
            member: member.clone(),
            leaving: false,
            counters: TaskCounters::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let session = client.shared.session().unwrap();
        let joined = runtime.block_on(join_task(session, &info(), request)).unwrap();
        assert_eq!((joined.version, joined.members), (Some(Version::default()), vec![member]));
    }
}
