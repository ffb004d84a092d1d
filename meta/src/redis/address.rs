//! Addresses of Redis: read from a URL, shown without the password.
//!
//! Must hold: no text from here, and no error about an address, shows a password.

use std::fmt;
use std::sync::Arc;

use dl_runtime::address::{self, TlsFiles};

/// A Redis process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Node {
    /// Reads `HOST:PORT`. The host is `asked` if empty, as in answers of a Redis without an own name.
    pub(super) fn parse(text: &str, asked: Option<&Self>) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok().filter(|port| *port != 0)?;
        if host.is_empty() {
            return Some(Self { host: Arc::clone(&asked?.host), port });
        }
        Some(Self { host: host.into(), port })
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A single Redis, or some nodes of a Redis Cluster.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) nodes: Vec<Node>,
    pub(super) is_cluster: bool,
    pub(super) is_tls: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) files: TlsFiles,
}

/// The forms of an address.
pub(crate) const FORMS: &str = "redis://[USER:PASSWORD@]HOST:PORT[/DB] or \
     redis-cluster://[USER:PASSWORD@]HOST:PORT,HOST:PORT,... (rediss:// and rediss-cluster:// \
     with TLS, [?ca=FILE&cert=FILE&key=FILE])";

impl Address {
    /// Reads an address; none for the address of another store.
    ///
    /// # Errors
    /// The problem with the address, without its password.
    pub(super) fn parse(url: &str) -> Option<Result<Self, String>> {
        let (scheme, rest) = url.split_once("://")?;
        let (is_cluster, is_tls) = match scheme {
            "redis" => (false, false),
            "rediss" => (false, true),
            "redis-cluster" => (true, false),
            "rediss-cluster" => (true, true),
            _ => return None,
        };
        Some(Self::read(rest, is_cluster, is_tls))
    }

    fn read(rest: &str, is_cluster: bool, is_tls: bool) -> Result<Self, String> {
        // The last `@`: a password may hold more of them.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(a, b)| (a, Some(b)));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes: Option<Vec<_>> = hosts.split(',').map(|host| Node::parse(host, None)).collect();
        let nodes = nodes.ok_or("where it is, is not HOST:PORT")?;
        if !is_cluster && nodes.len() > 1 {
            return Err(
                "a single Redis has one HOST:PORT; a cluster is redis-cluster://".to_owned()
            );
        }
        let database = match path {
            "" => 0,
            _ if is_cluster => return Err("a Redis Cluster has no numbered databases".to_owned()),
            path => match path.parse::<i64>() {
                Ok(number) if number >= 0 => number,
                _ => return Err(format!("{path:?} is not the number of a database")),
            },
        };
        let files = TlsFiles::read(query, is_tls)?;
        let (user, password) = login.map(address::login).transpose()?.unwrap_or_default();
        let [user, password] = [user, password].map(|text| Some(text).filter(|t| !t.is_empty()));
        Ok(Self { nodes, is_cluster, is_tls, user, password, database, files })
    }
}

/// The URL, with `***` for the password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tls, cluster) =
            (if self.is_tls { "s" } else { "" }, if self.is_cluster { "-cluster" } else { "" });
        write!(f, "redis{tls}{cluster}://")?;
        if self.password.is_some() || self.user.is_some() {
            write!(f, "{}:***@", self.user.as_deref().unwrap_or_default())?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{node}")?;
        }
        if !self.is_cluster {
            write!(f, "/{}", self.database)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

/// `url` without its login, for errors about an unreadable address. Without a host, any part may be secret.
pub fn without_login(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}"),
        (None, Some((_, rest))) => format!("***@{rest}"),
        (Some((scheme, _)), None) => format!("{scheme}://..."),
        (None, None) => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, String> {
        Address::parse(url).expect("an address of Redis")
    }

    #[test]
    fn an_address_says_where_and_as_whom() {
        let address = read("rediss://us%65r:p%40s:s@w0rd@h:7/3?ca=/etc/ca.pem").unwrap();
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("user"), Some("p@s:s@w0rd"))
        );
        assert_eq!((address.is_tls, address.is_cluster, address.database), (true, false, 3));
        assert_eq!(address.files, TlsFiles { ca: Some("/etc/ca.pem".into()), client: None });
        assert!(read("rediss://h:1?key=/k.pem&cert=/c.pem").unwrap().files.client.is_some());
        let address = read("redis-cluster://:secret@a:1,b:2,[::1]:3").unwrap();
        let nodes: Vec<_> = address.nodes.iter().map(Node::to_string).collect();
        assert_eq!(
            (nodes, address.user),
            (vec!["a:1".into(), "b:2".into(), "[::1]:3".to_owned()], None)
        );
        assert!(Address::parse("memory:").is_none() && Address::parse("http://h:1").is_none());
    }

    #[test]
    fn what_is_shown_never_has_the_password() {
        for url in [
            "redis://u:s3cret@h:1/2",
            "redis-cluster://:s3cret@h:1,i:2",
            "rediss://:s3c%72et@h:1",
            "redis://u:s3cret@h",
            "redis://u:s3cret",
            "redis://u:s3cret/h:1",
            "redis://s3cret@h:1",
            "redis://u:s3cret%zz@h:1",
            "redis://u:s3cret@h:1/x",
            "redis://u:s3cret@h:1?x=y",
        ] {
            let read = read(url).map(|address| format!("{address} {address:?}"));
            let shown = format!("{read:?} {}", without_login(url));
            assert!(!shown.contains("s3c"), "{shown}");
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        for url in [
            "redis://",
            "redis://h",
            "redis://h:0",
            "redis://h:1,i:2",
            "redis://h:1/-1",
            "redis-cluster://h:1/1",
            "redis://h:1?ca=x",
            "redis://h:1?cert=x&key=y",
            "rediss://h:1?cert=x",
            "rediss://h:1?ca=x&other=y",
        ] {
            assert!(read(url).is_err(), "{url}");
        }
    }
}
