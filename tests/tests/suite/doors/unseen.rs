//! For users without access, a dataset looks missing in every answer.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use dl_format::{DatasetId, TaskId};
use dl_proto::pb::diesel_client::DieselClient;
use dl_proto::{DESCRIPTORS, KEY_HEADER, USER_HEADER, pb};
use dl_tests::program::Server;
use dl_tests::scene::Scene;
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::UsersFile;

/// Adds a user's name and key to each request.
#[derive(Clone)]
struct As {
    user: &'static str,
    key: String,
}

impl Interceptor for As {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let unsendable = |_| Status::internal("a key is ASCII text");
        let user = self.user.parse().map_err(unsendable)?;
        request.metadata_mut().insert(USER_HEADER, user);
        let key = self.key.parse().map_err(unsendable)?;
        request.metadata_mut().insert(KEY_HEADER, key);
        Ok(request)
    }
}

type Client = DieselClient<InterceptedService<Channel, As>>;

async fn client(server: &Server, user: &'static str, key: String) -> Result<Client> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address()))?;
    Ok(DieselClient::with_interceptor(endpoint.connect().await?, As { user, key }))
}

/// Calls a method for a dataset; returns the answer without the name and the id.
async fn ask(client: &mut Client, method: &str, name: &str, id: DatasetId) -> Result<String> {
    let (dataset, named) = (Bytes::copy_from_slice(id.as_bytes()), name.to_owned());
    let paths = vec![Bytes::from_static(b"a")];
    let ended: Result<String, Status> = match method {
        "CreateDataset" => {
            let request = pb::CreateDatasetRequest { name: named, ..Default::default() };
            client.create_dataset(request).await.map(|answer| format!("{answer:?}"))
        }
        "GetDataset" => {
            let request = pb::GetDatasetRequest { name: named, without_counts: false };
            client.get_dataset(request).await.map(|answer| format!("{answer:?}"))
        }
        "ListDatasets" => {
            let answer = client.list_datasets(pb::ListDatasetsRequest { names_only: false }).await;
            answer.map(|answer| format!("{:?}", answer.into_inner()))
        }
        "DeleteDataset" => {
            let request = pb::DeleteDatasetRequest { name: named, id: dataset };
            client.delete_dataset(request).await.map(|answer| format!("{answer:?}"))
        }
        "PutChunk" => {
            let request = pb::PutChunkRequest { dataset, length: 1, data: Bytes::from("x") };
            let request = tokio_stream::once(request);
            client.put_chunk(request).await.map(|answer| format!("{answer:?}"))
        }
        "Delete" => {
            let tombstone = Bytes::from_static(&[7; 16]);
            let (chunk, entries) = (Bytes::from_static(&[5; 16]), Bytes::from_static(&[1]));
            let deletions = vec![pb::ChunkDeletions { chunk, entries }];
            let request = pb::DeleteRequest { dataset, tombstone, deletions };
            client.delete(request).await.map(|answer| format!("{answer:?}"))
        }
        "Read" => {
            let source = Some(pb::read_item::Source::Path(Bytes::from("a")));
            let items = vec![pb::ReadItem { source, ..Default::default() }];
            let request = pb::ReadRequest {
                dataset,
                items,
                check_copies: true,
                pass_copies: true,
                check_headers: true,
            };
            first(client.read(request).await).await
        }
        "Stat" => {
            let request = pb::StatRequest { dataset, paths };
            client.stat(request).await.map(|answer| format!("{answer:?}"))
        }
        "List" => first(client.list(pb::ListRequest { dataset, ..Default::default() }).await).await,
        "GetChunks" => {
            let range = pb::ChunkRange { chunk: dataset.clone(), offset: 0, length: 1 };
            let request = pb::GetChunksRequest { dataset, ranges: vec![range], pass_copies: true };
            first(client.get_chunks(request).await).await
        }
        "JoinTask" => {
            let (task, member) = ("job".to_owned(), vec![7; 16].into());
            let request = pb::JoinTaskRequest { dataset, task, member, ..Default::default() };
            client.join_task(request).await.map(|answer| format!("{answer:?}"))
        }
        "ListLeases" => {
            let request = pb::ListLeasesRequest { dataset };
            client.list_leases(request).await.map(|answer| format!("{answer:?}"))
        }
        "EndLeases" => {
            let request = pb::EndLeasesRequest { dataset, task_id: vec![7; 16].into() };
            client.end_leases(request).await.map(|answer| format!("{answer:?}"))
        }
        "GetSnapshot" => {
            let request = pb::GetSnapshotRequest { dataset, ..Default::default() };
            first(client.get_snapshot(request).await).await
        }
        "Recover" => {
            first(client.recover(pb::RecoverRequest { dataset: named, since: 0 }).await).await
        }
        "Purge" => {
            first(client.purge(pb::PurgeRequest { dataset: named, ..Default::default() }).await)
                .await
        }
        "Verify" => {
            let request = pb::VerifyRequest { dataset: named, checksums: false };
            first(client.verify(request).await).await
        }
        "Status" => {
            let job = format!("{id}.{}", TaskId::from_bytes([7; 16]));
            let request = pb::StatusRequest { job, ..Default::default() };
            client.status(request).await.map(|answer| format!("{answer:?}"))
        }
        _ => bail!("write here how {method} is asked about a dataset"),
    };
    let told = match ended {
        Ok(answer) => answer,
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    };
    Ok(told.replace(name, "NAME").replace(&id.to_string(), "ID"))
}

