//! API keys.

use crate::app::App;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::hint::black_box;
use std::sync::Arc;

/// Who asks: the number of its key, if the server has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) key: Option<usize>,
}

/// Lets requests through that show one of the keys, and notes which.
pub(crate) async fn check(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let keys = &app.config.api_keys;
    let key = match (keys.is_empty(), shown(request.headers())) {
        (true, _) => None,
        (false, None) => {
            let message =
                "this server needs an API key; send it as Authorization: Bearer KEY or X-Api-Key: KEY";
            return ApiError::unauthorized(message).into_response();
        }
        (false, Some(shown)) => match find(keys, shown) {
            None => return ApiError::unauthorized("the API key is wrong").into_response(),
            key => key,
        },
    };
    request.extensions_mut().insert(Caller { key });
    next.run(request).await
}

/// The key in a request's headers: behind `Bearer`, or in `X-Api-Key`.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = |value: &[u8]| value.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    match headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()) {
        Some(value) if bearer(value) => Some(value[7..].trim_ascii()),
        _ => headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()),
    }
}

/// The number of a key, in a time that depends on how long it is and not on where it differs from the keys.
fn find(keys: &[String], shown: &[u8]) -> Option<usize> {
    let mut found = None;
    for (i, key) in keys.iter().enumerate() {
        if is_equal(key.as_bytes(), shown) {
            found = Some(i);
        }
    }
    found
}

fn is_equal(key: &[u8], shown: &[u8]) -> bool {
    let mut difference = key.len() ^ shown.len();
    for (i, &byte) in shown.iter().enumerate() {
        // Past the key's end it goes on with any byte; the lengths differ already.
        let own = key.get(i % key.len().max(1)).copied().unwrap_or(0);
        difference = black_box(difference | usize::from(own ^ byte));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_a_key() {
        let keys = ["alpha".to_owned(), "beta".to_owned()];
        assert_eq!(find(&keys, b"beta"), Some(1));
        for wrong in [&b"bet"[..], b"beta ", b"betabeta", b"", b"alphaalpha", b"Alpha"] {
            assert_eq!(find(&keys, wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_key_stands_behind_bearer_or_in_a_header_of_its_own() {
        let mut headers = HeaderMap::new();
        assert_eq!(shown(&headers), None);
        for (value, key) in
            [("Bearer k", Some("k")), ("bearer  k ", Some("k")), ("Basic k", None), ("k", None)]
        {
            headers.insert(header::AUTHORIZATION, value.parse().expect("a header"));
            assert_eq!(shown(&headers), key.map(str::as_bytes), "{value:?}");
        }
        headers.insert("x-api-key", "other".parse().expect("a header"));
        assert_eq!(shown(&headers), Some(&b"other"[..]), "where Authorization has no key");
        headers.insert(header::AUTHORIZATION, "Bearer k".parse().expect("a header"));
        assert_eq!(shown(&headers), Some(&b"k"[..]));
    }
}
