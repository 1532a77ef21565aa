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

/// Text in which a marker may begin.
pub(super) struct TextBefore {
    marker: &'static str,
    /// Blanks that belong to the text only if text follows, and the beginning of a marker.
    blanks: String,
    held: String,
}

impl TextBefore {
    pub(super) fn new(marker: &'static str) -> Self {
        Self { marker, blanks: String::new(), held: String::new() }
    }

    /// Takes the next character; if it completes the marker, the marker with the blanks before it.
    ///
    /// Blanks between text and a call separate them and are part of neither.
    pub(super) fn push(&mut self, c: char, out: &mut Output) -> Option<String> {
        self.held.push(c);
        while !self.marker.starts_with(&self.held) {
            let first = self.held.remove(0);
            self.blanks.push(first);
            if !first.is_whitespace() {
                out.text(&std::mem::take(&mut self.blanks));
            }
        }
        if self.held != self.marker {
            return None;
        }
        self.blanks.push_str(&std::mem::take(&mut self.held));
        Some(std::mem::take(&mut self.blanks))
    }

    /// The whole is at its end: what was held back is text.
    pub(super) fn finish(&mut self, out: &mut Output) {
        out.text(&std::mem::take(&mut self.blanks));
        out.text(&std::mem::take(&mut self.held));
    }
}
