//! The proxies between this machine and a bucket, for the text of errors.
//!
//! Must hold: the named proxy is the one that the HTTP client uses, by the same variables and rules. No login is
//! shown.

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;

/// The variables of proxies by scheme, in the order of the client.
const HTTP: [&str; 2] = ["HTTP_PROXY", "http_proxy"];
const HTTPS: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const ALL: [&str; 2] = ["ALL_PROXY", "all_proxy"];
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// With this variable the client uses no proxy, as a header of a request could set `HTTP_PROXY`.
const CGI: &str = "REQUEST_METHOD";

/// The proxies for requests to a bucket.
#[derive(Debug)]
pub(crate) struct Proxies {
    matcher: Matcher,
    /// The variables of proxies that have a value.
    variables: Vec<String>,
    /// The variable of the hosts without proxy.
    except: String,
}

impl Proxies {
    /// The proxies of these variables; `prefix` is that of the provider's variables, such as `AWS_`.
    pub(crate) fn of(settings: &[(String, String)], prefix: &str) -> Self {
        let value = |wanted: &str| {
            let found = settings.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
        };
        let own = format!("{prefix}PROXY_URL");
        if let Some(proxy) = value(&own) {
            let except = format!("{prefix}PROXY_EXCLUDES");
            let hosts = value(&except).unwrap_or_default();
            let matcher = Matcher::builder().all(proxy).no(hosts).build();
            return Self { matcher, variables: vec![own], except };
        }
        if value(CGI).is_some() {
            let matcher = Matcher::builder().build();
            return Self { matcher, variables: Vec::new(), except: String::new() };
        }
        let first =
            |names: [&str; 2]| names.iter().find_map(|name| value(name)).unwrap_or_default();
        let matcher = Matcher::builder()
            .http(first(HTTP))
            .https(first(HTTPS))
            .all(first(ALL))
            .no(first(EXCEPT))
            .build();
        let is_set = |name: &&str| value(name).is_some();
        let variables = [HTTP, HTTPS, ALL].concat().into_iter().filter(is_set);
        let variables = variables.map(str::to_owned).collect();
        Self { matcher, variables, except: "no_proxy".to_owned() }
    }

    /// The proxy for requests to `uri`, with its variable; none without a proxy.
    pub(crate) fn through(&self, uri: &Uri) -> Option<Through<'_>> {
        let proxy = self.matcher.intercept(uri)?.uri().to_string();
        let of_scheme = if uri.scheme_str() == Some("https") { HTTPS } else { HTTP };
        let find = |names: &[&str]| {
            self.variables.iter().find(|variable| names.contains(&variable.as_str()))
        };
        let variable = find(&of_scheme).or_else(|| find(&ALL)).or(self.variables.first())?;
        Some(Through {
            proxy: proxy.trim_end_matches('/').to_owned(),
            variable,
            except: &self.except,
        })
    }
}

/// The proxy of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Through<'a> {
    pub(crate) proxy: String,
    /// The variable that names the proxy.
    pub(crate) variable: &'a str,
    /// The variable of the hosts without proxy.
    pub(crate) except: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(settings: &[(&str, &str)], uri: &str) -> Option<(String, String)> {
        let settings: Vec<_> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let proxies = Proxies::of(&settings, "AWS_");
        let through = proxies.through(&uri.parse().unwrap())?;
        Some((through.proxy, through.variable.to_owned()))
    }

    #[test]
    fn a_proxy_is_named_with_its_variable_and_no_login() {
        let (plain, tls) = ("http://store:9000/a", "https://store/a");
        for (settings, uri, expected) in [
            (&[][..], plain, None),
            (&[("http_proxy", "http://u:secret@p:1")], plain, Some(("http://p:1", "http_proxy"))),
            (&[("http_proxy", "http://p:1")], tls, None),
            (&[("HTTPS_PROXY", "p:1")], tls, Some(("http://p:1", "HTTPS_PROXY"))),
            (
                &[("https_proxy", "p:1"), ("all_proxy", "q:2")],
                plain,
                Some(("http://q:2", "all_proxy")),
            ),
            (&[("http_proxy", "p:1"), ("no_proxy", "store")], plain, None),
            (&[("http_proxy", "p:1"), ("REQUEST_METHOD", "GET")], plain, None),
            (
                &[("http_proxy", "p:1"), ("AWS_PROXY_URL", "http://q:2")],
                plain,
                Some(("http://q:2", "AWS_PROXY_URL")),
            ),
        ] {
            let expected = expected.map(|(proxy, name)| (proxy.to_owned(), name.to_owned()));
            assert_eq!(through(settings, uri), expected, "{settings:?} {uri}");
        }
    }
}
