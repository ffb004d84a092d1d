//! The files of the page, which are part of the program.
//!
//! Must hold: a browser loads nothing from elsewhere, and runs no script but these.

use std::hash::{DefaultHasher, Hasher};

use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// The rights of the page in a browser: requests and pictures of this server alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' blob:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Names and contents.
const FILES: [(&str, &str); 12] = [
    ("index.html", include_str!("../../../web/index.html")),
    ("app.css", include_str!("../../../web/app.css")),
    ("app.js", include_str!("../../../web/app.js")),
    ("api.js", include_str!("../../../web/api.js")),
    ("text.js", include_str!("../../../web/text.js")),
    ("plot.js", include_str!("../../../web/plot.js")),
    ("overview.js", include_str!("../../../web/overview.js")),
    ("job.js", include_str!("../../../web/job.js")),
    ("dataset.js", include_str!("../../../web/dataset.js")),
    ("preact.js", include_str!("../../../web/vendor/preact.js")),
    ("uplot.js", include_str!("../../../web/vendor/uplot.js")),
    ("uplot.css", include_str!("../../../web/vendor/uplot.css")),
];

const ICON: &str = include_str!("../../../web/icon.svg");

/// A file of the page by its name.
pub(super) async fn named(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&name, headers).await
}

pub(super) async fn answer(name: &str, headers: HeaderMap) -> Response {
    let icon = [("icon.svg", ICON)];
    let file = FILES.iter().chain(&icon).find(|(file, _)| *file == name);
    let Some((_, content)) = file else {
        return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
    };
    let tag = tag(content);
    let common = [
        (ETAG, tag.as_str()),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(CONTENT_TYPE, content_type(name))], *content).into_response()
}

/// Changes with the content.
fn tag(content: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(content.as_bytes());
    format!("\"{:016x}\"", hasher.finish())
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    }
}
