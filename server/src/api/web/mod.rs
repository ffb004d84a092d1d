//! The status page on the HTTP port, and its data as JSON.
//!
//! Must hold: a page gets no more than the caller's roles allow, by the same rules and delays as gRPC. A key is
//! taken over TLS or from this machine only. Nothing of a dataset is ever run by a browser.

mod assets;
mod data;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dl_proto::{KEY_HEADER, Kind, StatusRequest, USER_HEADER};
use percent_encoding::percent_decode;
use serde::Serialize;

pub(crate) use self::data::{AT_ONCE as BROWSED_AT_ONCE, Browser};
use crate::auth::{Auth, Caller};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::status::{Board, Viewer};

/// The header by which a browser tells whose page asks.
const SITE: &str = "sec-fetch-site";

/// The header that keeps answers out of other pages.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Sources of the page.
#[derive(Debug)]
pub(crate) struct Web {
    pub(crate) board: Arc<Board>,
    pub(crate) auth: Arc<Auth>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) browser: Browser,
    pub(crate) openness: Openness,
}

/// Who may see datasets on a server without users. A caller on the same machine always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Openness {
    /// Only callers on the same machine, as the admin did not open the server to the network.
    Machine,
    /// Callers with a certificate of the clients' CAs.
    Certified,
    /// Everybody.
    Network,
}

/// The place of the sources, which is filled when the server serves.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot(Arc<OnceLock<Web>>);

impl Slot {
    /// Fills the place, once.
    pub(super) fn fill(&self, web: Web) {
        self.0.get_or_init(|| web);
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: Option<IpAddr>,
    pub(crate) has_tls: bool,
}

impl Peer {
    /// Whether nobody on the network hears what the peer says.
    fn is_private(self) -> bool {
        self.has_tls || self.is_here()
    }

    /// Whether the peer is on this machine.
    fn is_here(self) -> bool {
        self.address.is_some_and(|address| address.to_canonical().is_loopback())
    }

    /// Whether the peer may see datasets without a key, on a server without users.
    fn may_see(self, openness: Openness) -> bool {
        match openness {
            Openness::Machine => self.is_here(),
            // The port asks each client that speaks TLS for its certificate.
            Openness::Certified => self.has_tls || self.is_here(),
            Openness::Network => true,
        }
    }
}

/// A refusal, with its reason for the user.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl Refusal {
    fn invalid(why: impl std::fmt::Display) -> Self {
        Self(StatusCode::BAD_REQUEST, why.to_string())
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(status_of(error.kind), error.chain())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        guarded((self.0, format!("{}\n", self.1)).into_response())
    }
}

fn status_of(kind: Kind) -> StatusCode {
    match kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::NeedsRecovery | Kind::Unavailable | Kind::Full => StatusCode::SERVICE_UNAVAILABLE,
        Kind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Kind::Corrupt | Kind::Cancelled | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The pages; each connection adds its [`Peer`].
pub(super) fn pages(slot: Slot) -> Router {
    Router::new()
        .route("/", get(|headers| assets::answer("index.html", headers)))
        .route("/app/{name}", get(assets::named))
        .route("/api/v1/status", get(status))
        .route("/api/v1/tasks/{id}", get(task))
        .route("/api/v1/datasets/{name}", get(dataset))
        .route("/api/v1/datasets/{name}/list", get(list))
        .route("/api/v1/datasets/{name}/entry", get(entry))
        .route("/api/v1/datasets/{name}/file", get(file))
        .with_state(slot)
}

/// The caller of a request to a serving server.
struct Asked<'a> {
    web: &'a Web,
    viewer: Viewer,
}

impl<'a> Asked<'a> {
    async fn new(slot: &'a Slot, peer: Peer, headers: &HeaderMap) -> Result<Self, Refusal> {
        let web = slot.0.get().ok_or_else(|| {
            let why = "the server is starting; /healthz tells the step";
            Refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
        })?;
        let viewer = viewer(web, peer, headers).await?;
        Ok(Self { web, viewer })
    }

