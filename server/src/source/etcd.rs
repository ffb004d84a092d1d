//! Reads and watches a key of etcd (v3) over gRPC. Its few messages are frozen, and
//! written by hand, so that the build needs no compiler for them.
//!
//! Must hold: every text has the agreement of a majority of etcd. A node that is away, hangs or has no leader
//! is skipped for the next node. No password is shown.

use std::error::Error as _;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::address::{self, ClientFiles, TlsFiles};
use dl_runtime::{Backoff, Clock, Deadline, Random};
use futures::{StreamExt, stream};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::causes;

/// Limit for a connection, a login or a read.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Silence before a ping, and again before a node counts as away.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Begin of the reason for an ended connection.
const HUNG_UP: &str = "the connection ended";

/// The address of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    nodes: Vec<String>,
    key: String,
    login: Option<(String, String)>,
    is_tls: bool,
    files: TlsFiles,
}

impl Address {
    /// Parses `etcd[s]://[USER:PASSWORD@]HOST:PORT,.../KEY` with optional `?ca=FILE&cert=FILE&key=FILE`; none
    /// for other addresses.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, &'static str>> {
        let (is_tls, rest) = match text.strip_prefix("etcd://") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("etcds://")?),
        };
        let Some((nodes, key)) = rest.split_once('/') else {
            return Some(Err("give the key too, as in etcd://HOST:2379/diesel/config"));
        };
        let (key, query) = key.split_once('?').map_or((key, None), |(a, b)| (a, Some(b)));
        let files = match TlsFiles::read(query, is_tls) {
            Ok(files) => files,
            Err(why) => return Some(Err(why)),
        };
        let (login, nodes) = match nodes.rsplit_once('@') {
            Some((login, nodes)) => match address::login(login) {
                Ok(login) => (Some(login), nodes),
                Err(why) => return Some(Err(why)),
            },
            None => (None, nodes),
        };
        let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
        let is_node = |node: &String| {
            let port = node.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        };
        Some(if key.contains('@') {
            Err("write a / of etcd's password as %2F; a key with an @ can't be read")
        } else if !nodes.iter().all(is_node) {
            Err("give hosts and ports, as in etcd://HOST:2379,HOST:2379/diesel/config")
        } else if key.is_empty() {
            Err("give the key too, as in etcd://HOST:2379/diesel/config")
        } else {
            Ok(Self { nodes, key: format!("/{key}"), login, is_tls, files })
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.nodes.join(","), self.key)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A watched key.
#[derive(Debug)]
pub(crate) struct Etcd {
    address: Address,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    failures: u32,
    events: Option<Streaming<WatchResponse>>,
}

impl Etcd {
    pub(crate) fn new(address: Address, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        Self { address, clock, random, failures: 0, events: None }
    }

    /// The next text, or the reason for its absence.
    pub(crate) async fn next(&mut self) -> Result<String, String> {
        loop {
            let Some(events) = &mut self.events else {
                if let Some(before) = self.failures.checked_sub(1) {
                    self.clock.sleep(Backoff::default().wait(before, &*self.random)).await;
                }
                match self.begin().await {
                    Ok((text, events)) => {
                        self.events = Some(events);
                        return text;
                    }
                    Err(why) => {
                        self.failures = self.failures.saturating_add(1);
                        return Err(why);
                    }
                }
            };
            match events.message().await {
                Ok(Some(WatchResponse { canceled: false, events, .. })) => {
                    self.failures = 0;
                    if let Some(event) = events.into_iter().next_back() {
                        return text(event.kv.filter(|_| event.r#type == PUT));
                    }
                }
                // The past is compacted, or the node is away or has no leader: begin again after a pause.
                Ok(_) | Err(_) => {
                    self.events = None;
                    self.failures = self.failures.saturating_add(1);
                }
            }
        }
    }

    /// Reads the key and watches later changes, at the next node in turn.
    async fn begin(&self) -> Result<(Result<String, String>, Streaming<WatchResponse>), String> {
        let turn = usize::try_from(self.failures).unwrap_or_default() % self.address.nodes.len();
        let node = self.address.nodes.get(turn).cloned().unwrap_or_default();
        let deadline = Deadline::after(&*self.clock, TIMEOUT);
        match deadline.bound(&*self.clock, self.begin_at(&node)).await {
            // A refused certificate mostly shows after the handshake.
            Ok(Err(why))
                if self.address.is_tls
                    && (why.starts_with(HUNG_UP) || why.contains("received fatal alert")) =>
            {
                Err(format!(
                    "{node}: {why}; if it wants certificates of its clients, write \
                     ?cert=FILE&key=FILE behind the key, with one that it trusts"
                ))
            }
            Ok(Err(why)) if !self.address.is_tls && why.starts_with(HUNG_UP) => {
                Err(format!("{node}: {why}; if it speaks TLS, write etcds://"))
            }
            Ok(begun) => begun.map_err(|why| format!("{node}: {why}")),
            Err(_) => Err(format!("{node}: no answer in {TIMEOUT:?}")),
        }
    }

    async fn begin_at(
        &self,
        node: &str,
    ) -> Result<(Result<String, String>, Streaming<WatchResponse>), String> {
        let mut grpc = Grpc::new(self.connect(node).await?);
        let token = self.login(&mut grpc).await?;
        let key = self.address.key.as_bytes().to_vec();
        let mut request = Request::new(RangeRequest { key: key.clone() });
        authorize(&mut request, token.as_ref());
        let range: RangeResponse = unary(&mut grpc, "/etcdserverpb.KV/Range", request).await?;
        let revision = range.header.unwrap_or_default().revision;
        let create = WatchCreateRequest { key, start_revision: revision.saturating_add(1) };
        let create = WatchRequest { create_request: Some(create) };
        let requests = stream::once(std::future::ready(create)).chain(stream::pending());
        let mut request = Request::new(requests);
        authorize(&mut request, token.as_ref());
        // Otherwise a node cut off from the others stays silent for ever.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        ready(&mut grpc).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let watch = grpc.streaming(request, path, codec).await.map_err(|status| why(&status))?;
        Ok((text(range.kvs.into_iter().next()), watch.into_inner()))
    }

    async fn connect(&self, node: &str) -> Result<Channel, String> {
        let scheme = if self.address.is_tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{node}"));
        let mut endpoint = endpoint
            .map_err(|error| error.to_string())?
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        if self.address.is_tls {
            let TlsFiles { ca, client } = &self.address.files;
            let mut tls = match ca {
                Some(ca) => {
                    let ca = read("the certificate to trust", ca).await?;
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca))
                }
                None => ClientTlsConfig::new().with_native_roots(),
            };
            if let Some(ClientFiles { cert, key }) = client {
                let cert = read("the certificate to show", cert).await?;
                tls = tls.identity(Identity::from_pem(cert, read("its key", key).await?));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| causes(&error))?;
        }
        endpoint.connect().await.map_err(|error| causes(&error))
    }

    async fn login(&self, grpc: &mut Grpc<Channel>) -> Result<Option<Token>, String> {
        let Some((name, password)) = self.address.login.clone() else { return Ok(None) };
        let request = Request::new(AuthenticateRequest { name, password });
        let path = "/etcdserverpb.Auth/Authenticate";
        let answer: AuthenticateResponse = unary(grpc, path, request).await?;
        let token = answer.token.parse::<Token>();
        token.map(Some).map_err(|_| "the login was answered with nonsense".to_owned())
    }
}

async fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    let file = path.to_owned();
    let read = dl_runtime::blocking::run(move || std::fs::read(file)).await;
    let read = read.map_err(|stopped| stopped.to_string())?;
    read.map_err(|error| format!("{what}: {}: {error}", path.display()))
}

