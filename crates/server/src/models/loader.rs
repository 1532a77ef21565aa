//! What the server asks of whoever knows where models come from.

use super::{LoadedModel, ModelFacts};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Brings models to their devices.
pub trait ModelLoader: Send + Sync + 'static {
    /// Loads the model of this name, the first of its [`ModelEntry`]. It may take long. `alone`: no other model is loaded, so that
    /// nothing can be unloaded to make room.
    ///
    /// Errors: [`LoadError`].
    fn load(&self, name: &str, alone: bool) -> Result<LoadedModel, LoadError>;
}

/// Why a model is not loaded; the text finishes "could not load the model because".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There is no room. Beside other models it is tried again after one of them is unloaded.
    #[error("{0}")]
    Memory(String),
    /// The server stopped before there was room.
    #[error("the server is about to stop")]
    ShuttingDown,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// A model that a server can load.
#[derive(Clone, Debug, Default)]
pub struct ModelEntry {
    /// Under which clients may ask for it; answers that choose one carry the first. At least one.
    pub names: Vec<String>,
    /// What is known of it before it is loaded.
    pub facts: ModelFacts,
    /// Longest sequence before it is loaded, in tokens, if it is known.
    pub context: Option<usize>,
    /// How long it stays loaded after its last request; `None`: as [`ModelLimits::keep_alive`] says.
    pub keep_alive: Option<KeepAlive>,
}

/// How many models stay loaded, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelLimits {
    /// Models that are loaded at the same time at most. Default: as many as memory holds.
    pub max_loaded: Option<usize>,
    /// How long a model stays loaded after its last request. Default: until its room is needed.
    pub keep_alive: KeepAlive,
}

/// How long a model stays loaded after its last request; forever by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// Longer than that is forever.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl KeepAlive {
    /// Not at all.
    pub const ZERO: Self = Self(Some(Duration::ZERO));

    /// A number of seconds; a negative one is forever.
    pub(crate) fn from_seconds(seconds: f64) -> Self {
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if duration <= LONGEST => Self(Some(duration)),
            _ => Self(None),
        }
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    /// As Ollama reads it: `300`, `5m`, `1h30m`, `500ms`; negative: forever.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a duration such as 300, 5m or 1h30m; a negative one means forever");
        if let Ok(seconds) = text.parse::<f64>() {
            return if seconds.is_nan() { Err(wrong()) } else { Ok(Self::from_seconds(seconds)) };
        }
        let (is_negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let number: f64 = rest[..n_digits].parse().map_err(|_| wrong())?;
            let after = &rest[n_digits..];
            let unit = &after[..after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len())];
            seconds += number
                * match unit {
                    "ms" => 1e-3,
                    "s" => 1.0,
                    "m" => 60.0,
                    "h" => 3600.0,
                    _ => return Err(wrong()),
                };
            rest = &after[unit.len()..];
        }
        match text.is_empty() {
            true => Err(wrong()),
            false => Ok(if is_negative { Self(None) } else { Self::from_seconds(seconds) }),
        }
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(duration) => write!(f, "{} s", duration.as_secs_f64()),
            None => f.write_str("forever"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_ollama_does() {
        for (text, ms) in [
            ("300", 300_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("0", 0),
            ("1.5s", 1_500),
        ] {
            assert_eq!(text.parse(), Ok(KeepAlive(Some(Duration::from_millis(ms)))), "{text}");
        }
        for forever in ["-1", "-1m", "1e30"] {
            assert_eq!(forever.parse(), Ok(KeepAlive(None)), "{forever}");
        }
        for wrong in ["", "m", "5x", "5 m", "NaN", "5m3", "-"] {
            let parsed = wrong.parse::<KeepAlive>();
            assert!(parsed.is_err() || wrong == "-", "{wrong}: {parsed:?}");
        }
    }
}
