//! What is refused when a store is opened, and as whom it may be.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use dl_runtime::SystemClock;

use super::{STORE, hasty, id, open, reason, record};
use crate::conformance::history::Maker;
use crate::conformance::model::Model;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Error, Kind, MetaStore, Redis, conformance};

async fn refused(url: &str) -> Error {
    Redis::open(url, hasty(), Arc::new(SystemClock::new())).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_drops_keys_is_refused_with_what_to_set() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]).await;
    let error = refused(&server.url()).await;
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(reason(&error).contains("maxmemory-policy noeviction"), "{}", reason(&error));
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    open(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_and_a_single_redis_are_not_taken_for_each_other() {
    let (server, cluster) = (Server::start(&[]).await, Cluster::start(3, 0).await);
    let error =
        refused(&server.url().replace("redis://", "redis-cluster://").replace("/0", "")).await;
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(reason(&error).contains("write redis://"), "{}", reason(&error));
    let node = &cluster.servers()[1];
    let error = refused(&node.url()).await;
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(reason(&error).contains("redis-cluster://"), "{}", reason(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_used_and_a_wrong_one_is_refused_without_being_shown() {
    let server = Server::start(&["--requirepass", "s3cret"]).await;
    let login = |login: &str| format!("redis://{login}127.0.0.1:{}/0", server.port());
    let store = open(&login("default:s3cret@")).await;
    store.bind(STORE).await.unwrap();
    assert!(!format!("{store} {store:?}").contains("s3cret"));
    for wrong in ["", ":s3cretive@", "nobody:s3cret@"] {
        let error = refused(&login(wrong)).await;
        assert_eq!(error.kind, Kind::Denied, "{wrong:?}: {}", reason(&error));
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
    }
}

/// The rights that docs/CONFIGURATION.md names.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_no_more_rights_than_needed_can_do_everything() {
    let server = Server::start(&[]).await;
    let rights = "ACL SETUSER dl on >pw ~dl:* +@read +@write +@scripting +@connection -@dangerous \
                  +info +cluster|slots";
    server.ask(&rights.split_whitespace().collect::<Vec<_>>()).await;
    let store = open(&format!("redis://dl:pw@127.0.0.1:{}/0", server.port())).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let mut model = Model::default();
    for object in Maker::new(id(), 1).history(20) {
        store.append(&object).await.unwrap();
        model.add(&object);
    }
    model.check(&store, id(), 5).await;
    assert_eq!(store.damage().await.unwrap(), None);
    store.drop_dataset(&record().name, id()).await.unwrap();
    eventually("the sweep is done", || async {
        matches!(server.ask(&["KEYS", "dl:*:d:*"]).await, redis::Value::Array(keys) if keys.is_empty())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_answer_is_given_up_in_time() {
    let server = Server::start(&[]).await;
    server.kill();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(reason(&error).contains("gave up after 1.5 s"), "{}", reason(&error));
}

/// A certificate of this machine that is its own CA, and its key.
fn certify(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    fs::write(folder.join("cert"), certificate.pem()).unwrap();
    fs::write(folder.join("key"), key.serialize_pem()).unwrap();
}

/// All connections, those between its nodes too.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_over_tls_with_a_password_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    certify(folder.path());
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let tls = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    let cluster = ["--tls-auth-clients", "no", "--tls-cluster", "yes", "--tls-replication", "yes"];
    let login = ["--requirepass", "s3cret", "--masterauth", "s3cret"];
    let cluster = Cluster::start_with(3, 1, &[&tls[..], &cluster, &login].concat()).await;
    let url = |login: &str| format!("rediss-cluster://{login}{}?ca={cert}", cluster.tls_nodes());
    for wrong in [url(""), url(":s3cretive@")] {
        let error = refused(&wrong).await;
        assert_eq!(error.kind, Kind::Denied, "{}", reason(&error));
    }
    let untrusted = refused(&format!("rediss-cluster://:s3cret@{}", cluster.tls_nodes())).await;
    assert_eq!(untrusted.kind, Kind::Denied, "{}", reason(&untrusted));
    let url = url(":s3cret@");
    conformance::run(async || {
        cluster.flush().await;
        let store: Arc<dyn MetaStore> = Arc::new(open(&url).await);
        store
    })
    .await;
    // Who takes over is found, and spoken to, in the same way.
    cluster.flush().await;
    let store = open(&url).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let [victim, _, _, heir, ..] = cluster.servers() else { panic!("six nodes") };
    victim.kill();
    eventually("the replica takes over", || async {
        heir.text(&["INFO", "replication"]).await.contains("role:master")
    })
    .await;
    assert!(store.damage().await.unwrap().is_some(), "the last writes may be missing");
    let rebuild = store.begin_rebuild().await.unwrap();
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    let names: Vec<_> = (0..100).map(|number| format!("{number}/x")).collect();
    let object = Maker::new(id(), 1).chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.put_dataset(&record()).await.unwrap();
    store.append(&object).await.unwrap();
    let mut model = Model::default();
    model.add(&object);
    model.check(&store, id(), 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_to_whom_the_certificate_names_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    certify(folder.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (cert, key, port) = (file("cert"), file("key"), port.to_string());
    let tls = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let _server = Server::start(&[&tls[..], &["--tls-auth-clients", "no"]].concat()).await;
    let url = |host: &str| format!("rediss://{host}:{port}/0?ca={cert}");
    let clock = || Arc::new(SystemClock::new());
    eventually("TLS answers", || async {
        Redis::open(&url("127.0.0.1"), hasty(), clock()).await.is_ok()
    })
    .await;
    let store = open(&url("127.0.0.1")).await;
    store.bind(STORE).await.unwrap();
    for untrusted in [url("localhost"), format!("rediss://127.0.0.1:{port}/0")] {
        let error = refused(&untrusted).await;
        assert_eq!(error.kind, Kind::Denied, "{}", reason(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_asks_for_a_certificate_is_shown_that_of_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    certify(folder.path());
    certify(other.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key) = (file("cert"), file("key"));
    let tls = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    // As is usual once TLS is on.
    let server = Server::start(&[&tls[..], &["--tls-auth-clients", "yes"]].concat()).await;
    let address = format!("rediss://127.0.0.1:{}/0?ca={cert}", server.best_port());
    let shown = |folder: &Path| {
        let file = |name: &str| folder.join(name).display().to_string();
        format!("{address}&cert={}&key={}", file("cert"), file("key"))
    };
    let store = open(&shown(folder.path())).await;
    store.bind(STORE).await.unwrap();
    for unknown in [address.clone(), shown(other.path())] {
        let error = refused(&unknown).await;
        assert_eq!(error.kind, Kind::Denied, "{}", reason(&error));
        assert!(reason(&error).contains("?cert=FILE&key=FILE"), "{}", reason(&error));
    }
    let error = refused(&format!("{address}&cert=/no/file&key={key}")).await;
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(reason(&error).contains("/no/file"), "{}", reason(&error));
    // What has lost its line breaks.
    let text = fs::read_to_string(&key).unwrap();
    let secret = text.lines().nth(1).unwrap();
    for between in ["", "\\n"] {
        let broken = other.path().join("broken").display().to_string();
        fs::write(&broken, text.replace('\n', between)).unwrap();
        for files in [
            format!("{address}&cert={cert}&key={broken}"),
            format!("{address}&cert={broken}&key={key}"),
            address.replace(&cert, &broken),
        ] {
            let told = format!("{:?}", refused(&files).await);
            assert!(told.contains("lines of their own"), "{told}");
            assert!(!told.contains(secret) && !told.contains("45, 45, "), "{told}");
        }
    }
}
