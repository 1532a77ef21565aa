//! Pages that are one file in the program, made by `tools/build-page`: the chat page at `/`, and what `/docs` shows.
//!
//! The content security policy names the hash of a page's one script, so that nothing else runs, and lets it talk to this server only. On
//! the chat page no text can be read as HTML.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::LazyLock;

static CHAT: LazyLock<Page> = LazyLock::new(|| {
    Page::new(include_bytes!("../page/index.html.gz"), |style| {
        format!("style-src '{style}'; require-trusted-types-for 'script'; trusted-types 'none'")
    })
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
    CHAT.answer(&asked)
}

/// A document with one script and one style sheet, both within it.
pub(super) struct Page {
    gzip: &'static [u8],
    html: String,
    content_security: HeaderValue,
    etag: HeaderValue,
}

impl Page {
    /// `policy` gets the source of the style sheet, and adds directives for style sheets and others to those of all pages.
    ///
    /// # Panics
    /// If it is not one of the program's own pages.
    pub(super) fn new(gzip: &'static [u8], policy: impl Fn(&str) -> String) -> Self {
        let mut html = String::new();
        GzDecoder::new(gzip).read_to_string(&mut html).expect("the program's own page is whole");
        let source = |tag| format!("sha256-{}", hash(inner(&html, tag)));
        let content_security = format!(
            "default-src 'none'; script-src '{}'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'; {}",
            source("script"),
            policy(&source("style"))
        );
        let header = |text: String| HeaderValue::from_str(&text).expect("base64 is ASCII");
        // Weak: the same whether it is compressed or not.
        let etag = header(format!("W/\"{}\"", hash(&html)));
        Self { gzip, content_security: header(content_security), etag, html }
    }

    /// The page, or that the browser has it.
    pub(super) fn answer(&'static self, asked: &HeaderMap) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CONTENT_SECURITY_POLICY, self.content_security.clone()),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            // Asked for each time, and sent only when another version of the server has another page.
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (header::ETAG, self.etag.clone()),
            (header::VARY, HeaderValue::from(header::ACCEPT_ENCODING)),
        ];
        let of = |name: HeaderName| asked.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if has_tag(of(header::IF_NONE_MATCH), self.etag.to_str().unwrap_or_default()) {
            (StatusCode::NOT_MODIFIED, headers).into_response()
        } else if takes_gzip(of(header::ACCEPT_ENCODING)) {
            let encoding = (header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            (headers, [encoding], self.gzip).into_response()
        } else {
            (headers, self.html.as_str()).into_response()
        }
    }
}

/// Whether a list of entity tags, as `If-None-Match` has it, names this one.
fn has_tag(known: &str, etag: &str) -> bool {
    fn opaque(tag: &str) -> &str {
        tag.strip_prefix("W/").unwrap_or(tag)
    }
    known.split(',').map(str::trim).any(|tag| tag == "*" || opaque(tag) == opaque(etag))
}

/// Whether `Accept-Encoding` says that gzip may come.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        // A weight of 0 forbids it.
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        is_gzip && weight.is_none_or(|q| q.parse::<f32>().is_ok_and(|q| q > 0.0))
    })
}

/// What stands between the only two tags of this name.
fn inner<'a>(html: &'a str, tag: &str) -> &'a str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    html.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).expect("the page has the tag").0
}

/// SHA-256 in base64.
fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::openapi::DOCS;

    #[test]
    fn pages_are_one_file_with_one_script_and_one_style_sheet() {
        for page in [&*CHAT, &*DOCS] {
            let html = &page.html;
            for tag in ["<script", "<style", "</script", "</style"] {
                assert_eq!(html.matches(tag).count(), 1, "{tag}");
            }
            let markup = html.replace(inner(html, "script"), "").replace(inner(html, "style"), "");
            for foreign in ["<link rel=\"stylesheet", "src=", "https://"] {
                assert!(!markup.contains(foreign), "{foreign}");
            }
            assert!(!inner(html, "style").contains("@import"));
            let policy = page.content_security.to_str().expect("ASCII");
            assert!(policy.contains("default-src 'none'; script-src 'sha256-"), "{policy}");
        }
        let policy = CHAT.content_security.to_str().expect("ASCII");
        assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
        assert!(!CHAT.html.contains("eval("));
    }

    #[test]
    fn a_browser_that_has_the_page_is_told_so() {
        for (known, expected) in [
            ("\"a+b/c=\"", true),
            ("W/\"a+b/c=\"", true),
            ("\"x\", \"a+b/c=\"", true),
            ("*", true),
            ("\"x\"", false),
            ("", false),
        ] {
            assert_eq!(has_tag(known, "W/\"a+b/c=\""), expected, "{known}");
        }
    }

    #[test]
    fn what_a_client_takes_is_what_it_gets() {
        for (accepted, expected) in [
            ("gzip", true),
            ("gzip, deflate, br, zstd", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("br", false),
            ("identity", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(accepted), expected, "{accepted}");
        }
        let mut asked = HeaderMap::new();
        assert_eq!(CHAT.answer(&asked).headers().get(header::CONTENT_ENCODING), None);
        asked.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(CHAT.answer(&asked).headers()[header::CONTENT_ENCODING], "gzip");
    }
}