    /// A caller who may be told of a dataset.
    fn caller(&self) -> Result<&Caller, Refusal> {
        match &self.viewer {
            Viewer::Known(caller) => Ok(caller),
            Viewer::Unknown => {
                let why = "datasets are for callers with a user and a key; without users, for callers \
                           on the server's machine, or for all with --without-keys";
                Err(Refusal(StatusCode::UNAUTHORIZED, why.to_owned()))
            }
        }
    }
}

async fn viewer(web: &Web, peer: Peer, headers: &HeaderMap) -> Result<Viewer, Refusal> {
    if headers.get(SITE).is_some_and(|site| site != "same-origin" && site != "none") {
        let why = "another page may not ask this server".to_owned();
        return Err(Refusal(StatusCode::FORBIDDEN, why));
    }
    if !web.auth.is_on() {
        if !peer.may_see(web.openness) {
            return Ok(Viewer::Unknown);
        }
        return match is_own_name(headers) {
            true => Ok(Viewer::Known(Caller::Everybody)),
            false => {
                let why = "this server has no users, so it answers only to its address or to a name \
                           without dots: another name may be a trick of a foreign page";
                Err(Refusal(StatusCode::FORBIDDEN, why.to_owned()))
            }
        };
    }
    let Some(credentials) = headers.get(AUTHORIZATION) else { return Ok(Viewer::Unknown) };
    if !peer.is_private() {
        let why = "a key is taken over TLS or from this machine only: give the server --tls-cert and \
                   --tls-key, or open the page through a tunnel";
        return Err(Refusal(StatusCode::FORBIDDEN, why.to_owned()));
    }
    let named = credentials_of(credentials)
        .ok_or_else(|| Refusal::invalid("the header Authorization is not `Basic`, user and key"))?;
    match web.auth.caller(&named, peer.address) {
        Ok(caller) => Ok(Viewer::Known(caller)),
        Err(refused) => {
            web.metrics.refused_key();
            let status = web.auth.refuse(refused).await;
            Err(Refusal(StatusCode::UNAUTHORIZED, status.message().to_owned()))
        }
    }
}

/// The headers of gRPC for the user and key of a browser.
fn credentials_of(value: &HeaderValue) -> Option<HeaderMap> {
    let encoded = value.to_str().ok()?.strip_prefix("Basic ")?;
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (user, key) = (decoded.get(..colon)?, decoded.get(colon + 1..)?);
    let mut headers = HeaderMap::new();
    headers.insert(USER_HEADER, HeaderValue::from_bytes(user).ok()?);
    headers.insert(KEY_HEADER, HeaderValue::from_bytes(key).ok()?);
    Some(headers)
}

/// Whether a browser came by an address or by a name without dots, which no foreign page can make
/// point here.
fn is_own_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let name = if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok() || !name.contains('.')
}

async fn status(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    told(&Asked::new(&slot, peer, &headers).await?, query, String::new()).await
}

async fn task(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    told(&Asked::new(&slot, peer, &headers).await?, query, id).await
}

async fn told(asked: &Asked<'_>, query: Option<String>, job: String) -> Result<Response, Refusal> {
    let parameters = Parameters::of(query.as_deref());
    let small = |name| u32::try_from(parameters.number(name)?).map_err(Refusal::invalid);
    let (since, step, window) = (parameters.number("since")?, small("step")?, small("window")?);
    let request = StatusRequest { since, step, job, window };
    json(&asked.web.board.status(&asked.viewer, &request).await?)
}

async fn dataset(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = Asked::new(&slot, peer, &headers).await?;
    json(&asked.web.browser.dataset(asked.caller()?, &name).await?)
}

async fn list(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = Asked::new(&slot, peer, &headers).await?;
    let parameters = Parameters::of(query.as_deref());
    let (folder, after) =
        (parameters.bytes("folder").unwrap_or_default(), parameters.bytes("after"));
    json(&asked.web.browser.list(asked.caller()?, &name, folder, after).await?)
}

