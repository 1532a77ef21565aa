//! Reasoning at the beginning of an answer, between tags such as `<think>` and `</think>`, told apart from the answer while it comes.

use realizar_model::tokenizer::Tokenizer;

/// The texts around the reasoning of some models.
#[derive(Debug, PartialEq, Eq)]
pub struct Tags {
    /// Begins the reasoning.
    pub open: &'static str,
    /// Ends the reasoning.
    pub close: &'static str,
    /// The first token of `open`, where the vocabulary has it.
    pub token: &'static str,
}

impl Tags {
    const fn new(open: &'static str, close: &'static str) -> Self {
        Self { open, close, token: open }
    }
}

/// All tags: of most models, Gemma 4, Magistral and Ministral 3, Seed-OSS, Command R7B and A.
pub static TAGS: [Tags; 5] = [
    Tags::new("<think>", "</think>"),
    Tags { open: "<|channel>thought", close: "<channel|>", token: "<|channel>" },
    Tags::new("[THINK]", "[/THINK]"),
    Tags::new("<seed:think>", "</seed:think>"),
    Tags::new("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// The answer.
    Content(String),
}

/// The tags of the reasoning that a prompt ends within, which the answer then goes on with: some chat templates write the tag themselves.
pub fn open_in(prompt: &str) -> Option<&'static Tags> {
    TAGS.iter().find(|tags| prompt.trim_end().ends_with(tags.open))
}

/// The tags of the reasoning that is begun and not ended in a text.
pub fn unfinished_in(text: &str) -> Option<&'static Tags> {
    TAGS.iter().find(|tags| text.rfind(tags.open) > text.rfind(tags.close))
}

/// The tags of the reasoning that an answer may begin with: those that the chat template knows, unless the prompt says that there is none.
pub fn possible_after(prompt: &str, template: &str) -> Option<&'static Tags> {
    let is_over = |tags: &Tags| prompt.trim_end().ends_with(tags.close);
    TAGS.iter().find(|tags| template.contains(tags.open) && !is_over(tags))
}

/// Tags that the vocabulary has as control tokens, which would not be shown as text: the text for the parser has to show them.
pub fn shown_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = TAGS.iter().flat_map(|tags| [tags.token, tags.close]).filter_map(|tag| tokenizer.id_of(tag));
    ids.filter(|&id| tokenizer.is_special(id)).collect()
}

enum Place {
    /// Before anything but blanks and the tag's beginning.
    Start(String),
    /// Before the first character of the reasoning or of the content after it.
    Blanks {
        reasoning: bool,
    },
    /// In the reasoning; what is held may be the blanks and the tag at its end.
    Reasoning(String),
    Content,
}

/// Splits one answer. How its text is divided into pieces makes no difference.
///
/// Blanks next to the tags belong to neither side. Without a tag at its beginning all of an answer is content; a closing tag there says that
/// the model did not think.
pub struct ReasoningParser {
    place: Place,
    /// What ends the reasoning.
    close: &'static str,
    pieces: Vec<Piece>,
}

impl ReasoningParser {
    /// At an answer's beginning. `open`: what the prompt ends within ([`open_in`]).
    pub fn new(open: Option<&'static Tags>) -> Self {
        let (place, close) = match open {
            Some(tags) => (Place::Blanks { reasoning: true }, tags.close),
            None => (Place::Start(String::new()), TAGS[0].close),
        };
        Self { place, close, pieces: Vec::new() }
    }

    /// The reasoning is over without a tag; returns what was held back.
    pub fn end(&mut self) -> String {
        match std::mem::replace(&mut self.place, Place::Content) {
            Place::Start(held) | Place::Reasoning(held) => held,
            Place::Blanks { .. } | Place::Content => String::new(),
        }
    }

