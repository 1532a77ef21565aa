//! What a tokenizer puts around a text, and around and between two: the post-processor of tokenizer.json.

use super::load_json::{Component, unsupported};
use super::pair::Pair;
use super::{Result, Vocabulary};
use serde_json::Value;

/// Special tokens around texts.
pub(super) struct Around {
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
    /// `None` where two texts are put together in a way that [`Pair`] cannot say.
    pub(super) pair: Option<Pair>,
}

impl Default for Around {
    fn default() -> Self {
        Self { prefix: Vec::new(), suffix: Vec::new(), pair: Some(Pair::default()) }
    }
}

impl Around {
    /// Adds what a post-processor puts around texts.
    pub(super) fn read(&mut self, json: &Value, vocabulary: &Vocabulary) -> Result<()> {
        let part = Component::new("post-processor", json)?;
        match part.name {
            "Sequence" => part.list("processors")?.iter().try_for_each(|json| self.read(json, vocabulary))?,
            // Moves offsets only.
            "ByteLevel" => {}
            "TemplateProcessing" => self.read_template(&part, vocabulary)?,
            "BertProcessing" | "RobertaProcessing" => {
                let (cls, sep) = (named(&part, "cls", vocabulary)?, named(&part, "sep", vocabulary)?);
                self.prefix.insert(0, cls);
                self.suffix.push(sep);
                let (between, n_first) = match part.name {
                    "BertProcessing" => (vec![sep], Some(1)),
                    _ => (vec![sep, sep], None),
                };
                self.pair = Some(Pair { before: vec![cls], between, after: vec![sep], n_first });
            }
            _ => return part.unsupported(),
        }
        Ok(())
    }

    fn read_template(&mut self, part: &Component<'_>, vocabulary: &Vocabulary) -> Result<()> {
        let single = items(part, "single", vocabulary)?;
        let n_texts = single.iter().filter(|item| item.tokens.is_none()).count();
        if n_texts != 1 {
            let name = format!("TemplateProcessing with {n_texts} texts");
            return Err(unsupported("post-processor", name));
        }
        let mut parts = single.split(|item| item.tokens.is_none()).map(joined);
        let (mut before, mut after) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        before.append(&mut self.prefix);
        self.prefix = before;
        self.suffix.append(&mut after);
        self.pair = match part.json.get("pair").and_then(Value::as_array) {
            Some(_) => pair(&items(part, "pair", vocabulary)?),
            None => None,
        };
        Ok(())
    }
}

/// A part of a template.
struct Item {
    /// The ids of a special token; `None` stands for a text.
    tokens: Option<Vec<u32>>,
    /// Whether the text is the second of two.
    is_second: bool,
    token_type: u64,
}

fn items(part: &Component<'_>, field: &str, vocabulary: &Vocabulary) -> Result<Vec<Item>> {
    let item = |json: &Value| {
        let token_type = |json: &Value| json.get("type_id").and_then(Value::as_u64).unwrap_or(0);
        if let Some(text) = json.get("Sequence") {
            let is_second = text.get("id").and_then(Value::as_str) == Some("B");
            return Ok(Item { tokens: None, is_second, token_type: token_type(text) });
        }
        let special = json.get("SpecialToken");
        let name = special.and_then(|special| special.get("id")?.as_str());
        let name = name.ok_or_else(|| part.wrong(field, "a list of tokens and sequences"))?;
        let ids = part.json.get("special_tokens").and_then(|all| all.get(name)?.get("ids")?.as_array());
        let ids = ids.ok_or_else(|| part.wrong("special_tokens", &format!("a list with {name:?}")))?;
        let id = |id: &Value| {
            known(id, vocabulary)
                .ok_or_else(|| part.wrong(&format!("the id of {name:?}"), "a token of the vocabulary"))
        };
        let tokens = ids.iter().map(id).collect::<Result<_>>()?;
        Ok(Item { tokens: Some(tokens), is_second: false, token_type: special.map_or(0, token_type) })
    };
    part.list(field)?.iter().map(item).collect()
}

fn known(id: &Value, vocabulary: &Vocabulary) -> Option<u32> {
    u32::try_from(id.as_u64()?).ok().filter(|&id| vocabulary.text(id).is_some())
}

