//! What is refused when a store is opened, and as whom it may be.

use std::fs;
use std::path::Path;

use super::{
    STORE, append, check, fail_over, filled, hasty, id, open, open_with, reason, record, set,
};
use crate::conformance::history::Maker;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Datasets, Integrity, Kind};

/// That an address is refused with a remedy; gives all that is shown.
async fn is_refused(url: &str, kind: Kind, remedy: &str) -> String {
    let error = open_with(url, hasty()).await.unwrap_err();
    assert_eq!(error.kind, kind, "{url}: {error:?}");
    assert!(reason(&error).contains(remedy), "{url}: {error:?}");
    format!("{error} {error:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_of_the_wrong_kind_is_refused_with_a_remedy() {
    let (server, cluster) = (Server::start(&[]).await, Cluster::start(3, 0).await);
    let as_cluster = format!("redis-cluster://127.0.0.1:{}", server.port());
    is_refused(&as_cluster, Kind::Unsupported, "write redis://").await;
    is_refused(&cluster.servers()[1].url(), Kind::Unsupported, "redis-cluster://").await;
    set(&server, "maxmemory-policy", "allkeys-lru").await;
    is_refused(&server.url(), Kind::Unsupported, "maxmemory-policy noeviction").await;
    set(&server, "maxmemory-policy", "volatile-lru").await;
    open(&server.url()).await;
    server.kill();
    is_refused(&server.url(), Kind::Unavailable, "gave up after 1.5 s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_used_and_never_shown() {
    let server = Server::start(&["--requirepass", "s3cret"]).await;
    let login = |login: &str| format!("redis://{login}127.0.0.1:{}/0", server.port());
    let store = filled(&login("default:s3cret@"), []).await;
    assert!(!format!("{store} {store:?}").contains("s3cret"));
    for wrong in ["", ":s3cretive@", "nobody:s3cret@"] {
        let shown = is_refused(&login(wrong), Kind::Denied, "").await;
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

/// The rights that docs/CONFIGURATION.md names.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_no_more_rights_than_needed_can_do_everything() {
    let server = Server::start(&[]).await;
    let rights = "ACL SETUSER dl on >pw ~dl:* +@read +@write +@scripting +@connection -@dangerous \
                  +info +cluster|slots";
    server.ask(&rights.split_whitespace().collect::<Vec<_>>()).await;
    let objects = Maker::new(id(), 1).history(20);
    let store = filled(&format!("redis://dl:pw@127.0.0.1:{}/0", server.port()), &objects).await;
    check(&store, &objects).await;
    assert_eq!(store.damage().await.unwrap(), None);
    store.drop_dataset(&record().name, id()).await.unwrap();
    eventually("the sweep is done", || async {
        matches!(server.ask(&["KEYS", "dl:*:d:*"]).await, redis::Value::Array(keys) if keys.is_empty())
    })
    .await;
}

/// A certificate of this machine that is its own CA, and its key.
fn certify(folder: &Path) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let file = |name: &str, text: String| {
        fs::write(folder.join(name), text).unwrap();
        folder.join(name).display().to_string()
    };
    (file("cert", certificate.pem()), file("key", key.serialize_pem()))
}

/// All connections, those between its nodes and to a new primary too.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_spoken_to_over_tls_with_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = certify(folder.path());
    let tls = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    let cluster = ["--tls-auth-clients", "no", "--tls-cluster", "yes", "--tls-replication", "yes"];
    let login = ["--requirepass", "s3cret", "--masterauth", "s3cret"];
    let cluster = Cluster::start_with(3, 1, &[&tls[..], &cluster, &login].concat()).await;
    let url = |login: &str| format!("rediss-cluster://{login}{}", cluster.tls_nodes());
    let trusted = |login: &str| format!("{}?ca={cert}", url(login));
    for wrong in [trusted(""), trusted(":s3cretive@"), url(":s3cret@")] {
        is_refused(&wrong, Kind::Denied, "").await;
    }
    let mut maker = Maker::new(id(), 1);
    let mut objects = maker.history(40);
    let store = filled(&trusted(":s3cret@"), &objects).await;
    check(&store, &objects).await;
    let [victim, _, _, heir, ..] = cluster.servers() else { panic!("six nodes") };
    fail_over(victim, heir).await;
    assert!(store.damage().await.unwrap().is_some(), "the last writes may be missing");
    let rebuild = store.begin_rebuild().await.unwrap();
    objects.push(maker.files((0..100).map(|number| format!("{number}/x"))));
    append(&store, &objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    check(&store, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_asked_for_and_shown_as_the_address_says() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ((cert, key), (other_cert, other_key)) = (certify(folder.path()), certify(other.path()));
    let tls = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &cert];
    // As is usual once TLS is on.
    let server = Server::start(&[&tls[..], &["--tls-auth-clients", "yes"]].concat()).await;
    let address =
        |host: &str, files: &str| format!("rediss://{host}:{}/0?{files}", server.best_port());
    let pair = |cert: &str, key: &str| format!("cert={cert}&key={key}");
    let (ca, own) = (format!("ca={cert}"), pair(&cert, &key));
    filled(&address("127.0.0.1", &format!("{ca}&{own}")), []).await;
    // The certificate names another host, or nobody trusts it.
    is_refused(&address("localhost", &format!("{ca}&{own}")), Kind::Denied, "").await;
    is_refused(&address("127.0.0.1", &own), Kind::Denied, "").await;
    for unknown in [ca.clone(), format!("{ca}&{}", pair(&other_cert, &other_key))] {
        let url = address("127.0.0.1", &unknown);
        is_refused(&url, Kind::Denied, "?cert=FILE&key=FILE").await;
    }
    let absent = address("127.0.0.1", &format!("{ca}&{}", pair("/no/file", &key)));
    is_refused(&absent, Kind::Unsupported, "/no/file").await;
    // A key that has lost its line breaks is in no error.
    let text = fs::read_to_string(&key).unwrap();
    let broken = other.path().join("broken").display().to_string();
    fs::write(&broken, text.replace('\n', "")).unwrap();
    for files in [format!("{ca}&{}", pair(&cert, &broken)), format!("ca={broken}&{own}")] {
        let error = open_with(&address("127.0.0.1", &files), hasty()).await.unwrap_err();
        let shown = format!("{error:?}");
        assert!(shown.contains("lines of their own"), "{shown}");
        assert!(!shown.contains(text.lines().nth(1).unwrap()), "{shown}");
    }
}