    /// Whether what comes next is part of the reasoning, as far as is known.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.place, Place::Blanks { reasoning: true } | Place::Reasoning(_))
    }

    /// Takes the next piece of the answer; returns what has become certain by it.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        text.chars().for_each(|c| self.take(c));
        std::mem::take(&mut self.pieces)
    }

    /// The rest, at the answer's end.
    pub fn finish(&mut self) -> Vec<Piece> {
        match std::mem::replace(&mut self.place, Place::Content) {
            Place::Start(held) => self.content(&held),
            // Unfinished reasoning ends with the beginning of a tag or with blanks, which say nothing.
            Place::Reasoning(held) if !self.close.starts_with(held.trim_start()) => self.reasoning(&held),
            Place::Reasoning(_) | Place::Blanks { .. } | Place::Content => {}
        }
        std::mem::take(&mut self.pieces)
    }

    fn take(&mut self, c: char) {
        self.place = match std::mem::replace(&mut self.place, Place::Content) {
            Place::Start(mut held) => {
                held.push(c);
                let rest = held.trim_start();
                if let Some(tags) = TAGS.iter().find(|tags| tags.open == rest) {
                    self.close = tags.close;
                    Place::Blanks { reasoning: true }
                } else if TAGS.iter().any(|tags| tags.close == rest) {
                    Place::Blanks { reasoning: false }
                } else if TAGS.iter().any(|tags| tags.open.starts_with(rest) || tags.close.starts_with(rest))
                {
                    Place::Start(held)
                } else {
                    self.content(&held);
                    Place::Content
                }
            }
            Place::Blanks { reasoning } if c.is_whitespace() => Place::Blanks { reasoning },
            Place::Blanks { reasoning: true } => {
                self.place = Place::Reasoning(String::new());
                return self.take(c);
            }
            Place::Blanks { reasoning: false } | Place::Content => {
                self.content(c.encode_utf8(&mut [0; 4]));
                Place::Content
            }
            Place::Reasoning(mut held) => {
                held.push(c);
                let rest = held.trim_start();
                if rest == self.close {
                    Place::Blanks { reasoning: false }
                } else {
                    // The longest end that may be blanks and the tag is held; what is before it is certain.
                    let keeps = |at: &usize| self.close.starts_with(held[*at..].trim_start());
                    let places = held.char_indices().map(|(at, _)| at).chain([held.len()]);
                    let from = places.into_iter().find(keeps).unwrap_or(held.len());
                    let kept = held.split_off(from);
                    self.reasoning(&held);
                    Place::Reasoning(kept)
                }
            }
        };
    }

    fn content(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Reasoning(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'a>(open: bool, pieces: impl IntoIterator<Item = &'a str>) -> (String, String) {
        let mut parser = ReasoningParser::new(open.then_some(&TAGS[0]));
        let mut all: Vec<Piece> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
        all.extend(parser.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in all {
            match piece {
                Piece::Reasoning(text) => {
                    assert!(content.is_empty(), "reasoning comes first");
                    reasoning += &text;
                }
                Piece::Content(text) => content += &text,
            }
        }
        (reasoning, content)
    }

    #[test]
    fn reasoning_is_told_from_the_answer_however_the_text_is_divided() {
        let cases = [
            (
                false,
                "<think>\nHm, 1 < 2.\n\nYes </thin> it is.\n</think>\n\nYes.",
                "Hm, 1 < 2.\n\nYes </thin> it is.",
                "Yes.",
            ),
            (true, "\nHm.\n</think>\n\nYes. <think>No</think>", "Hm.", "Yes. <think>No</think>"),
            (false, "Yes. <think>No</think>", "", "Yes. <think>No</think>"),
            (false, "\n<think></think>\n\nYes", "", "Yes"),
            (true, "cut o", "cut o", ""),
            (true, "cut off </thi", "cut off", ""),
            (false, "<thi", "", "<thi"),
            (false, " \n", "", " \n"),
            (false, "<think", "", "<think"),
            (
                false,
                "<|channel>thought\nI'm </think>\nthinking\n<channel|>Yes.",
                "I'm </think>\nthinking",
                "Yes.",
            ),
            (false, "<|channel>thought\n<channel|>Hello", "", "Hello"),
            (false, "<|channel>thought\ncut off <channel", "cut off", ""),
            (false, "<|channel>final", "", "<|channel>final"),
            (true, "größe </</think>é", "größe </", "é"),
            (false, "\n</think>\n\nYes", "", "Yes"),
            (false, "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
            (false, "<seed:think>Hm.</think></seed:think>\nYes.", "Hm.</think>", "Yes."),
            (false, "<|START_THINKING|>Hm.<|END_THINKING|>Yes.", "Hm.", "Yes."),
            (false, "", "", ""),
        ];
        for (open, text, reasoning, content) in cases {
            let expected = (reasoning.to_owned(), content.to_owned());
            assert_eq!(run(open, [text]), expected, "{text:?}");
            assert_eq!(run(open, text.split("")), expected, "{text:?} in single characters");
            for (at, _) in text.char_indices() {
                assert_eq!(run(open, [&text[..at], &text[at..]]), expected, "{text:?} divided at {at}");
            }
        }
    }

    #[test]
    fn a_prompt_may_begin_the_reasoning() {
        assert_eq!(open_in("<|Assistant|><think>\n"), Some(&TAGS[0]));
        assert_eq!(open_in("<|im_start|>assistant\n<think>\n\n</think>\n\n"), None);
        assert_eq!(open_in(""), None);
        let template = "… <seed:think> …";
        assert_eq!(possible_after("<bos>assistant\n", template), Some(&TAGS[3]));
        assert_eq!(possible_after("<bos>assistant\n<seed:think>0</seed:think>\n", template), None);
        assert_eq!(possible_after("", "…"), None);
        assert_eq!(unfinished_in("<think>a</think>b<think>c"), Some(&TAGS[0]));
        assert_eq!(unfinished_in("<think>a</think>b"), None);
    }
}
