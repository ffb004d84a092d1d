//! Registration of a member of a training job with the servers.
//!
//! Must hold: a call can be repeated through any server. The caller may have its own async runtime.

use dl_proto::{Dataset as DatasetInfo, JoinTask, TaskMembership, pb};

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Try};
use crate::remote::lookup::dataset_address;
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
        let member = TaskMember { id, address: "a:1".to_owned(), key_fingerprint: None, memory: 5 };
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
