//! Connection settings for the address of a server.
//!
//! Must hold: a key never travels unencrypted to another machine without an explicit permission.
//! With https, the server has proved its name.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use dl_proto::{CLIENT_WINDOW_BYTES, FRAME_BYTES, STREAM_WINDOW_BYTES};
use dl_runtime::pem;
use rustls::RootCertStore;
use rustls::pki_types::TrustAnchor;
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::remote::failure::deepest;
use crate::remote::options::{ClientCertificate, ConnectOptions};

const DEFAULT_PORT: u16 = 7420;
/// Silence during a request after which the connection sends a ping.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(10);
/// Time for the answer to a ping, which waits behind up to half a MiB on a slow line.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

const NO_ADDRESS: &str = "not an address; write it as host:port";
const NO_LOGIN: &str =
    "an address has no login; give user and key with --user and --key-file (ConnectOptions)";

/// The settings for a server's address; plain text without a scheme.
pub(crate) fn endpoint(address: &str, options: &ConnectOptions) -> Result<Endpoint, String> {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(_) => return Err(NO_ADDRESS.to_owned()),
        None => ("http", address),
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if host.contains('@') {
        return Err(NO_LOGIN.to_owned());
    }
    if host.is_empty() || host.contains('/') {
        return Err(NO_ADDRESS.to_owned());
    }
    // A colon within brackets belongs to an IPv6 address.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            if name.is_empty() || port.parse::<u16>().is_err() {
                return Err(NO_ADDRESS.to_owned());
            }
            (name, String::new())
        }
        _ => (host, format!(":{DEFAULT_PORT}")),
    };
    if scheme == "http" && options.key.is_some() && !options.plain_text_key && !is_loopback(name) {
        return Err(format!(
            "the key would travel unencrypted; write https://{host}, or allow it by name \
             (--plain-text-key, ConnectOptions::plain_text_key)"
        ));
    }
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}{port}"))
        .map_err(|why| format!("not an address ({why}); write it as host:port"))?;
    let endpoint = if scheme == "https" {
        let tls = endpoint.tls_config(tls(options)?);
        tls.map_err(|error| unusable(&deepest(&error).to_string(), options))?
    } else {
        endpoint
    };
    Ok(endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CLIENT_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_AFTER)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT))
}

/// The cause of unusable TLS settings.
fn unusable(why: &str, options: &ConnectOptions) -> String {
    if options.ca.is_none() && why.contains("native certs") {
        return format!(
            "{why}: this machine trusts no certificates; name the server's (--ca, \
             ConnectOptions::ca)"
        );
    }
    if options.certificate.is_none() {
        return format!("TLS can't be used: {why}");
    }
    let hint = match why.contains("UnsupportedCertVersion") {
        true => "; use X.509 version 3, which openssl makes with -extfile",
        false => "",
    };
    format!("the client's certificate and key can't be used for TLS: {why}{hint}")
}

fn tls(options: &ConnectOptions) -> Result<ClientTlsConfig, String> {
    let tls = match &options.ca {
        Some(ca) => ClientTlsConfig::new().trust_anchors(trusted(ca)?),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(match &options.certificate {
        Some(ClientCertificate { certificate, key }) => {
            tls.identity(Identity::from_pem(certificate, key))
        }
        None => tls,
    })
}

/// The trust anchors of certificates; all of the text must be certificates.
fn trusted(text: &[u8]) -> Result<Vec<TrustAnchor<'static>>, String> {
    let refused = |why: &dyn Display| format!("the certificates to trust are none (PEM): {why}");
    let mut roots = RootCertStore::empty();
    for certificate in pem::certificates(text).map_err(|why| refused(&why))? {
        roots.add(certificate).map_err(|why| refused(&why))?;
    }
    Ok(roots.roots)
}

/// Whether a host is the local machine, without asking a resolver.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::options::masked;

    fn uri(address: &str) -> Result<String, String> {
        endpoint(address, &ConnectOptions::default()).map(|endpoint| endpoint.uri().to_string())
    }

    #[test]
    fn a_login_in_an_address_is_masked() {
        for (address, shown) in [
            ("https://ann:sesame@node1:9000", "https://***@node1:9000"),
            ("ann:sesame@node1", "***@node1"),
            ("ann:ses://ame@node1", "***@node1"),
            ("node1:9000", "node1:9000"),
        ] {
            assert_eq!(masked(address), shown);
        }
        let why = endpoint("ann:sesame@node1", &ConnectOptions::default()).unwrap_err();
        assert!(why.contains("--key-file") && !why.contains("sesame"), "{why}");
    }

    #[test]
    fn an_address_may_leave_out_scheme_and_port() {
        assert_eq!(uri("node1:9000").unwrap(), "http://node1:9000/");
        assert_eq!(uri("http://node1:9000/").unwrap(), "http://node1:9000/");
        assert_eq!(uri("node1").unwrap(), "http://node1:7420/");
        assert_eq!(uri("[::1]").unwrap(), "http://[::1]:7420/");
        assert_eq!(uri("[::1]:9000").unwrap(), "http://[::1]:9000/");
    }

    #[test]
    fn an_invalid_address_is_refused() {
        for address in
            ["", "http://", "ftp://node1:9000", "node 1:9000", "node1:9000/path", "a:b@node1:1"]
        {
            assert!(uri(address).is_err(), "{address}");
        }
    }

    #[test]
    fn a_key_leaves_the_machine_unencrypted_only_by_permission() {
        let key = Some("sesame".to_owned());
        let options = ConnectOptions { key, ..ConnectOptions::default() };
        for here in ["localhost", "127.0.0.1:9000", "127.9.9.9", "[::1]:9000", "[::ffff:127.0.0.1]"]
        {
            assert!(endpoint(here, &options).is_ok(), "{here}");
        }
        let allowed = ConnectOptions { plain_text_key: true, ..options.clone() };
        for elsewhere in
            ["node1", "http://10.0.0.1:7420", "127.0.0.1.example.org", "[::2]", "0.0.0.0"]
        {
            let refused = endpoint(elsewhere, &options).unwrap_err();
            assert!(refused.contains("https://") && !refused.contains("sesame"), "{refused}");
            assert!(endpoint(elsewhere, &allowed).is_ok(), "{elsewhere}");
        }
    }

    #[test]
    fn invalid_certificates_are_refused_and_not_shown() {
        let whole = "-----BEGIN CERTIFICATE-----\nc2VzYW1l\n-----END CERTIFICATE-----\n";
        for text in ["", "sesame", whole, &whole.replace('\n', ""), &whole.replace('\n', "\\n")] {
            let ca = Some(text.as_bytes().to_vec());
            let options = ConnectOptions { ca, ..ConnectOptions::default() };
            let refused = endpoint("https://node1", &options).unwrap_err();
            assert!(refused.starts_with("the certificates to trust are none"), "{refused}");
            assert!(!refused.contains("sesame") && !refused.contains("c2VzYW1l"), "{refused}");
            assert!(!refused.contains("[45, "), "{refused}");
        }
    }
}
