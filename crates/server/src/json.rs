//! The body of a request: bounded in size, memory and time, declared as JSON, and with an error that names the field.

use crate::app::App;
use crate::bodies::{Buffer, Share};
use crate::error::{ApiError, Result};
use crate::openai::{FormatFields, SamplingFields, TokenFields};
use crate::params::ParamFields;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// A body of this type.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self> {
        check_media_type(&request)?;
        let body = read(request, app).await?;
        parse(&body.bytes).map(Self)
    }
}

/// A web page of another origin may post anything but JSON without asking, so nothing else is taken from browsers, which name the
/// page's origin. Elsewhere no type, or the one that curl sends by itself, is read as JSON too.
fn check_media_type(request: &Request) -> Result<()> {
    let headers = request.headers();
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    let media = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let is_json =
        media == "application/json" || (media.starts_with("application/") && media.ends_with("+json"));
    let is_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let is_unsaid = matches!(media.as_str(), "" | "application/x-www-form-urlencoded");
    if is_json || (is_unsaid && !is_page) {
        return Ok(());
    }
    let message = format!("the body's Content-Type is {value:?}; send application/json");
    Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

async fn read(request: Request, app: &App) -> Result<Arrived> {
    let limit = app.config.max_body;
    let too_large = || {
        let message =
            format!("the body has more than {limit} bytes, which is the most that this server takes");
        ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(app.config.body_timeout, collect(request.into_body(), limit, app)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(Unread::TooLarge)) => Err(too_large()),
        Ok(Err(Unread::NoMemory)) => {
            let message = "the bodies of other requests take all memory for bodies; try again later";
            let error = ApiError::refused(StatusCode::TOO_MANY_REQUESTS, "body_memory", message);
            Err(ApiError { retry_after: Some(Duration::from_secs(1)), ..error })
        }
        Ok(Err(Unread::Broken(error))) => Err(ApiError::invalid(format!("could not read the body: {error}"))),
        Err(_) => {
            let seconds = app.config.body_timeout.as_secs_f64();
            let message = format!("the body did not arrive within {seconds} s");
            Err(ApiError::refused(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

/// A whole body and its share of the memory for bodies.
struct Arrived {
    bytes: Buffer,
    share: Share,
}

/// Why a body was not read to its end.
enum Unread {
    TooLarge,
    NoMemory,
    Broken(axum::Error),
}

async fn collect(mut body: Body, limit: usize, app: &App) -> std::result::Result<Arrived, Unread> {
    let mut arrived = Arrived { bytes: Buffer::default(), share: app.bodies.share() };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Unread::Broken)?;
        // Trailers say nothing here.
        let Some(data) = frame.data_ref() else { continue };
        if arrived.bytes.len() + data.len() > limit {
            return Err(Unread::TooLarge);
        }
        if !arrived.share.grow(data.len()) {
            return Err(Unread::NoMemory);
        }
        arrived.bytes.push(data).map_err(|_| Unread::NoMemory)?;
    }
    Ok(arrived)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    if let Err(error) = std::str::from_utf8(bytes) {
        let at = error.valid_up_to();
        return Err(
            ApiError::invalid(format!("the body is not UTF-8: byte {at} is wrong")).code("invalid_utf8")
        );
    }
    let error = match path_parse::<T>(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if error.inner().classify() != serde_json::error::Category::Data {
        return Err(
            ApiError::invalid(format!("the body is not valid JSON: {}", error.inner())).code("invalid_json")
        );
    }
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("the body must be a JSON object").code("invalid_type"));
    }
    // Fields that several requests share are flattened into them, which loses their names.
    let flattened = || {
        [
            path_parse::<ParamFields>(bytes).err(),
            path_parse::<TokenFields>(bytes).err(),
            path_parse::<FormatFields>(bytes).err(),
            path_parse::<SamplingFields>(bytes).err(),
        ]
    };
    let error = match name(&error) {
        Some(_) => error,
        None => flattened().into_iter().flatten().find(|e| name(e).is_some()).unwrap_or(error),
    };
    let reason = reason(error.inner());
    Err(match name(&error) {
        Some(field) => ApiError::invalid_param(&field, format!("{field}: {reason}")).code("invalid_type"),
        None => ApiError::invalid(reason).code("invalid_type"),
    })
}

type PathError = serde_path_to_error::Error<serde_json::Error>;

fn path_parse<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, PathError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json)?;
    json.end().map_err(|error| PathError::new(serde_path_to_error::Track::new().path(), error))?;
    Ok(value)
}

/// The field's name as `messages[2].role`.
fn name(error: &PathError) -> Option<String> {
    let path = error.path().to_string();
    (!path.is_empty() && path != "." && path != "?").then_some(path)
}

/// What is wrong, without the place in the text, which says little when the field has a name.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rfind(" at line ").map_or(text.clone(), |end| text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::CompletionRequest;

    #[track_caller]
    fn refused(body: &[u8], param: Option<&str>, part: &str) {
        let error = parse::<CompletionRequest>(body).expect_err("an error");
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, param), "{}", error.message);
        assert!(error.message.contains(part), "{part:?} in {:?}", error.message);
    }

    #[test]
    fn a_wrong_type_names_its_field() {
        refused(br#"{"prompt": 5}"#, Some("prompt"), "expected");
        refused(br#"{"prompt": "a", "temperature": "hot"}"#, Some("temperature"), "invalid type: string");
        refused(br#"{"prompt": "a", "max_tokens": -1}"#, Some("max_tokens"), "-1");
        refused(br#"{"prompt": "a", "logit_bias": {"5": "x"}}"#, Some("logit_bias.5"), "invalid type");
        refused(
            br#"{"prompt": "a", "stream_options": {"include_usage": 1}}"#,
            Some("stream_options.include_usage"),
            "",
        );
    }

    #[test]
    fn what_is_not_json_is_said_so() {
        for body in [
            &b"{"[..],
            b"",
            b"{\"prompt\": \"a\"} x",
            b"{'prompt': 1}",
            b"{\"prompt\": \"a\", \"temperature\": NaN}",
        ] {
            refused(body, None, "not valid JSON");
        }
        refused(b"{\"prompt\": \"\xff\"}", None, "byte 12");
        refused(br#"[1]"#, None, "must be a JSON object");
        refused(br#"{}"#, None, "missing field `prompt`");
    }

    #[test]
    fn unknown_fields_and_nulls_are_passed_over() {
        let body =
            br#"{"prompt": "a", "temperature": null, "stop": null, "something_else": {"x": 1}, "user": "u"}"#;
        assert!(parse::<CompletionRequest>(body).is_ok());
    }
}