type Token = MetadataValue<Ascii>;

fn authorize<T>(request: &mut Request<T>, token: Option<&Token>) {
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), String> {
    grpc.ready().await.map_err(|error| format!("{HUNG_UP}: {}", causes(&error)))
}

async fn unary<Q, A>(
    grpc: &mut Grpc<Channel>,
    path: &'static str,
    request: Request<Q>,
) -> Result<A, String>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    ready(grpc).await?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
    Ok(answer.map_err(|status| why(&status))?.into_inner())
}

fn text(found: Option<KeyValue>) -> Result<String, String> {
    let found = found.ok_or("there is nothing under this key")?;
    String::from_utf8(found.value).map_err(|_| "what is under this key is no text".to_owned())
}

/// The message of etcd, or the cause of the ended connection.
fn why(status: &Status) -> String {
    match status.source() {
        Some(cause) => format!("{HUNG_UP}: {}", causes(cause)),
        None => format!("{}: {}", status.code(), status.message()),
    }
}

/// The type of events for written keys.
const PUT: i32 = 0;

#[derive(Clone, PartialEq, Message)]
struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    password: String,
}

#[derive(Clone, PartialEq, Message)]
struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    token: String,
}

#[derive(Clone, PartialEq, Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create_request: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WatchResponse {
    #[prost(bool, tag = "4")]
    canceled: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "1")]
    r#type: i32,
    #[prost(message, optional, tag = "2")]
    kv: Option<KeyValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_nodes_and_a_key_and_hide_the_password() {
        let parse = |text| Address::parse(text).unwrap();
        let address = parse("etcd://me:se:cr@t%2F%25@a:2379,[::1]:2380/diesel/config").unwrap();
        assert_eq!(address.nodes, ["a:2379", "[::1]:2380"]);
        assert_eq!(address.key, "/diesel/config");
        assert_eq!(address.login, Some(("me".into(), "se:cr@t/%".into())));
        assert_eq!(format!("{address} {address:?}").matches("se:cr").count(), 0);
        let address = parse("etcds://me:a?b@a:1/k?ca=/x@y.pem").unwrap();
        assert_eq!((address.is_tls, address.files.ca), (true, Some("/x@y.pem".into())));
        assert_eq!(address.key, "/k");
        assert!(parse("etcds://a:1/k?key=/k.pem&cert=/c.pem").unwrap().files.client.is_some());
        for wrong in [
            "etcd://a:2379",
            "etcd://a/k",
            "etcd:///k",
            "etcd://a:1/",
            "etcd://a:1/k?ca=f",
            "etcds://a:1/?ca=f",
            "etcds://me:12/34@a:1/k",
            "etcds://me:12%3@a:1/k",
            "etcds://me@a:1/k",
            "etcds://a:1/k?cert=f",
        ] {
            parse(wrong).unwrap_err();
        }
        assert!(Address::parse("/etc/diesel.toml").is_none());
    }
}