async fn entry(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = Asked::new(&slot, peer, &headers).await?;
    let path = Parameters::of(query.as_deref()).path()?;
    json(&asked.web.browser.entry(asked.caller()?, &name, path).await?)
}

async fn file(
    State(slot): State<Slot>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = Asked::new(&slot, peer, &headers).await?;
    let parameters = Parameters::of(query.as_deref());
    let path = parameters.path()?;
    let length = match parameters.number("length")? {
        0 => None,
        length => Some(length),
    };
    let file = asked.web.browser.file(asked.caller()?, &name, path, length).await?;
    let mut response = guarded(file.into_response());
    // Even opened by its address, a file runs nothing.
    let policy = HeaderValue::from_static("sandbox; default-src 'none'");
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}

/// The parameters of a request, whose values are bytes.
struct Parameters<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Parameters<'a> {
    fn of(query: Option<&'a str>) -> Self {
        let parameters = query.unwrap_or_default().split('&');
        Self(parameters.filter_map(|parameter| parameter.split_once('=')).collect())
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        Some(percent_decode(self.text(name)?.as_bytes()).collect())
    }

    fn path(&self) -> Result<Vec<u8>, Refusal> {
        self.bytes("path").ok_or_else(|| Refusal::invalid("a path is missing"))
    }

    /// A number; zero if missing.
    fn number(&self, name: &str) -> Result<u64, Refusal> {
        let Some(text) = self.text(name) else { return Ok(0) };
        text.parse().map_err(|_| Refusal::invalid(format!("{name} is no number")))
    }
}

fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|why| Refusal(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()))?;
    let response = ([(CONTENT_TYPE, "application/json")], Body::from(text)).into_response();
    Ok(guarded(response))
}

/// An answer that is not stored, guessed or shown inside of other pages.
fn guarded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_not_the_own_name() {
        let named = |host: &'static str| {
            let host = HeaderValue::from_static(host);
            is_own_name(&HeaderMap::from_iter([(HOST, host)]))
        };
        for own in ["127.0.0.1:80", "10.1.2.3", "[::1]:9", "localhost:8080", "diesel"] {
            assert!(named(own), "{own}");
        }
        for foreign in ["evil.example:80", "127.0.0.1.evil.example", "a.b"] {
            assert!(!named(foreign), "{foreign}");
        }
    }

    #[test]
    fn without_users_the_network_sees_what_the_admin_opened() {
        let here = Peer { address: Some([127, 0, 0, 1].into()), has_tls: false };
        let far = Peer { address: Some([10, 0, 0, 1].into()), has_tls: false };
        let certified = Peer { has_tls: true, ..far };
        let may = |openness| [here, far, certified].map(|peer| peer.may_see(openness));
        assert_eq!(may(Openness::Machine), [true, false, false]);
        assert_eq!(may(Openness::Certified), [true, false, true]);
        assert_eq!(may(Openness::Network), [true, true, true]);
        assert!(here.is_private() && !far.is_private() && certified.is_private());
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert!(Peer { address: Some(mapped), ..far }.is_here());
    }

    #[test]
    fn credentials_are_a_user_and_a_key() {
        let of = |text: &str| {
            let value = format!("Basic {}", STANDARD.encode(text));
            credentials_of(&HeaderValue::from_str(&value).unwrap())
        };
        let named = of("ann:a:b").unwrap();
        assert_eq!(named[USER_HEADER], "ann");
        assert_eq!(named[KEY_HEADER], "a:b");
        assert!(of("ann").is_none());
        assert!(credentials_of(&HeaderValue::from_static("Bearer abc")).is_none());
        assert!(credentials_of(&HeaderValue::from_static("Basic ?")).is_none());
    }

    #[test]
    fn parameters_are_bytes() {
        let parameters = Parameters::of(Some("path=a%2Fb%FF+c&length=7&empty="));
        assert_eq!(parameters.bytes("path").unwrap(), b"a/b\xFF+c");
        assert_eq!(parameters.number("length").unwrap(), 7);
        assert_eq!(parameters.number("none").unwrap(), 0);
        assert!(parameters.number("empty").is_err());
    }
}
