//! The address at which other agents of a job reach this agent.
//!
//! Must hold: without a configured address, an agent is reachable only at its machine's address on
//! the route to the servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::{TcpListener, UdpSocket, lookup_host};

/// The configured address for other agents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PeerAddress {
    /// The local address on the route to the servers, and any free port.
    #[default]
    OfServers,
    /// A host and a port of this machine, as other machines know them; port 0 for any free port.
    At(String, u16),
    /// Closed to other agents.
    Nowhere,
}

/// The endpoint of an agent for the other agents of its job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerConfig {
    /// The address for other agents.
    pub address: PeerAddress,
    /// Whether connections between agents use TLS.
    pub tls: PeerTls,
}

/// Whether agents of a job use TLS with each other; all agents of a job must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerTls {
    /// TLS if a server is reached by TLS.
    #[default]
    AsServers,
    /// Always.
    On,
    /// Never.
    Off,
}

impl PeerTls {
    pub(crate) fn is_on(self, servers: &[String]) -> bool {
        match self {
            Self::AsServers => servers.iter().any(|server| server.starts_with("https://")),
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// A text that is no valid [`PeerAddress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("type HOST, HOST:PORT, [IPv6]:PORT or none")]
pub struct InvalidPeerAddress;

impl FromStr for PeerAddress {
    type Err = InvalidPeerAddress;

    fn from_str(text: &str) -> Result<Self, InvalidPeerAddress> {
        if text == "none" {
            return Ok(Self::Nowhere);
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(InvalidPeerAddress)?;
                let _: Ipv6Addr = host.parse().map_err(|_| InvalidPeerAddress)?;
                (host, rest.strip_prefix(':').or(rest.is_empty().then_some("0")))
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("0")),
            },
        };
        let port = port.and_then(|port| port.parse().ok()).ok_or(InvalidPeerAddress)?;
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:_".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(InvalidPeerAddress);
        }
        Ok(Self::At(host.to_owned(), port))
    }
}

impl PeerAddress {
    /// Listens on the address; also returns `HOST:PORT` for other agents. None if closed to other
    /// agents.
    pub(crate) async fn listen(
        &self,
        servers: &[String],
    ) -> io::Result<Option<(TcpListener, String)>> {
        let (host, own, port) = match self {
            Self::Nowhere => return Ok(None),
            Self::OfServers => {
                let own = way_to(servers).await?;
                (own.to_string(), own, 0)
            }
            Self::At(host, port) => {
                let own = resolve(host, *port).await?.ip();
                // Some machines have their own name at 127.0.1.1, which no other machine can reach.
                let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok();
                let is_hidden = own.is_loopback() && !is_local;
                let own = if is_hidden { Ipv4Addr::UNSPECIFIED.into() } else { own };
                (host.clone(), own, *port)
            }
        };
        let listener = match TcpListener::bind((own, port)).await {
            // The name belongs to another machine, which forwards connections to this machine.
            Err(why) if why.kind() == io::ErrorKind::AddrNotAvailable => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?
            }
            bound => bound?,
        };
        let port = listener.local_addr()?.port();
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(Some((listener, format!("{host}:{port}"))))
    }
}

async fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    lookup_host((host, port)).await?.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The local address on the route to the first server with a known route.
async fn way_to(servers: &[String]) -> io::Result<IpAddr> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for server in servers {
        match way_to_one(server).await {
            Ok(own) => return Ok(own),
            Err(why) => failed = why,
        }
    }
    Err(failed)
}

async fn way_to_one(server: &str) -> io::Result<IpAddr> {
    let authority = server.split_once("://").map_or(server, |(_, rest)| rest);
    let authority = authority.split(['/', '?']).next().unwrap_or_default();
    let there = lookup_host(authority).await?.next().ok_or(io::ErrorKind::NotFound)?;
    let any: IpAddr = match there {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // UDP connect sends nothing: the kernel only chooses the local address.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(there).await?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let at = |host: &str, port| Ok(PeerAddress::At(host.to_owned(), port));
        let read = str::parse::<PeerAddress>;
        assert_eq!(read("none"), Ok(PeerAddress::Nowhere));
        assert_eq!(read("node-7.cluster"), at("node-7.cluster", 0));
        assert_eq!(read("10.0.0.7:9310"), at("10.0.0.7", 9310));
        assert_eq!(read("[fd00::7]:9310"), at("fd00::7", 9310));
        assert_eq!(read("[fd00::7]"), at("fd00::7", 0));
        for refused in ["", ":7", "a:b", "a:70000", "fd00::7", "[fd00::7", "[a]:1", "a b", "a/b"] {
            assert_eq!(read(refused), Err(InvalidPeerAddress), "{refused}");
        }
    }
}
