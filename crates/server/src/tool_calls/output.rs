//! What a parser of tool calls has found so far.

use super::{Delta, IdStyle};

/// Where parsers put text and calls.
pub(super) struct Output {
    names: Vec<String>,
    ids: IdStyle,
    seed: u64,
    n_calls: usize,
    n_complete: usize,
    deltas: Vec<Delta>,
}

impl Output {
    /// `names`: of the tools that may be called. `seed`: of the calls' ids.
    pub(super) fn new(names: Vec<String>, ids: IdStyle, seed: u64) -> Self {
        Self { names, ids, seed, n_calls: 0, n_complete: 0, deltas: Vec::new() }
    }

    /// Whether a tool of this name may be called.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Text that is part of no call.
    pub(super) fn text(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Text(last)) => last.push_str(text),
            _ => self.deltas.push(Delta::Text(text.to_owned())),
        }
    }

    /// What the model thinks, where the syntax says that it does.
    pub(super) fn reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ => self.deltas.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// A call begins. `id`: the model's own, if it gave one.
    pub(super) fn begin(&mut self, name: &str, id: Option<String>) {
        let id = id.unwrap_or_else(|| self.ids.make(self.seed, self.n_calls));
        self.deltas.push(Delta::Call { index: self.n_calls, id, name: name.to_owned() });
        self.n_calls += 1;
    }

    /// More of the last call's arguments, as JSON text.
    pub(super) fn arguments(&mut self, fragment: &str) {
        match self.deltas.last_mut() {
            _ if fragment.is_empty() => {}
            Some(Delta::Arguments { fragment: last, .. }) => last.push_str(fragment),
            _ => {
                let index = self.n_calls.checked_sub(1).expect("a call has begun");
                self.deltas.push(Delta::Arguments { index, fragment: fragment.to_owned() });
            }
        }
    }

    /// The last call's arguments are complete.
    pub(super) fn end(&mut self) {
        self.n_complete += 1;
    }

    pub(super) fn n_calls(&self) -> usize {
        self.n_calls
    }

    pub(super) fn n_complete(&self) -> usize {
        self.n_complete
    }

    pub(super) fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }
}

/// Text up to the first of several markers.
pub(super) struct Until {
    markers: &'static [&'static str],
    /// The beginning of a marker.
    held: String,
}

impl Until {
    pub(super) fn new(markers: &'static [&'static str]) -> Self {
        Self { markers, held: String::new() }
    }

    /// Takes the next character: the text that is certain by now, and the marker that follows it, if it is complete.
    pub(super) fn push(&mut self, c: char) -> (String, Option<&'static str>) {
        self.held.push(c);
        // All but the longest end that may begin a marker is certain.
        let may_begin = |rest: &str| self.markers.iter().any(|marker| marker.starts_with(rest));
        let places = self.held.char_indices().map(|(at, _)| at);
        let from = places.into_iter().find(|&at| may_begin(&self.held[at..])).unwrap_or(self.held.len());
        let kept = self.held.split_off(from);
        let certain = std::mem::replace(&mut self.held, kept);
        let found = self.markers.iter().find(|marker| **marker == self.held).copied();
        if found.is_some() {
            self.held.clear();
        }
        (certain, found)
    }

    /// The whole is at its end: what was held back is text.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Text in which one of several markers may begin.
pub(super) struct TextBefore {
    until: Until,
    /// Blanks that belong to the text only if text follows.
    blanks: String,
}

impl TextBefore {
    pub(super) fn new(markers: &'static [&'static str]) -> Self {
        Self { until: Until::new(markers), blanks: String::new() }
    }

    /// Takes the next character; if it completes a marker, the marker with the blanks before it.
    ///
    /// Blanks between text and a call separate them and are part of neither.
    pub(super) fn push(&mut self, c: char, out: &mut Output) -> Option<String> {
        let (text, marker) = self.until.push(c);
        let end = text.trim_end().len();
        if end > 0 {
            out.text(&std::mem::take(&mut self.blanks));
            out.text(&text[..end]);
        }
        self.blanks.push_str(&text[end..]);
        marker.map(|marker| std::mem::take(&mut self.blanks) + marker)
    }

    /// The whole is at its end: what was held back is text.
    pub(super) fn finish(&mut self, out: &mut Output) {
        out.text(&std::mem::take(&mut self.blanks));
        out.text(&self.until.finish());
    }
}
