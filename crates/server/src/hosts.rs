//! Which names a request may address the server by, and which pages may send it.
//!
//! A server that listens on loopback without a key trusts whoever reaches it, and a web page can reach it too: its
//! author lets the page's own name resolve to 127.0.0.1 (DNS rebinding), so that the browser takes the server for the
//! page's. Such requests carry that name in `Host`. So names other than this machine's are refused, and so are pages
//! of other origins that no `--cors` admits. An address cannot be rebound and passes.

use crate::config::Config;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The names and origins that a server answers.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// In lower case, without ports.
    names: Vec<String>,
    origins: Vec<String>,
}

impl Hosts {
    /// What is checked on a server that listens at `addresses`; `None` where every name passes.
    pub(crate) fn new(config: &Config, addresses: &[SocketAddr]) -> Option<Self> {
        let on_loopback = addresses.iter().all(|address| address.ip().is_loopback());
        let open_on_loopback = on_loopback && config.api_keys.is_empty();
        if !open_on_loopback && config.allowed_hosts.is_empty() {
            return None;
        }
        let names = config.allowed_hosts.iter().chain(&config.hosts);
        Some(Self { names: names.map(|name| canonical(name)).collect(), origins: config.cors.clone() })
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get_all(header::HOST).iter().map(|value| value.as_bytes());
        for host in named.chain(uri.authority().map(|authority| authority.as_str().as_bytes())) {
            if !host_of(host).is_some_and(|host| address_of(&host).is_some() || self.knows(&host)) {
                return Err(refused_host(&String::from_utf8_lossy(host)));
            }
        }
        for origin in headers.get_all(header::ORIGIN) {
            let text = String::from_utf8_lossy(origin.as_bytes());
            let listed = self.origins.iter().any(|o| o == "*" || *o == text);
            if !listed && !self.is_own_page(&text, headers) {
                return Err(refused_origin(&text));
            }
        }
        Ok(())
    }

    /// Whether an origin is a page of this server or of this machine.
    fn is_own_page(&self, origin: &str, headers: &HeaderMap) -> bool {
        let Some((_, authority)) = origin.split_once("://") else { return false };
        if headers
            .get(header::HOST)
            .is_some_and(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()))
        {
            return true;
        }
        let own = |host: String| match address_of(&host) {
            Some(address) => address.is_loopback(),
            None => self.knows(&host),
        };
        host_of(authority.as_bytes()).is_some_and(own)
    }

    /// Whether a name is this machine's or was allowed.
    fn knows(&self, host: &str) -> bool {
        host == "localhost" || host.ends_with(".localhost") || self.names.iter().any(|name| name == host)
    }
}

/// Refuses requests for other names and from other origins.
pub(crate) async fn check(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The name or address of `name:port`, as [`canonical`]; `None` if it is neither.
fn host_of(authority: &[u8]) -> Option<String> {
    let authority = Authority::try_from(authority).ok()?;
    // A user and password before the name would be a trick.
    (!authority.as_str().contains('@')).then(|| canonical(authority.host()))
}

fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn address_of(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).parse().ok()
}

fn refused_host(host: &str) -> ApiError {
    let message = format!(
        "this server does not answer to the name {host:?}; address it as localhost, or start it with --allowed-host NAME"
    );
    ApiError::refused(StatusCode::FORBIDDEN, "host_not_allowed", message)
}

fn refused_origin(origin: &str) -> ApiError {
    let message =
        format!("pages of {origin:?} may not use this server; start it with --cors ORIGIN to admit them");
    ApiError::refused(StatusCode::FORBIDDEN, "origin_not_allowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(change: impl FnOnce(&mut Config), address: &str) -> Option<Hosts> {
        let mut config = Config::default();
        change(&mut config);
        Hosts::new(&config, &[address.parse().expect("an address")])
    }

    fn status(hosts: &Hosts, host: &str, origin: Option<&str>) -> u16 {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a header"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("a header"));
        }
        hosts.check(&Uri::from_static("/health"), &headers).err().map_or(200, |e| e.status.as_u16())
    }

    #[test]
    fn only_names_of_this_machine_pass() {
        let hosts = hosts(|_| {}, "127.0.0.1:8080").expect("a check");
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "localhost.",
            "app.localhost:80",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.8.9.1:1",
            "[::1]",
            "[::1]:8080",
            "192.168.1.7:8080",
        ] {
            assert_eq!(status(&hosts, host, None), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "localhost@evil.example",
            "evil.example@localhost",
            "",
            "a b",
        ] {
            assert_eq!(status(&hosts, host, None), 403, "{host}");
        }
        let elsewhere = Uri::from_static("http://evil.example/health");
        assert!(hosts.check(&elsewhere, &HeaderMap::new()).is_err(), "the name in the request line counts");
        assert!(hosts.check(&Uri::from_static("/health"), &HeaderMap::new()).is_ok(), "HTTP/1.0 names none");
    }

    #[test]
    fn only_pages_of_this_machine_pass() {
        let hosts = hosts(|c| c.cors = vec!["https://app.example".into()], "[::1]:8080").expect("a check");
        for origin in [
            "http://localhost:8080",
            "http://localhost:3000",
            "http://127.0.0.1",
            "http://[::1]:8080",
            "https://app.example",
        ] {
            assert_eq!(status(&hosts, "localhost:8080", Some(origin)), 200, "{origin}");
        }
        for origin in
            ["https://evil.example", "null", "http://6.6.6.6", "https://app.example.evil.example", ""]
        {
            assert_eq!(status(&hosts, "localhost:8080", Some(origin)), 403, "{origin}");
        }
        // The page that the server itself delivers, by an address of a network.
        assert_eq!(status(&hosts, "192.168.1.7:8080", Some("http://192.168.1.7:8080")), 200);
    }

    #[test]
    fn what_asks_for_keys_or_serves_a_network_answers_to_all_names() {
        assert!(hosts(|_| {}, "0.0.0.0:8080").is_none());
        assert!(hosts(|c| c.api_keys = vec!["k".into()], "127.0.0.1:8080").is_none());
        let named =
            hosts(|c| c.allowed_hosts = vec!["Models.Example".into()], "0.0.0.0:8080").expect("a check");
        assert_eq!(status(&named, "models.example:8080", None), 200);
        assert_eq!(status(&named, "models.example:8080", Some("http://models.example")), 200);
        assert_eq!(status(&named, "evil.example", None), 403);
    }
}
