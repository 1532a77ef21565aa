//! `/`: the chat page, which is one file in the program, made by `tools/build-page`.
//!
//! Its content security policy names the hashes of its one script and one style sheet, so that nothing else runs, lets it talk to
//! this server only, and lets no text be read as HTML.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const HTML: &str = include_str!("../page/index.html");

/// What browsers are told about the page.
struct Policy {
    content_security: HeaderValue,
    etag: HeaderValue,
}

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let (script, style) = (hash(inner(HTML, "script")), hash(inner(HTML, "style")));
    let content_security = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let header = |text: String| HeaderValue::from_str(&text).expect("base64 is ASCII");
    Policy { content_security: header(content_security), etag: header(format!("\"{}\"", hash(HTML))) }
});

/// A page to chat with the model and to watch the engine
#[utoipa::path(
    get, path = "/", tag = "operation",
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 304, description = "The browser has it already")
    )
)]
pub(crate) async fn page(asked: HeaderMap) -> Response {
    let policy = &*POLICY;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, policy.content_security.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Asked for each time, and sent only when another version of the server has another page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, policy.etag.clone()),
    ];
    let known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| matches(known, &policy.etag));
    if known { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, HTML).into_response() }
}

/// Whether a list of entity tags, as `If-None-Match` has it, names this one.
fn matches(known: &HeaderValue, etag: &HeaderValue) -> bool {
    let etag = etag.to_str().unwrap_or_default();
    let mut tags = known.to_str().unwrap_or_default().split(',').map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// What stands between the only two tags of this name.
fn inner<'a>(html: &'a str, tag: &str) -> &'a str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    html.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).expect("the page has the tag").0
}

/// SHA-256 in base64.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digest = Sha256::digest(text.as_bytes());
    let mut out = String::new();
    for bytes in digest.chunks(3) {
        let word = bytes.iter().enumerate().fold(0u32, |w, (i, &b)| w | u32::from(b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= bytes.len() { digit } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_other_programs() {
        // printf abc | openssl dgst -sha256 -binary | base64
        assert_eq!(hash("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        assert_eq!(hash(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn the_page_is_one_file_with_one_script_and_one_style_sheet() {
        for tag in ["<script", "<style", "</script", "</style"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
        for foreign in ["<link rel=\"stylesheet", "@import", "eval("] {
            assert!(!HTML.contains(foreign), "{foreign}");
        }
        let policy = POLICY.content_security.to_str().expect("ASCII");
        assert!(policy.contains("script-src 'sha256-"), "{policy}");
        assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
    }

    #[test]
    fn a_browser_that_has_the_page_is_told_so() {
        let etag = HeaderValue::from_static("\"a+b/c=\"");
        for (known, expected) in [
            ("\"a+b/c=\"", true),
            ("W/\"a+b/c=\"", true),
            ("\"x\", \"a+b/c=\"", true),
            ("*", true),
            ("\"x\"", false),
            ("", false),
        ] {
            assert_eq!(matches(&HeaderValue::from_static(known), &etag), expected, "{known}");
        }
    }
}