/// The first message of a stream.
async fn first<T: std::fmt::Debug>(
    answer: Result<tonic::Response<tonic::Streaming<T>>, Status>,
) -> Result<String, Status> {
    let message = answer?.into_inner().message().await?;
    Ok(format!("{message:?}"))
}

fn methods() -> Result<Vec<String>> {
    let described = FileDescriptorSet::decode(DESCRIPTORS)?;
    let services = described.file.into_iter().flat_map(|file| file.service);
    Ok(services.flat_map(|service| service.method).map(|method| method.name().to_owned()).collect())
}

async fn create(root: &mut Client, name: &str) -> Result<DatasetId> {
    let request = pb::CreateDatasetRequest { name: name.to_owned(), ..Default::default() };
    let id = root.create_dataset(request).await?.into_inner().id;
    Ok(DatasetId::from_bytes(id.as_ref().try_into()?))
}

/// A server with the admins `root` of all datasets and `ann` of `apples`.
async fn start() -> Result<(Scene, Server, [Client; 2])> {
    let scene = Scene::new()?;
    let users = UsersFile::new(&scene.path(""));
    let (root, ann) = (users.add("root", &["admin:*"])?, users.add("ann", &["admin:apples"])?);
    let server = scene.start_with(&users.flags())?;
    let clients = [client(&server, "root", root).await?, client(&server, "ann", ann).await?];
    Ok((scene, server, clients))
}

/// Keeps S-30: for every method.
#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_dataset_answers_like_a_missing_dataset() -> Result<()> {
    let (_scene, _server, [mut root, mut ann]) = start().await?;
    create(&mut root, "apples").await?;
    let bananas = create(&mut root, "bananas").await?;
    let none = DatasetId::from_bytes([9; 16]);
    for method in methods()? {
        let there = ask(&mut ann, &method, "bananas", bananas).await?;
        let missing = ask(&mut ann, &method, "bonanza", none).await?;
        ensure!(there == missing, "{method}: {there} and {missing}");
        ensure!(!there.contains("anana"), "{method}: {there}");
        let expected = match method.as_str() {
            "ListDatasets" => "apples",
            "CreateDataset" => "PermissionDenied: ",
            _ => "NotFound: ",
        };
        ensure!(there.contains(expected), "{method}: {there}");
    }
    let other = ask(&mut ann, "DeleteDataset", "apples", bananas).await?;
    let unknown = ask(&mut ann, "DeleteDataset", "apples", none).await?;
    ensure!(other.contains("removed: 0") && unknown.contains("removed: 0"), "{other} {unknown}");
    root.get_dataset(pb::GetDatasetRequest { name: "bananas".to_owned(), without_counts: false })
        .await?;
    let found = ask(&mut root, "List", "bananas", bananas).await?;
    ensure!(!found.contains("NotFound"), "{found}");
    Ok(())
}

/// Keeps S-30: for every method, with a user who had access before the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn only_users_of_a_deleted_dataset_learn_of_its_deletion() -> Result<()> {
    let (scene, _server, [mut root, mut ann]) = start().await?;
    let deleted = create(&mut root, "apples").await?;
    create(&mut root, "bananas").await?;
    ask(&mut ann, "Stat", "apples", deleted).await?;
    ask(&mut root, "DeleteDataset", "apples", deleted).await?;
    fs::write(scene.path("data/chunks/names/bananas/1"), "damaged")?;
    let unknown = DatasetId::from_bytes([9; 16]);
    let by_id = methods()?.into_iter().filter(|method| {
        let by_id = [
            "PutChunk",
            "Read",
            "Stat",
            "List",
            "Delete",
            "GetChunks",
            "JoinTask",
            "ListLeases",
            "EndLeases",
            "GetSnapshot",
        ];
        by_id.contains(&method.as_str())
    });
    let mut asked = 0;
    for method in by_id {
        let told = ask(&mut ann, &method, "apples", deleted).await?;
        ensure!(!told.contains("anana"), "{method}: {told}");
        ensure!(told.contains("NotFound: ") && told.contains("it was deleted"), "{method}: {told}");
        let other = ask(&mut ann, &method, "apples", unknown).await?;
        ensure!(!other.contains("anana"), "{method}: {other}");
        asked += 1;
    }
    ensure!(asked == 10, "{asked} methods");
    Ok(())
}

/// Keeps S-30: for every method.
#[tokio::test(flavor = "multi_thread")]
async fn no_method_answers_without_a_key() -> Result<()> {
    let (_scene, server, [mut root, _]) = start().await?;
    let id = create(&mut root, "apples").await?;
    let mut wrong = client(&server, "root", "0".repeat(64)).await?;
    let methods = methods()?;
    ensure!(methods.len() >= 10, "{methods:?}");
    for method in methods {
        let told = ask(&mut wrong, &method, "apples", id).await?;
        ensure!(told == "Unauthenticated: the user or the key is wrong", "{method}: {told}");
    }
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address()))?;
    let mut nobody = DieselClient::new(endpoint.connect().await?);
    let refused = nobody.list_datasets(pb::ListDatasetsRequest { names_only: false }).await.err();
    ensure!(refused.context("answered without a key")?.code() == Code::Unauthenticated, "code");
    Ok(())
}
