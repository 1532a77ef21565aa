//! A small HTTP client that keeps its connections: one task drives many streams.

use super::sse::SseReader;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Bytes of an answer that is not streamed, at most.
const MAX_BODY: usize = 64 << 20;

/// A server, and the connections to it that are free.
pub(super) struct Client {
    /// `http://host:port`, without a path.
    authority: String,
    /// Host and port.
    address: String,
    host: HeaderValue,
    /// What stands before `/v1`.
    base: String,
    authorization: Option<HeaderValue>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// What became of a completion.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// From the start to the first token's arrival.
    pub(super) first_token: Option<Duration>,
    /// From each token's arrival to the next one's.
    pub(super) gaps: Vec<Duration>,
    /// As the server counts.
    pub(super) prompt_tokens: usize,
    /// Of the prompt, found in the server's cache.
    pub(super) cached_tokens: usize,
    /// As the server counts, or events with text where it does not.
    pub(super) output_tokens: usize,
    /// Why there is no whole answer.
    pub(super) error: Option<String>,
}

/// What is read of an event.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<ErrorDetail>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    #[serde(default)]
    cached_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: String,
}

impl Client {
    /// Reads an address such as `http://127.0.0.1:8080`; a `/v1` at its end may be there or not.
    ///
    /// Errors: it is not an address, or one of https.
    pub(super) fn new(url: &str, api_key: Option<&str>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|e| format!("{url:?} is not an address: {e}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{url} asks for https, but only plain http is spoken here; measure the server behind the proxy that \
                     ends TLS, or through a tunnel"
                ));
            }
            _ => return Err(format!("{url:?} is not an address such as http://127.0.0.1:8080")),
        }
        let authority = uri.authority().ok_or_else(|| format!("{url:?} names no host"))?;
        let host =
            HeaderValue::from_str(authority.as_str()).map_err(|_| format!("{authority} is not a host"))?;
        let authorization = match api_key {
            None => None,
            Some(key) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                    .map_err(|_| "the key has characters that a header cannot have".to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let base = uri.path().trim_end_matches('/');
        Ok(Self {
            authority: format!("http://{authority}"),
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            host,
            base: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            authorization,
            idle: Mutex::default(),
        })
    }

    /// The address without what may be left out.
    pub(super) fn url(&self) -> String {
        format!("{}{}", self.authority, self.base)
    }

    /// Asks for a page of JSON.
    pub(super) async fn json<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, String> {
        let (response, sender) = self.send(method, path, body).await?;
        let status = response.status();
        let body = self.whole(response).await?;
        self.put_back(sender);
        if status != StatusCode::OK {
            return Err(refusal(status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|e| format!("{path} answered with something else than expected: {e}"))
    }

    /// Sends a streamed completion and follows it to its end. Times count from `start`.
    pub(super) async fn complete(&self, body: Bytes, start: Instant, timeout: Duration) -> Outcome {
        let mut outcome = Outcome::default();
        let followed = tokio::time::timeout(timeout, self.follow(body, start, &mut outcome)).await;
        let done = followed.unwrap_or_else(|_| Err(format!("no end after {} s", timeout.as_secs_f64())));
        outcome.error = done.err();
        outcome
    }

    async fn follow(&self, body: Bytes, start: Instant, outcome: &mut Outcome) -> Result<(), String> {
        let (response, sender) = self.send(Method::POST, "/v1/completions", body).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = self.whole(response).await?;
            self.put_back(sender);
            return Err(refusal(status, &body));
        }
        let mut body = response.into_body();
        let (mut reader, mut last, mut done) = (SseReader::default(), None::<Instant>, false);
        let (mut n_events, mut counted) = (0, None);
        while let Some(frame) = body.frame().await {
            let now = Instant::now();
            let frame = frame.map_err(|e| format!("the connection broke off: {}", in_words(&e)))?;
            let Some(bytes) = frame.data_ref() else { continue };
            reader.push(bytes, |data| {
                if data == b"[DONE]" {
                    done = true;
                    return Ok(());
                }
                let event: Event<'_> =
                    serde_json::from_slice(data).map_err(|e| format!("an event is not as expected: {e}"))?;
                if let Some(error) = event.error {
                    return Err(error.message);
                }
                counted = event.usage.or(counted.take());
                if event.choices.iter().any(|c| c.text.as_ref().is_some_and(|t| !t.is_empty())) {
                    n_events += 1;
                    match last.replace(now) {
                        None => outcome.first_token = Some(now - start),
                        Some(before) => outcome.gaps.push(now - before),
                    }
                }
                Ok(())
            })?;
        }
        outcome.output_tokens = n_events;
        if let Some(usage) = counted {
            outcome.prompt_tokens = usage.prompt_tokens;
            outcome.output_tokens = usage.completion_tokens;
            outcome.cached_tokens = usage.prompt_tokens_details.and_then(|d| d.cached_tokens).unwrap_or(0);
        }
        if !done {
            return Err("the stream ended before its [DONE]".to_owned());
        }
        self.put_back(sender);
        Ok(())
    }

    /// Sends a request over a free connection, or a new one.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), String> {
        loop {
            let idle = self.idle.lock().expect("nobody panics with the lock").pop();
            let is_old = idle.is_some();
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            if sender.ready().await.is_ok() {
                let request = self.request(&method, path, body.clone())?;
                match sender.send_request(request).await {
                    Ok(response) => return Ok((response, sender)),
                    // The server may close a connection just when it is used again; such a request was not begun.
                    Err(e) if is_old && (e.is_canceled() || e.is_incomplete_message() || e.is_closed()) => {}
                    Err(e) => return Err(format!("the connection broke off: {}", in_words(&e))),
                }
            } else if !is_old {
                return Err(format!("{} closed the connection", self.address));
            }
        }
    }

    fn request(&self, method: &Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(HOST, &self.host)
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).map_err(|e| e.to_string())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let could_not = |e: &dyn std::fmt::Display| format!("could not connect to {}: {e}", self.address);
        let stream = TcpStream::connect(&self.address).await.map_err(|e| could_not(&e))?;
        stream.set_nodelay(true).map_err(|e| could_not(&e))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| could_not(&e))?;
        // Its end is seen by the next request.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn put_back(&self, sender: SendRequest<Full<Bytes>>) {
        self.idle.lock().expect("nobody panics with the lock").push(sender);
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, String> {
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        body.map(|b| b.to_bytes()).map_err(|e| format!("the answer broke off: {e}"))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => format!("{}: {}", status.as_u16(), body.error.message),
        Err(_) => status.to_string(),
    }
}

/// An error of hyper with its cause, which has the reason.
fn in_words(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_v1() {
        for (url, address, base) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", ""),
            ("http://localhost/", "localhost:80", ""),
            ("http://host:1/v1/", "host:1", ""),
            ("http://host:1/a/v1", "host:1", "/a"),
            ("http://[::1]:8080/v1", "[::1]:8080", ""),
        ] {
            let client = Client::new(url, None).expect(url);
            assert_eq!((client.address.as_str(), client.base.as_str()), (address, base), "{url}");
        }
        for (url, part) in [
            ("https://host", "only plain http"),
            ("host:8080", "such as"),
            ("", "not an address"),
            ("/v1", "such as"),
        ] {
            let error = Client::new(url, None).err().expect(url);
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