/// A token that a field gives as its text and its id.
fn named(part: &Component<'_>, field: &str, vocabulary: &Vocabulary) -> Result<u32> {
    let id = part.json.get(field).and_then(|pair| known(pair.get(1)?, vocabulary));
    id.ok_or_else(|| part.wrong(field, "a token of the vocabulary with its id"))
}

fn joined(items: &[Item]) -> Vec<u32> {
    items.iter().filter_map(|item| item.tokens.as_deref()).flatten().copied().collect()
}

/// The first text before the second, and all of type 0 before all of type 1; `None` for anything else.
fn pair(items: &[Item]) -> Option<Pair> {
    let texts: Vec<usize> = (0..items.len()).filter(|&i| items[i].tokens.is_none()).collect();
    let &[a, b] = &texts[..] else { return None };
    let types = items.iter().map(|item| item.token_type);
    if items[a].is_second
        || !items[b].is_second
        || !types.clone().is_sorted()
        || types.clone().max() > Some(1)
    {
        return None;
    }
    let n_first_items = types.filter(|&kind| kind == 0).count();
    if n_first_items <= a || (b < n_first_items && n_first_items < items.len()) {
        return None;
    }
    Some(Pair {
        before: joined(&items[..a]),
        between: joined(&items[a + 1..b]),
        after: joined(&items[b + 1..]),
        n_first: (n_first_items <= b).then(|| joined(&items[a + 1..n_first_items]).len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TokenKind;
    use serde_json::json;

    fn read(json: &Value) -> Around {
        let mut vocabulary = Vocabulary::default();
        for (id, text) in ["[CLS]", "[SEP]", "a"].iter().enumerate() {
            vocabulary.insert(text, id as u32, TokenKind::Control).unwrap();
        }
        let mut around = Around::default();
        around.read(json, &vocabulary).unwrap();
        around
    }

    fn template(pair: Value) -> Value {
        let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        json!({
            "type": "TemplateProcessing",
            "single": [special("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, special("[SEP]")],
            "pair": pair,
            "special_tokens": {"[CLS]": {"ids": [0]}, "[SEP]": {"ids": [1]}},
        })
    }

    fn special(name: &str, kind: u32) -> Value {
        json!({"SpecialToken": {"id": name, "type_id": kind}})
    }

    fn text(name: &str, kind: u32) -> Value {
        json!({"Sequence": {"id": name, "type_id": kind}})
    }

    #[test]
    fn a_template_says_what_is_around_and_between_two_texts_and_where_the_second_type_begins() {
        let bert =
            [special("[CLS]", 0), text("A", 0), special("[SEP]", 0), text("B", 1), special("[SEP]", 1)];
        let around = read(&template(json!(bert)));
        assert_eq!((&around.prefix[..], &around.suffix[..]), (&[0][..], &[1][..]));
        let want = Pair { before: vec![0], between: vec![1], after: vec![1], n_first: Some(1) };
        assert_eq!(around.pair, Some(want.clone()));
        let processing = json!({"type": "BertProcessing", "cls": ["[CLS]", 0], "sep": ["[SEP]", 1]});
        assert_eq!(read(&processing).pair, Some(want));
        let one_type =
            [special("[CLS]", 0), text("A", 0), special("[SEP]", 0), special("[SEP]", 0), text("B", 0)];
        let want = Pair { before: vec![0], between: vec![1, 1], after: vec![], n_first: None };
        assert_eq!(read(&template(json!(one_type))).pair, Some(want));
    }

    #[test]
    fn a_template_that_puts_two_texts_together_in_another_way_leaves_single_texts_as_they_are() {
        for odd in [
            json!([text("B", 0), text("A", 0)]),
            json!([text("A", 0)]),
            json!([text("A", 1), text("B", 0)]),
            json!([text("A", 1), text("B", 1)]),
            json!([text("A", 0), text("B", 2)]),
            json!([text("A", 0), text("B", 0), special("[SEP]", 1)]),
            Value::Null,
        ] {
            let around = read(&template(odd.clone()));
            assert_eq!((around.pair, around.prefix), (None, vec![0]), "{odd}");
        }
    }
}
